"""Calls that are repeated: when their peer was unavailable, within their time, and no others."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from suture.errors import Code, RefusedError, UnavailableError
from suture.wire.clients.channel import ATTEMPTS_MAX, ChannelClosed, call, call_again


class Failure(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A call that failed, as a client sees it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        """Return how it ended."""
        return self._code

    def details(self) -> str:
        """Return why."""
        return "made by a test"

    def trailing_metadata(self) -> object:
        """Return nothing."""
        return ()


class Method:
    """Fails as it is told to, one call after the other, and answers then."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)
        self.timeouts_s: list[float] = []

    def __call__(self, request: Any, **how: Any) -> Any:
        """Answer with the request."""
        self.timeouts_s.append(how["timeout"])
        if self._codes:
            raise Failure(self._codes.pop(0))
        return request


GONE = grpc.StatusCode.UNAVAILABLE


def test_a_peer_that_comes_back_answers() -> None:
    """
    Each attempt has the whole timeout.
    """
    method = Method(*[GONE] * (ATTEMPTS_MAX - 1))

    assert "asked" == call_again(method, "asked", timeout_s=9.0)
    assert [9.0] * ATTEMPTS_MAX == method.timeouts_s


def test_a_peer_that_stays_away_is_asked_a_few_times() -> None:
    """The last error is raised, with the party that was called."""
    method = Method(*[GONE] * 10)

    with pytest.raises(UnavailableError, match="the SCM at scm1:9860") as failure:
        call_again(method, "asked", timeout_s=9.0, party="the SCM at scm1:9860")
    assert Code.UNAVAILABLE is failure.value.code
    assert ATTEMPTS_MAX == len(method.timeouts_s)


def test_without_time_left_nobody_is_asked_again() -> None:
    """
    The first attempt took all of it.
    """
    method = Method(GONE, GONE)

    with pytest.raises(UnavailableError):
        call_again(method, "asked", timeout_s=0.0)
    assert 1 == len(method.timeouts_s)


def test_refused_call_is_not_repeated() -> None:
    """The peer would refuse it again."""
    method = Method(grpc.StatusCode.INVALID_ARGUMENT)

    with pytest.raises(RefusedError):
        call_again(method, "asked", timeout_s=9.0)
    assert 1 == len(method.timeouts_s)


def test_error_of_an_unrepeated_call_names_its_party() -> None:
    """The method is unknown to the server, so it is called once."""
    method = Method(grpc.StatusCode.UNIMPLEMENTED)

    with pytest.raises(RefusedError, match="the SCM at scm1:9860 does not support this call"):
        call_again(method, "asked", timeout_s=9.0, party="the SCM at scm1:9860")
    assert [9.0] == method.timeouts_s


@pytest.mark.parametrize("calling", [call, call_again])
def test_call_on_a_closed_connection_is_not_repeated(
    calling: Callable[..., Any],
) -> None:
    """gRPC raises an error that is not one of its own."""
    timeouts_s: list[float] = []

    def closed(_request: Any, **how: Any) -> Any:
        timeouts_s.append(how["timeout"])
        raise ValueError("Cannot invoke RPC on closed channel!")

    with pytest.raises(ChannelClosed):
        calling(closed, "asked", timeout_s=9.0)
    assert [9.0] == timeouts_s
