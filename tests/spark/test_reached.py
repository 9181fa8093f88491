"""A master at whose address nobody listens is named at once; before Spark is asked for it."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_verify import session
from spark_verify.errors import SparkRefused
from spark_verify.session import check_reached, open_session


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that is ours, and at which nobody listens."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def listening() -> Iterator[str]:
    """One at which somebody does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have none in the environment, whatever the machine is."""
    for name in (*session.PROXIES, "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_that_is_not_there_is_named_at_once(silent: str) -> None:
    """Spark's client retries for minutes without saying what it waits for."""
    with pytest.raises(SparkRefused, match=f"Spark at sc://{silent}: .*Connection refused"):
        open_session(row_count=0, master=f"sc://{silent}")


def test_silent_master_in_the_environment_is_refused(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's master is used as it is, and may be wrong as well."""
    monkeypatch.setenv("SPARK_REMOTE", f"sc://{silent}")

    with pytest.raises(SparkRefused, match=silent):
        open_session(row_count=0)


def test_no_secret_is_shown(silent: str) -> None:
    """
    The address of a server of Spark Connect may have a token behind it.
    """
    with pytest.raises(SparkRefused) as caught:
        check_reached(f"sc://{silent}/;token=secret;use_ssl=true")

    assert "secret" not in str(caught.value)


def test_server_that_listens_is_accepted(listening: str) -> None:
    """Parameters may follow its address."""
    check_reached(f"sc://{listening}/;token=x")


@pytest.mark.parametrize("place", ["host:port", "", "host:99999", "no-such-host.invalid"])
def test_invalid_master_address_is_refused_in_one_line(place: str) -> None:
    """A host name that cannot be resolved is refused, too."""
    with pytest.raises(SparkRefused, match="Spark at sc://"):
        check_reached(f"sc://{place}")


def test_master_behind_a_proxy_is_left_to_spark(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct connection says nothing about a master behind a proxy."""
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")

    check_reached(f"sc://{silent}")
