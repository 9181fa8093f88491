"""Requests and answers of Ozone's datanodes, as their client sees them
(`proto/ozone/messages/datanode.proto`)."""

from enum import IntEnum
from typing import Any, Final

from ozone.messages import datanode_pb2


class Command(IntEnum):
    """The commands in use: to read, and to fill shards that a reconstruction makes."""

    CREATE_CONTAINER = 1
    READ_CONTAINER = 2
    DELETE_CONTAINER = 4
    PUT_BLOCK = 6
    GET_BLOCK = 7
    LIST_BLOCK = 9
    READ_CHUNK = 10
    WRITE_CHUNK = 12
    CLOSE_CONTAINER = 17
    GET_CONTAINER_CHECKSUM_INFO = 23


REQUEST: Final[Any] = datanode_pb2.Request
ANSWER: Final[Any] = datanode_pb2.Answer

SUCCESS: Final = 1
RECOVERING: Final = 8  # of a container that a reconstruction fills
RESULTS: Final = {
    1: "SUCCESS",
    2: "UNSUPPORTED_REQUEST",
    3: "MALFORMED_REQUEST",
    4: "CONTAINER_INTERNAL_ERROR",
    7: "CONTAINER_EXISTS",
    9: "CONTAINER_NOT_FOUND",
    10: "IO_EXCEPTION",
    11: "UNABLE_TO_READ_METADATA_DB",
    12: "NO_SUCH_BLOCK",
    16: "CHECKSUM_MISMATCH",
    17: "UNABLE_TO_FIND_CHUNK",
    19: "INVALID_ARGUMENT",
    25: "UNCLOSED_CONTAINER_IO",
    28: "INVALID_CONTAINER_STATE",
    29: "DISK_OUT_OF_SPACE",
    31: "CONTAINER_METADATA_ERROR",
    33: "CONTAINER_CHECKSUM_ERROR",
    36: "CONTAINER_UNHEALTHY",
    37: "UNKNOWN_BCSID",
    38: "BCSID_MISMATCH",
    40: "CONTAINER_MISSING",
    41: "BLOCK_TOKEN_VERIFICATION_FAILED",
    43: "CHUNK_FILE_INCONSISTENCY",
    48: "CONTAINER_ID_MISMATCH",
}
"""Names of the results that one who reads, or fills a shard, can meet."""

STATES: Final = {
    1: "OPEN",
    2: "CLOSING",
    3: "QUASI_CLOSED",
    4: "CLOSED",
    5: "UNHEALTHY",
    6: "INVALID",
    7: "DELETED",
    RECOVERING: "RECOVERING",
}
"""Names of the states of a container on a datanode."""
