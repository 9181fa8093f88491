"""Messages of the transfer of containers between Ozone's datanodes.

upload      stream of SendContainerRequest ──► SendContainerResponse
download    CopyContainerRequestProto ──► stream of CopyContainerResponseProto
"""

from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from ozone.messages import archive_pb2, services_pb2
from suture.errors import Code, RefusedError

SERVICE: Final = services_pb2.DESCRIPTOR.services_by_name["IntraDatanodeProtocolService"]
BYTES: Final = {"upload": None, "download": None}  # messages are passed as bytes, not parsed


class Compression(IntEnum):
    """The compression of an archive, with Ozone's numbers."""

    NO_COMPRESSION = 1
    GZIP = 2
    LZ4 = 3
    SNAPPY = 4
    ZSTD = 5


UPLOADING: Final[Any] = archive_pb2.Upload
WISH: Final[Any] = archive_pb2.Wish
PART: Final[Any] = archive_pb2.Part
UPLOADING_DATA: Final[int] = archive_pb2.Upload.DATA_FIELD_NUMBER
PART_DATA: Final[int] = archive_pb2.Part.DATA_FIELD_NUMBER
UPLOADED: Final = archive_pb2.Uploaded().SerializeToString()


def parse_upload(data: bytes) -> Any:
    """Parse a message with a part of an archive.

    Raise RefusedError(MALFORMED_REQUEST) if it is invalid.
    """
    return _parsed(UPLOADING, "SendContainerRequest", data)


def parse_wish(data: bytes) -> Any:
    """Parse a request for a container. Raise RefusedError(MALFORMED_REQUEST) if it is invalid."""
    return _parsed(WISH, "CopyContainerRequestProto", data)


def parse_part(data: bytes) -> Any:
    """Parse an answer with a part of an archive.

    Raise RefusedError(MALFORMED_REQUEST) if it is invalid.
    """
    return _parsed(PART, "CopyContainerResponseProto", data)


def parse_compression(number: int) -> Compression:
    """Return the compression with this number, or NO_COMPRESSION if the number is 0.

    Raise RefusedError if the number is unknown.
    """
    try:
        return Compression(number or Compression.NO_COMPRESSION)
    except ValueError as error:
        raise RefusedError(Code.MALFORMED_REQUEST, f"compression {number} is unknown") from error


def _parsed(kind: Any, name: str, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise RefusedError(
            Code.MALFORMED_REQUEST, f"received {len(data)} bytes that are not a {name}"
        ) from error
