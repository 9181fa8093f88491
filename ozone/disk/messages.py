"""Ozone's protobuf messages for rows and tree files (`proto/ozone/messages/disk.proto`)."""

from typing import Any, Final, TypeVar

from google.protobuf import message

from merkle.damaged_data import DamagedData
from ozone.messages import disk_pb2

Kind = TypeVar("Kind", bound=message.Message)

BLOCK_DATA: Final[Any] = disk_pb2.BlockData
CHUNK_INFO: Final[Any] = disk_pb2.ChunkInfo
BLOCK_OUTLINE: Final[Any] = disk_pb2.BlockOutline
CHECKSUM_INFO: Final[Any] = disk_pb2.ChecksumInfo
INFO_OUTLINE: Final[Any] = disk_pb2.ChecksumInfoOutline
BLOCK_TREE: Final[Any] = disk_pb2.BlockTree
DELETED_BLOCKS: Final[Any] = disk_pb2.DeletedBlocks


def parse(kind: Any, data: bytes) -> Any:
    """Parse `data` as a protobuf message of type `kind`. Raise DamagedData if `data` is invalid."""
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        raise DamagedData(f"{len(data)} bytes are no {kind.DESCRIPTOR.name}") from error
