"""Ozone's protobuf messages for rows and tree files, as far as they are used.

The field numbers are facts of Ozone's disk format (`DatanodeClientProtocol.proto`, 2.1 and 2.2).
"""

from typing import Any, Final, TypeVar

from google.protobuf import message

from merkle.damaged import Damaged
from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, TEXT, Fields, message_classes

PACKAGE: Final = "suture.ozone.disk"
MESSAGES: Final[dict[str, Fields]] = {
    "BlockId": {
        "container_id": (1, SIGNED, False),
        "local_id": (2, SIGNED, False),
        "bcsid": (3, NUMBER, False),
        "replica_index": (4, SIGNED, False),
    },
    "KeyValue": {"key": (1, TEXT, False), "value": (2, TEXT, False)},
    "ChecksumData": {
        "type": (1, SIGNED, False),
        "bytes_per_checksum": (2, NUMBER, False),
        "checksums": (3, BYTES, True),
    },
    "ChunkInfo": {
        "name": (1, TEXT, False),
        "offset": (2, NUMBER, False),
        "length": (3, NUMBER, False),
        "checksum_data": (5, "ChecksumData", False),
        "stripe_checksum": (6, BYTES, False),
    },
    "BlockData": {
        "block_id": (1, "BlockId", False),
        "metadata": (3, "KeyValue", True),
        "chunks": (4, "ChunkInfo", True),
        "size": (5, SIGNED, False),
    },
    "ChunkTree": {
        "offset": (1, SIGNED, False),
        "length": (2, SIGNED, False),
        "checksum": (3, SIGNED, False),
        "matches": (4, BOOL, False),
    },
    "BlockTree": {
        "block_id": (1, SIGNED, False),
        "checksum": (2, SIGNED, False),
        "chunks": (3, "ChunkTree", True),
        "deleted": (4, BOOL, False),
    },
    "ContainerTree": {
        "checksum": (1, SIGNED, False),
        "blocks": (2, "BlockTree", True),
    },
    "ChecksumInfo": {
        "container_id": (1, SIGNED, False),
        "tree": (2, "ContainerTree", False),
    },
    # A block and a tree with undecoded parts: few bytes may be many messages.
    "BlockOutline": {"metadata": (3, BYTES, True), "chunks": (4, BYTES, True)},
    "TreeOutline": {"checksum": (1, SIGNED, False), "blocks": (2, BYTES, True)},
    "ChecksumInfoOutline": {"container_id": (1, SIGNED, False), "tree": (2, "TreeOutline", False)},
    "DeletedBlocks": {
        "transaction_id": (1, SIGNED, False),
        "container_id": (2, SIGNED, False),
        "local_ids": (3, SIGNED, True),
    },
}

Kind = TypeVar("Kind", bound=message.Message)

_CLASSES: Final = message_classes(PACKAGE, MESSAGES)
BLOCK_DATA: Final = _CLASSES["BlockData"]
CHUNK_INFO: Final = _CLASSES["ChunkInfo"]
BLOCK_OUTLINE: Final = _CLASSES["BlockOutline"]
CHECKSUM_INFO: Final = _CLASSES["ChecksumInfo"]
INFO_OUTLINE: Final = _CLASSES["ChecksumInfoOutline"]
BLOCK_TREE: Final = _CLASSES["BlockTree"]
DELETED_BLOCKS: Final = _CLASSES["DeletedBlocks"]


def parse(kind: Any, data: bytes) -> Any:
    """Return the message in `data`. Raise Damaged."""
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        raise Damaged(f"{len(data)} bytes are no {kind.DESCRIPTOR.name}") from error
