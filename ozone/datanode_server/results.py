"""Maps Suture's errors to Ozone's result codes. No I/O."""

from typing import Final

from ozone.messages.datanode_pb2 import Result
from suture.errors import Code, SutureError

OTHERWISE: Final = {
    Code.INELIGIBLE: Result.UNSUPPORTED_REQUEST,
    Code.UNAUTHENTICATED: Result.BLOCK_TOKEN_VERIFICATION_FAILED,
    Code.WRONG_DATANODE: Result.INVALID_ARGUMENT,
    Code.BLOCK_NOT_COMMITTED: Result.NO_SUCH_BLOCK,  # in Ozone, only committed blocks exist
    Code.OVERLAPPING_CHUNK: Result.OVERWRITE_FLAG_REQUIRED,
    Code.CHUNK_GAP: Result.CHUNK_FILE_INCONSISTENCY,
    # If an Ozone client receives this code, it continues in another container.
    Code.CONTAINER_NOT_OPEN: Result.CLOSED_CONTAINER_IO,
    # The data may be undamaged: the caller tries another replica, or retries.
    Code.BUSY: Result.IO_EXCEPTION,
    Code.CANCELLED: Result.IO_EXCEPTION,
    Code.UNAVAILABLE: Result.IO_EXCEPTION,
}
"""Ozone's result code for each of Suture's codes that Ozone does not have."""

UNHEALTHY: Final = "UNHEALTHY"


def result_of(error: SutureError) -> int:
    """Return Ozone's result code for an error."""
    if error.code is Code.CONTAINER_NOT_OPEN and error.facts.get("state") == UNHEALTHY:
        return Result.CONTAINER_UNHEALTHY
    if error.code in OTHERWISE:
        return OTHERWISE[error.code]
    name = error.code.name
    return dict(Result.items()).get(name, Result.CONTAINER_INTERNAL_ERROR)
