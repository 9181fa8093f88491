"""Requests and answers of Ozone's datanodes, as a client uses them.

The format is defined in `proto/ozone/messages/datanode.proto`.
"""

from enum import IntEnum
from typing import Any, Final

from ozone.messages import datanode_pb2, services_pb2
from ozone.messages.datanode_pb2 import Result


class DatanodeCommand(IntEnum):
    """All commands of Ozone, including those that agents do not support."""

    CREATE_CONTAINER = 1
    READ_CONTAINER = 2
    UPDATE_CONTAINER = 3
    DELETE_CONTAINER = 4
    LIST_CONTAINER = 5
    PUT_BLOCK = 6
    GET_BLOCK = 7
    DELETE_BLOCK = 8
    LIST_BLOCK = 9
    READ_CHUNK = 10
    DELETE_CHUNK = 11
    WRITE_CHUNK = 12
    LIST_CHUNK = 13
    COMPACT_CHUNK = 14
    PUT_SMALL_FILE = 15
    GET_SMALL_FILE = 16
    CLOSE_CONTAINER = 17
    GET_COMMITTED_BLOCK_LENGTH = 18
    STREAM_INIT = 19
    STREAM_WRITE = 20
    FINALIZE_BLOCK = 21
    ECHO = 22
    GET_CONTAINER_CHECKSUM_INFO = 23
    READ_BLOCK = 24
    STREAM_INIT_WITH_PUT_BLOCK = 25


XCEIVER: Final = services_pb2.DESCRIPTOR.services_by_name["XceiverClientProtocolService"]
BYTES: Final = {"send": None}  # messages are passed as bytes, not parsed
REQUEST: Final[Any] = datanode_pb2.Request
ANSWER: Final[Any] = datanode_pb2.Answer

RECOVERING: Final = 8  # state of a container that a reconstruction is filling
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
"""Ozone's names of a replica's states, by Ozone's number of the state."""


def result_name(number: Any) -> str:
    """Return the name of a result code, or its number if it is unknown."""
    try:
        return Result.Name(number)
    except ValueError:
        return f"result {number}"
