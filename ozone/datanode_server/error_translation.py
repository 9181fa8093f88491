"""Converts the errors of a call to gRPC statuses, and reads the messages of a client's stream."""

from collections.abc import Iterator
from types import TracebackType

import grpc
import structlog

from suture.errors import Code, SutureError, UnavailableError
from suture.wire.mapping.errors import GRPC_CODES

log = structlog.get_logger()


class StreamAborted(Exception):
    """Raised to end a stream of requests with a gRPC status.

    Ozone's clients expect a status instead of an error result in some cases.
    """

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


class StatusTranslator:
    """Context manager that converts an error to a gRPC status, and ends the call with this status.

    Callers therefore need no `except Exception`.
    """

    def __init__(self, context: grpc.ServicerContext, method: str) -> None:
        self._context = context
        self._method = method

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, StreamAborted):
            self._context.abort(error.status, str(error))
        if isinstance(error, SutureError):
            said = f"{error} ({error.hint})" if error.hint else str(error)
            self._context.abort(GRPC_CODES[error.code], said)
        log.error("rpc_failed", method=self._method, exc_info=error)
        self._context.abort(
            grpc.StatusCode.INTERNAL, "internal error: the datanode's log has the details"
        )


def arriving(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the messages of a stream. Raise UnavailableError if the sender disconnects."""
    try:
        yield from requests
    except grpc.RpcError as error:
        raise UnavailableError(Code.CANCELLED, "the sender disconnected") from error
