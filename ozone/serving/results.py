"""Maps our errors to Ozone's result codes. Pure."""

from enum import IntEnum
from typing import Final

from agent.errors import Code, SutureError


class Result(IntEnum):
    """The result codes that an agent gives (numbers of Ozone's wire format)."""

    SUCCESS = 1
    UNSUPPORTED_REQUEST = 2
    MALFORMED_REQUEST = 3
    CONTAINER_INTERNAL_ERROR = 4
    CONTAINER_EXISTS = 7
    NO_SUCH_ALGORITHM = 8
    CONTAINER_NOT_FOUND = 9
    IO_EXCEPTION = 10
    UNABLE_TO_READ_METADATA_DB = 11
    NO_SUCH_BLOCK = 12
    OVERWRITE_FLAG_REQUIRED = 13
    INVALID_WRITE_SIZE = 15
    CHECKSUM_MISMATCH = 16
    UNABLE_TO_FIND_CHUNK = 17
    INVALID_ARGUMENT = 19
    CLOSED_CONTAINER_IO = 22
    UNCLOSED_CONTAINER_IO = 25
    DELETE_ON_OPEN_CONTAINER = 26
    INVALID_CONTAINER_STATE = 28
    DISK_OUT_OF_SPACE = 29
    CONTAINER_UNHEALTHY = 36
    UNKNOWN_BCSID = 37
    BCSID_MISMATCH = 38
    CHUNK_FILE_INCONSISTENCY = 43
    DELETE_ON_NON_EMPTY_CONTAINER = 44


OTHERWISE: Final = {
    Code.INELIGIBLE: Result.UNSUPPORTED_REQUEST,
    Code.WRONG_DATANODE: Result.INVALID_ARGUMENT,
    Code.BLOCK_NOT_COMMITTED: Result.NO_SUCH_BLOCK,  # Ozone knows committed blocks only
    Code.OVERLAPPING_CHUNK: Result.OVERWRITE_FLAG_REQUIRED,
    Code.CHUNK_GAP: Result.CHUNK_FILE_INCONSISTENCY,
    # On this code a client of Ozone continues in another container.
    Code.CONTAINER_NOT_OPEN: Result.CLOSED_CONTAINER_IO,
    # Nothing is known to be wrong with the data: the caller tries another replica, or retries.
    Code.BUSY: Result.IO_EXCEPTION,
    Code.CANCELLED: Result.IO_EXCEPTION,
    Code.UNAVAILABLE: Result.IO_EXCEPTION,
}
"""What a code of ours is called by Ozone, where it has no code of that name."""

UNHEALTHY: Final = "UNHEALTHY"


def result_of(error: SutureError) -> Result:
    """Return Ozone's result code for an error."""
    if error.code is Code.CONTAINER_NOT_OPEN and error.facts.get("state") == UNHEALTHY:
        return Result.CONTAINER_UNHEALTHY
    if error.code in OTHERWISE:
        return OTHERWISE[error.code]
    name = error.code.name
    return Result[name] if name in Result.__members__ else Result.CONTAINER_INTERNAL_ERROR
