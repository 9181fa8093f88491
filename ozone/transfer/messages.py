"""Messages of the transfer of containers between Ozone's datanodes.

upload      stream of SendContainerRequest ──► SendContainerResponse
download    CopyContainerRequestProto ──► stream of CopyContainerResponseProto
"""

from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.errors import Code, Refused
from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, Fields, message_classes

SERVICE: Final = "/hadoop.hdds.datanode.IntraDatanodeProtocolService"
UPLOAD: Final = f"{SERVICE}/upload"
DOWNLOAD: Final = f"{SERVICE}/download"


class Compression(IntEnum):
    """The compression of an archive, with Ozone's numbers."""

    NO_COMPRESSION = 1
    GZIP = 2
    LZ4 = 3
    SNAPPY = 4
    ZSTD = 5


MESSAGES: Final[dict[str, Fields]] = {
    "Upload": {
        "container_id": (1, SIGNED, False),
        "offset": (2, NUMBER, False),
        "data": (3, BYTES, False),
        "compression": (5, SIGNED, False),
        "size": (6, SIGNED, False),
    },
    "Uploaded": {},
    "Wish": {
        "container_id": (1, SIGNED, False),
        "offset": (2, NUMBER, False),
        "compression": (5, SIGNED, False),
    },
    "Part": {
        "container_id": (1, SIGNED, False),
        "offset": (2, NUMBER, False),
        "length": (3, NUMBER, False),
        "is_last": (4, BOOL, False),
        "data": (5, BYTES, False),
    },
}

_CLASSES: Final = message_classes("suture.ozone.archive", MESSAGES)
UPLOADING: Final = _CLASSES["Upload"]
WISH: Final = _CLASSES["Wish"]
PART: Final = _CLASSES["Part"]
UPLOADING_DATA, PART_DATA = (MESSAGES[name]["data"][0] for name in ("Upload", "Part"))
UPLOADED: Final[bytes] = _CLASSES["Uploaded"]().SerializeToString()


def parse_upload(data: bytes) -> Any:
    """Return the part of an archive in `data`. Raise Refused(MALFORMED_REQUEST)."""
    return _parsed(UPLOADING, "SendContainerRequest", data)


def parse_wish(data: bytes) -> Any:
    """Return the requested container. Raise Refused(MALFORMED_REQUEST)."""
    return _parsed(WISH, "CopyContainerRequestProto", data)


def parse_part(data: bytes) -> Any:
    """Return the part of an archive in a datanode's answer. Raise Refused(MALFORMED_REQUEST)."""
    return _parsed(PART, "CopyContainerResponseProto", data)


def parse_compression(number: int) -> Compression:
    """Return the compression of an archive; none if it is not given. Raise Refused."""
    try:
        return Compression(number or Compression.NO_COMPRESSION)
    except ValueError as error:
        raise Refused(Code.MALFORMED_REQUEST, f"compression {number} is unknown") from error


def _parsed(kind: Any, name: str, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(Code.MALFORMED_REQUEST, f"{len(data)} bytes that are no {name}") from error
