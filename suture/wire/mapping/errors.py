"""Converts a `SutureError` to a `google.rpc.Status`, and in the calling process back to the same
error.

    handler raises RefusedError(CONTAINER_NOT_FOUND, ...)
      -> gRPC NOT_FOUND + ErrorInfo{domain "suture", reason "CONTAINER_NOT_FOUND", metadata facts}
        -> client raises RefusedError(CONTAINER_NOT_FOUND, ...)

A status without this ErrorInfo comes from gRPC itself (no connection, timeout, message too large),
and is converted by its gRPC code. An unexpected exception of a handler becomes INTERNAL without any
details, because paths and values must appear only in this process's log.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed

DOMAIN: Final = "suture"
SERVICE_PREFIX: Final = "/suture.v1."
HINT_KEY: Final = "hint"
PAGE_HINT: Final = (
    "something else answers there: pages for browsers have ports of their own, 9861 and 9862 "
    "usually; or it speaks TLS and was called without"
)
PLAIN_TEXTS: Final = (  # first match of gRPC's text about a failed connection, and its plain form
    (re.compile("Connection refused"), "connection refused"),
    (re.compile("DNS resolution failed|[Nn]ame not found"), "unknown host name"),
    (re.compile("No route to host|unreachable"), "no route to the host"),
    (re.compile("CERTIFICATE_VERIFY_FAILED"), "its certificate is not trusted"),
    (re.compile("[Hh]andshake"), "the TLS handshake failed"),
    (re.compile("[Tt]imeout|timed out|FD Shutdown"), "no connection in time"),
    (
        re.compile("[Ss]ocket closed|Stream removed|Connection reset|Broken pipe|GOAWAY"),
        "the connection was closed",
    ),
)
DETAIL_KEY: Final = "detail"  # name of the fact with gRPC's own text
REFUSED_STREAM: Final = re.compile(r"RST_STREAM with error code 7\b")  # RFC 9113, section 7

# A status is sent in HTTP/2 trailers, which peers limit to 8 KiB: the sum must stay below. The
# message is in them twice (percent-encoded, and in the base64 of the details).
MESSAGE_BYTES_MAX: Final = 512
FACT_BYTES_MAX: Final = 256
FACTS_MAX: Final = 12
assert 3 * MESSAGE_BYTES_MAX + (MESSAGE_BYTES_MAX + FACTS_MAX * FACT_BYTES_MAX) * 4 // 3 < 7 * 1024

GRPC_CODES: Final[Mapping[Code, grpc.StatusCode]] = {
    Code.MALFORMED_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Code.INVALID_WRITE_SIZE: grpc.StatusCode.INVALID_ARGUMENT,
    Code.CHECKSUM_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    Code.NO_SUCH_ALGORITHM: grpc.StatusCode.INVALID_ARGUMENT,
    Code.CONTAINER_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.NO_SUCH_BLOCK: grpc.StatusCode.NOT_FOUND,
    Code.UNABLE_TO_FIND_CHUNK: grpc.StatusCode.NOT_FOUND,
    Code.KEY_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Code.KEY_LOST: grpc.StatusCode.DATA_LOSS,
    Code.KEY_REPLACED: grpc.StatusCode.ABORTED,
    Code.CONTAINER_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.KEY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Code.CONTAINER_NOT_OPEN: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNCLOSED_CONTAINER_IO: grpc.StatusCode.FAILED_PRECONDITION,
    Code.INVALID_CONTAINER_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Code.DELETE_ON_OPEN_CONTAINER: grpc.StatusCode.FAILED_PRECONDITION,
    Code.DELETE_ON_NON_EMPTY_CONTAINER: grpc.StatusCode.FAILED_PRECONDITION,
    Code.BCSID_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNKNOWN_BCSID: grpc.StatusCode.FAILED_PRECONDITION,
    Code.OVERLAPPING_CHUNK: grpc.StatusCode.FAILED_PRECONDITION,
    Code.CHUNK_GAP: grpc.StatusCode.FAILED_PRECONDITION,
    Code.BLOCK_NOT_COMMITTED: grpc.StatusCode.FAILED_PRECONDITION,
    Code.WRONG_DATANODE: grpc.StatusCode.FAILED_PRECONDITION,
    Code.WRONG_CLUSTER: grpc.StatusCode.FAILED_PRECONDITION,
    Code.DEADLINE_PASSED: grpc.StatusCode.FAILED_PRECONDITION,
    Code.INELIGIBLE: grpc.StatusCode.FAILED_PRECONDITION,
    Code.INVALID_CONFIG: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Code.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    Code.VOLUME_IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
    Code.INCONSISTENT_VOLUME: grpc.StatusCode.FAILED_PRECONDITION,
    Code.STALE_TERM: grpc.StatusCode.ABORTED,  # the caller must first get the new term
    Code.STALE_PLAN: grpc.StatusCode.ABORTED,
    Code.NOT_PROVEN: grpc.StatusCode.FAILED_PRECONDITION,
    Code.CONTAINER_INTERNAL_ERROR: grpc.StatusCode.INTERNAL,
    Code.DISK_OUT_OF_SPACE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.NOT_ENOUGH_NODES: grpc.StatusCode.UNAVAILABLE,
    Code.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
    Code.SAFE_MODE: grpc.StatusCode.UNAVAILABLE,
    Code.CANCELLED: grpc.StatusCode.CANCELLED,
    Code.IO_EXCEPTION: grpc.StatusCode.INTERNAL,
    Code.UNABLE_TO_READ_METADATA_DB: grpc.StatusCode.INTERNAL,
}
assert set(GRPC_CODES) == set(Code), "every code has its gRPC status"

_UNAVAILABLE_CODES: Final = frozenset(
    {
        Code.DISK_OUT_OF_SPACE,
        Code.BUSY,
        Code.UNAVAILABLE,
        Code.NOT_ENOUGH_NODES,
        Code.NOT_LEADER,
        Code.SAFE_MODE,
        Code.CANCELLED,
    }
)
_VOLUME_CODES: Final = frozenset({Code.IO_EXCEPTION, Code.UNABLE_TO_READ_METADATA_DB})

_RETRY_GRPC_CODES: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
    }
)

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


def error_class(code: Code) -> type[SutureError]:
    """Return the subclass of SutureError for this code."""
    if code in _UNAVAILABLE_CODES:
        return UnavailableError
    if code in _VOLUME_CODES:
        return VolumeFailed
    return RefusedError


def to_status(error: SutureError) -> status_pb2.Status:
    """Convert an error to a status. Long texts are cut."""
    facts = dict(list(error.facts.items())[:FACTS_MAX])
    if error.hint:
        facts[HINT_KEY] = error.hint
    info = error_details_pb2.ErrorInfo(
        reason=error.code.value,
        domain=DOMAIN,
        metadata={name: _cut(value, FACT_BYTES_MAX) for name, value in facts.items()},
    )
    detail = any_pb2.Any()
    detail.Pack(info, deterministic=True)
    return status_pb2.Status(
        code=GRPC_CODES[error.code].value[0],
        message=_cut(str(error), MESSAGE_BYTES_MAX),
        details=[detail],
    )


def error_from(rpc_error: grpc.RpcError, party: str = "") -> SutureError:
    """Convert the failure of a call to a SutureError. Use it as `raise error_from(e) from e`.

    `party` names the called process in errors that gRPC itself creates.
    """
    code, details, info = _parts(rpc_error)
    if info is not None:
        error = error_of(info.reason, message=details, hint=info.metadata.get(HINT_KEY, ""))
        error.facts = {name: value for name, value in info.metadata.items() if name != HINT_KEY}
        return error
    return _foreign(code, details, party)


def error_of(reason: str, *, message: str, hint: str = "") -> SutureError:
    """Return the error for a code in a message. The code may belong to a complete call or to one
    item in a response."""
    code = Code(reason) if reason in Code.__members__ else Code.CONTAINER_INTERNAL_ERROR
    return error_class(code)(code, message, hint=hint)


def _parts(
    rpc_error: grpc.RpcError,
) -> tuple[grpc.StatusCode, str, error_details_pb2.ErrorInfo | None]:
    if not isinstance(rpc_error, grpc.Call):
        return grpc.StatusCode.UNKNOWN, str(rpc_error), None
    code, details = rpc_error.code(), rpc_error.details() or ""
    from grpc_status import rpc_status  # not needed by a call that succeeds

    try:
        status = rpc_status.from_call(rpc_error)
    except (ValueError, DecodeError):  # inconsistent trailers, not from a Suture server
        return code, details, None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            return code, details, info
    return code, details, None


def _foreign(code: grpc.StatusCode, details: str, party: str) -> SutureError:
    """Convert a status that gRPC itself created to a SutureError."""
    if code is grpc.StatusCode.UNAVAILABLE and REFUSED_STREAM.search(details):
        message = f"busy: {_cut(details, MESSAGE_BYTES_MAX)}"
        return UnavailableError(Code.BUSY, f"{party} is {message}" if party else message)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and party:
        return UnavailableError(Code.UNAVAILABLE, f"{party} did not answer in time")
    prefix = f"{party} is " if party and code is grpc.StatusCode.UNAVAILABLE else ""
    shown = _plain(details) if code is grpc.StatusCode.UNAVAILABLE else ""
    message = f"{prefix}{code.name.lower()}: {shown or _cut(details, MESSAGE_BYTES_MAX)}"
    if code in _RETRY_GRPC_CODES:
        hint = PAGE_HINT if "HTTP/2" in details else ""
        error = UnavailableError(Code.UNAVAILABLE, message, hint=hint)
        error.facts = {DETAIL_KEY: _cut(details, FACT_BYTES_MAX)} if shown else {}
        return error
    if code is grpc.StatusCode.UNIMPLEMENTED and party:
        return RefusedError(
            Code.MALFORMED_REQUEST,
            f"{party} does not support this call",
            hint="check the address: an SCM usually listens on port 9860, a datanode on 9859",
        )
    if code is grpc.StatusCode.CANCELLED:
        return UnavailableError(Code.CANCELLED, message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "larger than max" in details:  # gRPC's only sign of a too large message
            return RefusedError(Code.MALFORMED_REQUEST, message)
        return UnavailableError(Code.BUSY, message)
    if code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}:
        return RefusedError(Code.MALFORMED_REQUEST, message)
    return RefusedError(Code.CONTAINER_INTERNAL_ERROR, message)


def _plain(details: str) -> str:
    """Return a short text for gRPC's text about a failed connection. Return "" if there is none."""
    if "HTTP/2" in details:
        return ""
    return next((plain for pattern, plain in PLAIN_TEXTS if pattern.search(details)), "")


def _cut(text: str, bytes_max: int) -> str:
    """Return the text, cut to `bytes_max` bytes in UTF-8. Invalid Unicode, for example in a file
    name, is replaced by question marks."""
    encoded = text.encode("utf-8", "replace")
    return encoded[:bytes_max].decode("utf-8", "ignore")


class ErrorStatusMiddleware:
    """A layer of a server that converts every error of Suture's services to a status.

    It also refuses invalid messages. gRPC itself would log a traceback for each invalid message,
    and an unknown client could fill the log.
    """

    def wrap(self, method: str, handler: Any) -> Any:
        """Return a handler that converts the errors of a method of Suture's services. The handlers
        of other services, such as the health service, are returned unchanged."""
        if not method.startswith(SERVICE_PREFIX):
            return handler
        deserialize, serialize = handler.request_deserializer, handler.response_serializer
        if handler.request_streaming:
            assert not handler.response_streaming, "no method of ours streams both ways"
            return grpc.stream_unary_rpc_method_handler(
                _guard_upload(method, handler.stream_unary), _parser(deserialize), serialize
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(method, handler.unary_stream, deserialize), None, serialize
            )
        return grpc.unary_unary_rpc_method_handler(
            _guard_unary(method, handler.unary_unary, deserialize), None, serialize
        )


class _InvalidMessage:
    """Takes the place of an invalid message in the stream of an upload."""


def _parser(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:  # a message of the method's type, or _Malformed
        try:
            return deserializer(data)
        except DecodeError:
            return _InvalidMessage()

    return parse


def _guard_unary(
    method: str, behavior: Callable[..., Any], deserialize: Callable[[bytes], Any]
) -> Callable[..., Any]:
    def guarded(data: bytes, context: grpc.ServicerContext) -> Any:
        try:
            try:
                request = deserialize(data)
            except DecodeError:
                _refuse_malformed()
            return behavior(request, context)
        except Exception as error:
            _abort(method, context, error)
            raise AssertionError("to abort always raises") from error

    return guarded


def _guard_stream(
    method: str, behavior: Callable[..., Iterable[Any]], deserialize: Callable[[bytes], Any]
) -> Callable[..., Any]:
    def rest(answers: Iterable[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from answers
        except Exception as error:
            _abort(method, context, error)
            raise AssertionError("to abort always raises") from error

    def guarded(data: bytes, context: grpc.ServicerContext) -> Iterable[Any]:
        try:
            try:
                request = deserialize(data)
            except DecodeError:
                _refuse_malformed()
            answers = behavior(request, context)
        except Exception as error:
            _abort(method, context, error)
            raise AssertionError("to abort always raises") from error
        return answers if type(answers) is tuple else rest(answers, context)

    return guarded


def _guard_upload(method: str, behavior: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        try:
            return behavior(_arriving(requests), context)
        except Exception as error:
            _abort(method, context, error)
            raise AssertionError("to abort always raises") from error

    return guarded


def _arriving(requests: Iterator[Any]) -> Iterator[Any]:
    """Yield the messages of a stream. If the stream is interrupted, raise an error that is not
    logged."""
    try:
        for request in requests:
            if type(request) is _InvalidMessage:
                _refuse_malformed()
            yield request
    except grpc.RpcError as error:
        raise UnavailableError(Code.CANCELLED, "the sender disconnected") from error


def _refuse_malformed() -> NoReturn:
    raise RefusedError(Code.MALFORMED_REQUEST, "request: not a message of this method's type")


def _abort(method: str, context: grpc.ServicerContext, error: Exception) -> None:
    """Abort the call with the status of an error. The details of an unexpected error are logged and
    not sent."""
    from grpc_status import rpc_status

    if not isinstance(error, SutureError):
        import structlog  # imported late, because a client logs nothing and then starts faster

        structlog.get_logger().error("rpc_failed", method=method, exc_info=error)
        error = RefusedError(
            Code.CONTAINER_INTERNAL_ERROR,
            "internal error",
            hint="the log of the datanode has the details",
        )
    context.abort_with_status(rpc_status.to_status(to_status(error)))
