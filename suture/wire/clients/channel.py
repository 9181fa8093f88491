"""Channels and calls: the common way to open a channel, to set a deadline, and to retry a call.

Every call has a deadline. A call is retried before its deadline if it is idempotent and the answer
was "try again later". Errors of calls are `SutureError`s.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import grpc

from merkle.replica import CHUNK_BYTES_MAX
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.tracing import carried
from suture.wire.mapping.errors import error_from
from suture.wire.security.channel_renewal import RenewingChannel
from suture.wire.security.tls import LOOPBACK_ONLY, Security, TlsMaterial, channel_credentials

MESSAGE_BYTES_MAX: Final = CHUNK_BYTES_MAX + 1024**2  # a chunk and its description
HEADERS_BYTES_MAX: Final = 16 * 1024
KEEPALIVE_MS: Final = 20_000  # our servers refuse pings more often than every 10 s
KEEPALIVE_TIMEOUT_MS: Final = 10_000
RECONNECT_MS_MAX: Final = 1_000  # gRPC's default of two minutes is too long for a peer that is back
NO_PROXY: Final = ("grpc.enable_http_proxy", 0)  # the environment's proxy is for external hosts
ATTEMPTS_MAX: Final = 3
PORT_MAX: Final = 65_535
RETRY_WAIT_S: Final = 0.05
UPLOAD_POLL_S: Final = 0.2
RETRY_WAIT_S_MAX: Final = 1.0
RESTART_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""The longest pauses of a client between attempts to reach datanodes that may be restarting."""
assert sum(RESTART_PAUSES_S) / 2 > RECONNECT_MS_MAX / 1000, "the last attempt connects again"
PATIENCE_S: Final = 120.0  # for a control plane restart: start, and 3 slow heartbeats

_RETRIED_CODES: Final = frozenset({Code.UNAVAILABLE, Code.BUSY})

T = TypeVar("T")


class ChannelClosed(UnavailableError):
    """This process has closed the connection. Calls over it are not retried."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "the connection was closed")


class DatanodesSilent(UnavailableError):
    """Data cannot be read, and at least one datanode that should have it did not answer."""


Method = Callable[..., Any]  # a grpc multi-callable; its stubs are untyped


def open_channel(address: str, security: Security = LOOPBACK_ONLY) -> grpc.Channel:
    """Return a channel to `address`. The channel connects on first use and detects a dead peer.

    Raise RefusedError(INVALID_CONFIG) if plaintext is not allowed, or the address is invalid.
    """
    check_address(address)
    options = [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", HEADERS_BYTES_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MAX),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
        NO_PROXY,
    ]
    if security.certificates is None:
        security.check_plaintext(address, "call")
        return grpc.insecure_channel(address, options)

    def open_one(material: TlsMaterial) -> grpc.Channel:
        return grpc.secure_channel(address, channel_credentials(material), options)

    return RenewingChannel(security.certificates, open_one)


def check_address(address: str) -> None:
    """Raise RefusedError if an address has no host or no port; gRPC would use port 443."""
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and int(port) <= PORT_MAX
    if is_port and host and not host.endswith(":") and "/" not in host:
        return
    what = "it has no port" if ":" not in address else "it is not HOST:PORT"
    if "//" in address:
        what = "it is the address of a web page"
    raise RefusedError(
        Code.INVALID_CONFIG,
        f"invalid address {address!r}: {what}",
        hint="expected HOST:PORT, for example scm.example.org:9860, 192.0.2.7:9859 or "
        "[2001:db8::7]:9859",
    )


def call(
    method: Method, request: Any, *, timeout_s: float, party: str = ""
) -> Any:  # the method's answer
    """Call a method that returns one answer. Raise SutureError if the call fails.

    `party` names the called process, for errors that gRPC itself makes, such as a refused
    connection.
    """
    try:
        return method(request, timeout=timeout_s, metadata=carried())
    except (grpc.RpcError, ValueError) as failure:
        raise _error_of(failure, party) from failure


def _error_of(failure: grpc.RpcError | ValueError, party: str) -> SutureError:
    """Convert the failure of a call into the error for the caller. The error's cause is the
    failure."""
    error: SutureError = ChannelClosed()  # gRPC raises ValueError for a closed channel
    if isinstance(failure, grpc.RpcError):
        error = error_from(failure, party)
    error.__cause__ = failure
    return error


def stream(method: Method, request: Any, *, timeout_s: float) -> Iterator[Any]:
    """Start a call that returns a stream of answers, and return the stream. To cancel the call,
    leave the context early.

    The peer starts sending at once, as far ahead as gRPC's window allows.
    """
    try:
        answers = method(request, timeout=timeout_s, metadata=carried())
    except ValueError as error:
        raise ChannelClosed from error
    return _messages(answers)


def _messages(answers: Any) -> Iterator[Any]:
    try:
        yield from answers
    except grpc.RpcError as error:
        raise error_from(error) from error
    finally:
        answers.cancel()


def start_call(method: Method, request: Any, *, timeout_s: float) -> Any:  # the call's future
    """Start a call without waiting for its answer. Raise UnavailableError if the channel is
    closed."""
    try:
        return method.future(  # type: ignore[attr-defined]
            request, timeout=timeout_s, metadata=carried()
        )
    except ValueError as error:
        raise ChannelClosed from error


def upload(
    method: Method,
    requests: Iterator[bytes],
    *,
    timeout_s: float,
    must_end: Callable[[], bool],
) -> Any:  # the method's answer
    """Send a stream of messages and return the answer. Cancel the call soon after `must_end`
    returns True.

    A thread of gRPC iterates over `requests`. Raise SutureError if the call fails.
    """
    answer = start_call(method, requests, timeout_s=timeout_s)
    ended: SimpleQueue[None] = SimpleQueue()  # `result` would wake this thread per message
    answer.add_done_callback(lambda _: ended.put(None))
    try:
        while not _has_come(ended, UPLOAD_POLL_S):
            if must_end():
                raise UnavailableError(Code.CANCELLED, "the transfer was stopped")
        return answer.result()
    except grpc.FutureCancelledError as error:
        raise UnavailableError(Code.CANCELLED, "the connection was closed") from error
    except grpc.RpcError as error:
        raise error_from(error) from error
    finally:
        answer.cancel()


def _has_come(queue: "SimpleQueue[None]", timeout_s: float) -> bool:
    """Return whether an item arrives within `timeout_s`."""
    try:
        queue.get(timeout=timeout_s)
    except Empty:
        return False
    return True


def call_again(
    method: Method, request: Any, *, timeout_s: float, party: str = ""
) -> Any:  # the method's answer
    """Call an idempotent method that returns one answer, with the retries of `call_with_retry`.
    Raise SutureError if the last attempt fails."""
    began_s = time.monotonic()
    try:
        return method(request, timeout=timeout_s, metadata=carried())
    except (grpc.RpcError, ValueError) as failure:
        return _repeated(
            _error_of(failure, party),
            lambda: call(method, request, timeout_s=timeout_s, party=party),
            timeout_s - (time.monotonic() - began_s),
        )


def call_with_retry(work: Callable[[], T], *, timeout_s: float) -> T:
    """Return the result of `work`. Retry it a few times if the peer is unavailable, until
    `timeout_s`.

    `work` must be idempotent.
    """
    began_s = time.monotonic()
    try:
        return work()
    except SutureError as error:
        return _repeated(error, work, timeout_s - (time.monotonic() - began_s))


def _repeated(error: SutureError, work: Callable[[], T], left_s: float) -> T:
    """Retry `work` after a failed first attempt and return its result."""
    if not _is_worth_repeating(error):
        raise error
    failures = [error]
    import tenacity  # imported late, because a call that succeeds at once does not need it

    def again() -> T:
        if failures:
            raise failures.pop()  # counts as the first attempt
        return work()

    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS_MAX) | tenacity.stop_after_delay(left_s),
        wait=tenacity.wait_random_exponential(multiplier=RETRY_WAIT_S, max=RETRY_WAIT_S_MAX),
        retry=tenacity.retry_if_exception(_is_worth_repeating),
        reraise=True,
    )
    return attempts(again)


def retry_while(
    work: Callable[[], T],
    *,
    codes: Collection[Code],
    must_end: Callable[[], bool],
    waits: Callable[[SutureError], None] = lambda _: None,
    timeout_s: float = PATIENCE_S,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Return the result of `work`. Retry it while it fails with one of `codes`.

    The pauses are those of `call_with_retry`. `waits` receives the first failure. Raise the last
    failure after `timeout_s`, or soon after `must_end` returns True.
    """
    import tenacity

    is_told = False

    def note_attempt(state: tenacity.RetryCallState) -> None:
        nonlocal is_told
        failure = state.outcome.exception() if state.outcome is not None else None
        if not is_told and isinstance(failure, SutureError):
            waits(failure)
        is_told = True

    attempts = tenacity.Retrying(
        stop=lambda state: must_end() or (state.seconds_since_start or 0.0) >= timeout_s,
        wait=tenacity.wait_random_exponential(multiplier=RETRY_WAIT_S, max=RETRY_WAIT_S_MAX),
        retry=tenacity.retry_if_exception(lambda error: _may_end(error, codes)),
        before_sleep=note_attempt,
        sleep=sleep or time.sleep,  # looked up at each call, so that it can be replaced
        reraise=True,
    )
    return attempts(work)


def restart_pauses() -> Iterator[float]:
    """Yield the maximum pause in seconds before each attempt to reach datanodes that may be
    restarting. Stop early when the attempts have taken as long as all pauses together: if a host is
    down, each call lasts until its deadline."""
    deadline_s = time.monotonic() + sum(RESTART_PAUSES_S)
    yield from takewhile(lambda _: time.monotonic() < deadline_s, RESTART_PAUSES_S)


def pause(longest_s: float) -> None:
    """Sleep for between half of `longest_s` and all of it."""
    time.sleep(random.uniform(longest_s / 2, longest_s))  # noqa: S311 - jitter, not a secret


def _is_worth_repeating(error: BaseException) -> bool:
    return _may_end(error, _RETRIED_CODES)


def _may_end(error: BaseException, codes: Collection[Code]) -> bool:
    """Return whether a call over this connection may succeed later: the error's code is in `codes`,
    and this process has not closed the connection."""
    return (
        isinstance(error, UnavailableError)
        and error.code in codes
        and not isinstance(error, ChannelClosed)
    )
