"""Encodes and decodes the messages of a read of a block or chunk, with few copies of the data.

`ReadBlockResponse` and `ReadChunkResponse` have the same fields.

Protobuf copies a field of bytes twice when it encodes a message, and twice when it decodes one.
Therefore, this module encodes the other fields with protobuf and appends the data, and decodes such
a message itself. The result is an ordinary message. If a received message has another order of
fields, it is decoded by protobuf.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from suture.wire.mapping.varint import field_tag, read_varint, varint
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

CHUNK_TAG: Final = field_tag(pb.ReadBlockResponse.CHUNK_FIELD_NUMBER)
DATA_TAG: Final = field_tag(pb.ReadBlockResponse.DATA_FIELD_NUMBER)

assert [(one.number, one.name) for one in pb.ReadChunkResponse.DESCRIPTOR.fields] == [
    (one.number, one.name) for one in pb.ReadBlockResponse.DESCRIPTOR.fields
]

Data: TypeAlias = "bytes | memoryview"  # data of a block; a view of its message


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """A piece of a chunk's data. `chunk` describes the chunk in its first piece, and is None in the
    others."""

    chunk: container_pb2.ChunkInfo | None
    data: Data


def encode_piece(piece: BlockPiece) -> bytes:
    """Return a piece as an encoded `ReadBlockResponse` or `ReadChunkResponse`."""
    head = DATA_TAG + varint(len(piece.data))
    if piece.chunk is not None:
        described = piece.chunk.SerializeToString()
        head = b"".join([CHUNK_TAG, varint(len(described)), described, head])
    return b"".join([head, piece.data])


def decode_piece(encoded: bytes) -> BlockPiece:
    """Decode a `ReadBlockResponse` message. Raise protobuf's DecodeError if the message is
    invalid."""
    view = memoryview(encoded)
    chunk, start = None, 0
    if encoded[:1] == CHUNK_TAG:
        size_bytes, begin = read_varint(view, 1)
        start = begin + size_bytes
        chunk = container_pb2.ChunkInfo.FromString(encoded[begin:start])
    if encoded[start : start + 1] == DATA_TAG:
        size_bytes, begin = read_varint(view, start + 1)
        if begin + size_bytes == len(view):
            return BlockPiece(chunk, view[begin:])
    message = pb.ReadBlockResponse.FromString(encoded)
    return BlockPiece(message.chunk if message.HasField("chunk") else None, message.data)
