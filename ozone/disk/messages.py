"""Ozone's protobuf messages, as far as they are read here: what a row and a tree file hold.

The field numbers are facts of Ozone's disk format (`DatanodeClientProtocol.proto`, 2.1 and 2.2).
Everything is optional here, so that what is absent can be told from what is zero; fields that are
not listed are passed over. protobuf's own parser reads the bytes, whatever they are.
"""

from typing import Any, Final, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from merkle.damaged import Damaged

PACKAGE: Final = "suture.ozone.disk"
TEXT, BYTES, NUMBER, SIGNED, BOOL = "TYPE_STRING", "TYPE_BYTES", "TYPE_UINT64", "TYPE_INT64", "TYPE_BOOL"  # fmt: skip  # noqa: E501

# message -> field -> (number, type or message, is repeated)
Fields = dict[str, tuple[int, str, bool]]
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
    "DeletedBlocks": {
        "transaction_id": (1, SIGNED, False),
        "container_id": (2, SIGNED, False),
        "local_ids": (3, SIGNED, True),
    },
}

Kind = TypeVar("Kind", bound=message.Message)


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="suture/ozone/disk.proto", package=PACKAGE, syntax="proto2"
    )
    for name, fields in MESSAGES.items():
        declared = file.message_type.add(name=name)
        for field, (number, kind, is_repeated) in fields.items():
            item = declared.field.add(name=field, number=number)
            item.label = item.LABEL_REPEATED if is_repeated else item.LABEL_OPTIONAL
            if kind in MESSAGES:
                item.type, item.type_name = item.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                item.type = getattr(item, kind)
    return file


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def message_class(name: str) -> Any:
    """Return the class of one of MESSAGES."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


BLOCK_DATA: Final = message_class("BlockData")
CHECKSUM_INFO: Final = message_class("ChecksumInfo")
DELETED_BLOCKS: Final = message_class("DeletedBlocks")


def parse(kind: Any, data: bytes) -> Any:
    """Return the message that `data` holds. Raises Damaged."""
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        raise Damaged(f"{len(data)} bytes are no {kind.DESCRIPTOR.name}") from error
