"""Messages with which Ozone's datanodes send each other containers.

upload    stream of SendContainerRequest ──► SendContainerResponse
"""

from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.errors import Code, Refused
from ozone.declaration import BYTES, NUMBER, SIGNED, Fields, message_classes

SERVICE: Final = "/hadoop.hdds.datanode.IntraDatanodeProtocolService"
UPLOAD: Final = f"{SERVICE}/upload"


class Compression(IntEnum):
    """How an archive is compressed, by Ozone's numbers."""

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
}

_CLASSES: Final = message_classes("suture.ozone.archive", MESSAGES)
_UPLOAD: Final = _CLASSES["Upload"]
UPLOADED: Final[bytes] = _CLASSES["Uploaded"]().SerializeToString()


def parse_upload(data: bytes) -> Any:
    """Return the part of an archive that `data` holds. Raise Refused(MALFORMED_REQUEST)."""
    try:
        return _UPLOAD.FromString(data)
    except DecodeError as error:
        raise Refused(
            Code.MALFORMED_REQUEST, f"{len(data)} bytes that are no SendContainerRequest"
        ) from error
