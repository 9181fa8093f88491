"""Requests and answers of Ozone's datanodes, as an agent serves them
(`proto/ozone/messages/serving.proto`)."""

from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.errors import Code, Refused
from ozone.messages import serving_pb2

METHOD: Final = "/hadoop.hdds.datanode.XceiverClientProtocolService/send"
MESSAGE_BYTES_MAX: Final = 32 * 1024**2  # Ozone's own limit, both ways
FRAME_BYTES_MAX: Final = 4 * 1024  # of an answer, around its payload


class DatanodeCommand(IntEnum):
    """All commands of Ozone, including those that agents do not carry out."""

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


REQUEST: Final[Any] = serving_pb2.Request
ANSWER: Final[Any] = serving_pb2.Answer

BODIES: Final = {
    command: name
    for command in DatanodeCommand
    if (name := command.name.lower()) in REQUEST.DESCRIPTOR.fields_by_name
}
"""The field of a request that a command has, by the command: those that an agent may carry out."""


def parse_request(data: bytes) -> Any:
    """Return the request in `data`. Raise Refused(MALFORMED_REQUEST)."""
    try:
        return REQUEST.FromString(data)
    except DecodeError as error:
        raise Refused(
            Code.MALFORMED_REQUEST, f"{len(data)} bytes that are no ContainerCommandRequestProto"
        ) from error
