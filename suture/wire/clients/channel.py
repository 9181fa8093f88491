"""Opens gRPC channels, and makes calls with a timeout, with retries and with Suture's errors.

Every call has a timeout. A call may be retried before its timeout if it is idempotent and the
server may be available again. Errors of calls are `SutureError`s.
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
"""The maximum pauses in seconds before a client again calls datanodes that may be restarting."""
assert sum(RESTART_PAUSES_S) / 2 > RECONNECT_MS_MAX / 1000, "the last attempt connects again"
PATIENCE_S: Final = 120.0  # for a control plane restart: start, and 3 slow heartbeats

_RETRIED_CODES: Final = frozenset({Code.UNAVAILABLE, Code.BUSY})

T = TypeVar("T")


class ChannelClosed(UnavailableError):
    """Raised for a call over a connection that this process has closed. Such a call is not
    retried."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "the connection was closed")


class DatanodesSilent(UnavailableError):
    """Raised if data cannot be read, and at least one datanode that should have the data did not
    answer."""


Method = Callable[..., Any]  # a grpc multi-callable; its stubs are untyped


def open_channel(address: str, security: Security = LOOPBACK_ONLY) -> grpc.Channel:
    """Return a gRPC channel to `address`. It connects on first use, and detects a dead server.

    Raise RefusedError(INVALID_CONFIG) if the address is invalid, or if plaintext is not allowed.
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
    """Raise RefusedError if an address is not HOST:PORT. Without this check, gRPC would use port
    443 for an address without a port."""
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
    """Call a method that returns one response, and return the response. Raise SutureError if the
    call fails.

    `party` names the called process in errors that gRPC itself creates, such as a refused
    connection.
    """
    try:
        return method(request, timeout=timeout_s, metadata=carried())
    except (grpc.RpcError, ValueError) as failure:
        raise _error_of(failure, party) from failure


def _error_of(failure: grpc.RpcError | ValueError, party: str) -> SutureError:
    """Convert the failure of a call to a SutureError, whose cause is the failure."""
    error: SutureError = ChannelClosed()  # gRPC raises ValueError for a closed channel
    if isinstance(failure, grpc.RpcError):
        error = error_from(failure, party)
    error.__cause__ = failure
    return error


def stream(method: Method, request: Any, *, timeout_s: float) -> Iterator[Any]:
    """Start a call that returns a stream of responses, and return an iterator of the responses.

    The server starts to send at once, as far ahead as gRPC's window allows. If the iterator is
    closed before its end, the call is cancelled.
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
    """Start a call, and return its future. Raise UnavailableError if the channel is closed."""
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
    """Call a method with a stream of messages, and return its response. Cancel the call soon after
    `must_end` returns True.

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
    """Return True if an item arrives in the queue within `timeout_s` seconds."""
    try:
        queue.get(timeout=timeout_s)
    except Empty:
        return False
    return True


def call_again(
    method: Method, request: Any, *, timeout_s: float, party: str = ""
) -> Any:  # the method's answer
    """Call an idempotent method that returns one response, with the retries of `call_with_retry`.
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
    """Call `work`, which must be idempotent, and return its result. If the server is unavailable or
    busy, retry a few times until `timeout_s` seconds have passed."""
    began_s = time.monotonic()
    try:
        return work()
    except SutureError as error:
        return _repeated(error, work, timeout_s - (time.monotonic() - began_s))


def _repeated(error: SutureError, work: Callable[[], T], left_s: float) -> T:
    """Retry `work` after its first attempt has failed with `error`, and return its result. Raise
    `error` if a retry is not useful."""
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
    """Call `work` and return its result. Retry while it fails with one of `codes`.

    The pauses are those of `call_with_retry`. `waits` is called with the first failure. Raise the
    last failure after `timeout_s` seconds, or soon after `must_end` returns True.
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
    """Yield the maximum pause in seconds before each new call of datanodes that may be restarting.

    If a host is down, each call takes until its timeout. Therefore, the generator ends when the
    calls have taken as long as all pauses together.
    """
    deadline_s = time.monotonic() + sum(RESTART_PAUSES_S)
    yield from takewhile(lambda _: time.monotonic() < deadline_s, RESTART_PAUSES_S)


def pause(longest_s: float) -> None:
    """Sleep for a random time between half of `longest_s` seconds and `longest_s` seconds."""
    time.sleep(random.uniform(longest_s / 2, longest_s))  # noqa: S311 - jitter, not a secret


def _is_worth_repeating(error: BaseException) -> bool:
    return _may_end(error, _RETRIED_CODES)


def _may_end(error: BaseException, codes: Collection[Code]) -> bool:
    """Return True if a later call over this connection may succeed: the error's code is in `codes`,
    and this process has not closed the connection."""
    return (
        isinstance(error, UnavailableError)
        and error.code in codes
        and not isinstance(error, ChannelClosed)
    )
