"""Requests and answers of Ozone's datanodes, as an agent serves them.

The format is defined in `proto/ozone/messages/serving.proto`.
"""

from typing import Any, Final

from google.protobuf.message import DecodeError

from ozone.clients.datanode_messages import DatanodeCommand
from ozone.messages import serving_pb2
from suture.errors import Code, RefusedError

MESSAGE_BYTES_MAX: Final = 32 * 1024**2  # Ozone's own limit, for requests and answers
FRAME_BYTES_MAX: Final = 4 * 1024  # bytes of an answer around its payload

REQUEST: Final[Any] = serving_pb2.Request
ANSWER: Final[Any] = serving_pb2.Answer

BODIES: Final = {
    command: name
    for command in DatanodeCommand
    if (name := command.name.lower()) in REQUEST.DESCRIPTOR.fields_by_name
}
"""For each command that an agent supports, the name of its request field."""


def parse_request(data: bytes) -> Any:
    """Parse a request. Raise RefusedError(MALFORMED_REQUEST) if it is invalid."""
    try:
        return REQUEST.FromString(data)
    except DecodeError as error:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"received {len(data)} bytes that are not a ContainerCommandRequestProto",
        ) from error
