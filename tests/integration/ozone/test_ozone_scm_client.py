"""The client of Ozone's SCM, over real sockets, against what a real SCM said."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from ozone.clients.authentication import HadoopIdentity
from ozone.clients.connection import parse_addresses
from ozone.clients.frames import Failure
from ozone.clients.messages import ScmRequestType
from ozone.clients.scm import OzoneScmClient, ScmClientOptions, request
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.ozone.recorded_scm import RecordedScm, recorded, recorded_scm

CONTAINERS = (1, 2, 3, 4)
QUICK = ScmClientOptions(timeout_s=10.0, patience_s=10.0, pause_s=0.01)
IMPATIENT = ScmClientOptions(timeout_s=0.2, patience_s=0.3, pause_s=0.01)


@pytest.fixture
def scm() -> Iterator[RecordedScm]:
    """An SCM that leads."""
    with recorded_scm() as server:
        yield server


def client_of(*servers: RecordedScm, manners: ScmClientOptions = QUICK) -> OzoneScmClient:
    """Return a client of several SCMs."""
    addresses = ",".join(server.address for server in servers)
    return OzoneScmClient(parse_addresses(addresses), HadoopIdentity("suture"), manners)


def replica_counts(client: OzoneScmClient) -> dict[int, int]:
    """Ask for the replicas of all containers at once."""
    asked = client.call_each(
        CONTAINERS, lambda key: request(ScmRequestType.GET_REPLICAS, container_id=key)
    )
    return {key: len(answer.get_replicas.replicas) for key, answer in asked}


def closed_port() -> str:
    """Return an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_recorded_requests_are_sent_and_their_answers_read(scm: RecordedScm) -> None:
    """The server accepts only the bytes that a real SCM understood."""
    with closing(client_of(scm)) as client:
        assert {1: 3, 2: 3, 3: 5, 4: 5} == replica_counts(client)
        assert len(client.call(ScmRequestType.QUERY_NODES, scope=1).query_nodes.nodes) == 5
        assert not client.call(ScmRequestType.GET_SAFE_MODE).get_safe_mode.is_on
    assert ["suture"] == scm.users


def test_many_calls_are_under_way_on_one_connection() -> None:
    """
    The server answers none of them before it has all, and the last first.
    """
    with recorded_scm(held_back=len(CONTAINERS)) as scm, closing(client_of(scm)) as client:
        assert {1: 3, 2: 3, 3: 5, 4: 5} == replica_counts(client)
        assert len(CONTAINERS) == scm.most_under_way
        assert 1 == client.counts.connections


def test_no_more_calls_are_under_way_than_the_window_has(scm: RecordedScm) -> None:
    """The window bounds the calls in progress, however many there are to make."""
    begun = []

    def items() -> Iterator[int]:
        for key in CONTAINERS * 20:
            begun.append(key)
            yield key

    with closing(client_of(scm, manners=ScmClientOptions(window=8, timeout_s=10))) as client:
        done = 0
        for _ in client.call_each(
            items(), lambda k: request(ScmRequestType.GET_REPLICAS, container_id=k)
        ):
            assert len(begun) - done <= 8
            done += 1
    assert len(CONTAINERS) * 20 == done


def test_a_failure_stands_for_its_own_call(scm: RecordedScm) -> None:
    """
    The other calls are answered.
    """
    with closing(client_of(scm)) as client:
        asked = client.call_each(
            [1, 999], lambda k: request(ScmRequestType.GET_REPLICAS, container_id=k)
        )
        found = dict(asked)

    assert 3 == len(found[1].get_replicas.replicas)
    assert isinstance(found[999], Failure)
    assert "ContainerNotFoundException" == found[999].name


def test_the_leader_is_found() -> None:
    """The client passes over a manager that does not lead and one that is down."""
    with recorded_scm(leads=False) as follower, recorded_scm() as leader:
        addresses = f"{closed_port()},{follower.address},{leader.address}"
        client = OzoneScmClient(parse_addresses(addresses), HadoopIdentity("suture"), QUICK)
        with closing(client):
            assert {1: 3, 2: 3, 3: 5, 4: 5} == replica_counts(client)
        assert follower.calls
        assert leader.address == str(client.leader)


def test_unanswered_requests_are_repeated_after_a_hang_up() -> None:
    """A connection that ends midway loses no answer and repeats none."""
    with recorded_scm(hang_up_after=3) as scm, closing(client_of(scm)) as client:
        asked = client.call_each(
            CONTAINERS * 3, lambda key: request(ScmRequestType.GET_REPLICAS, container_id=key)
        )
        assert sorted(CONTAINERS * 3) == sorted(key for key, _ in asked)
        assert client.counts.connections >= 4


def test_an_order_is_given_once() -> None:
    """Without an answer it is unknown whether the order was executed. The next order is sent."""
    with recorded_scm(hang_up_after=1) as scm, closing(client_of(scm)) as client:
        given = list(
            client.order_each(
                [1, 2, 3], lambda key: request(ScmRequestType.RECONCILE, container_id=key)
            )
        )

    assert [1, 2, 3] == [key for key, _ in given]
    assert not isinstance(given[0][1], Failure)
    assert isinstance(given[1][1], Failure)
    assert "not known whether it was done" in given[1][1].text
    assert "EC" in given[2][1].text
    assert 3 == len(scm.calls)


def test_an_order_goes_to_the_leader() -> None:
    """A server that does not lead executes nothing."""
    with recorded_scm(leads=False) as follower, recorded_scm() as leader:
        with closing(client_of(follower, leader)) as client:
            ((_, answer),) = client.order_each(
                [1], lambda key: request(ScmRequestType.RECONCILE, container_id=key)
            )
        assert not isinstance(answer, Failure)
        assert (1, 1) == (len(follower.calls), len(leader.calls))


def test_missing_leader_is_reported_with_address_and_reason() -> None:
    """The client gives up after its patience."""
    nobody = closed_port()
    with recorded_scm(leads=False) as follower:
        client = OzoneScmClient(
            parse_addresses(f"{nobody},{follower.address}"), HadoopIdentity("suture"), IMPATIENT
        )
        with closing(client), pytest.raises(UnavailableError) as caught:
            client.call(ScmRequestType.GET_SCM)

    assert f"{nobody}: Connection refused" in str(caught.value)
    assert f"{follower.address}: does not lead: SCM Server:4ef70016" in str(caught.value)


def test_a_server_that_says_nothing_is_given_up() -> None:
    """The error has the waiting time."""
    with (
        recorded_scm(silent_after=0) as scm,
        closing(client_of(scm, manners=IMPATIENT)) as client,
        pytest.raises(UnavailableError, match=r"no answer within 0\.2 s"),
    ):
        client.call(ScmRequestType.GET_SCM)


def test_a_cluster_with_kerberos_is_refused_in_plain_words() -> None:
    """
    At once: asking again cannot help.
    """
    with (
        recorded_scm(lets_in=False) as scm,
        closing(client_of(scm)) as client,
        pytest.raises(RefusedError, match="SIMPLE authentication is not enabled") as caught,
    ):
        client.call(ScmRequestType.GET_SCM)

    assert Code.UNAUTHENTICATED is caught.value.code
    assert "--ozone-conf" in caught.value.hint
    assert 1 == client.counts.connections


@pytest.mark.parametrize(
    ("server", "said"),
    [("http", "does not use Hadoop RPC: HTTP"), ("dn", "is not the client port of an SCM")],
)
def test_another_port_of_the_scm_is_told(server: str, said: str) -> None:
    """
    Its page, and where datanodes report: what both answered was recorded.
    """
    (answer,) = recorded(server).values()
    wishes = {"raw": answer} if server == "http" else {"answers": recorded(server)}
    with (
        recorded_scm(**wishes) as scm,
        closing(client_of(scm)) as client,
        pytest.raises(RefusedError, match=said) as caught,
    ):
        client.call(ScmRequestType.GET_SCM)

    assert scm.address in str(caught.value)
    assert "9860" in caught.value.hint


def test_an_answer_that_is_too_large_is_not_waited_for() -> None:
    """Only its length is read."""
    with (
        recorded_scm(raw=b"\x7f\xff\xff\xff") as scm,
        closing(client_of(scm)) as client,
        pytest.raises(RefusedError, match="2147483647 bytes in one answer"),
    ):
        client.call(ScmRequestType.GET_SCM)
