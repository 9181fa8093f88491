"""Encodes and decodes the messages of WriteBlocks (`NewBlocks`) with few copies of the data.

Protobuf copies a field of bytes when it encodes and when it decodes. Therefore, this module writes
the data itself, followed by the other fields that protobuf has encoded, and decodes such a message
in the same way. The result is an ordinary `NewBlocks` message. If a received message has another
order of fields, it is decoded by protobuf.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.replica import CHUNKS_PER_BLOCK_MAX, BlockData, ChunkInfo, ContainerId
from suture.wire.mapping import codec
from suture.wire.mapping.varint import field_tag, read_varint, varint
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

BLOCKS_MAX: Final = 1_024  # maximum number of blocks in one message
DATA_TAG: Final = field_tag(pb.NewBlocks.DATA_FIELD_NUMBER)


@dataclass(frozen=True, slots=True)
class NewBlockPart:
    """The part of a block that one message has: its next chunks. `is_whole` is True if the block is
    complete with them."""

    container_id: ContainerId
    block: BlockData
    is_whole: bool


@dataclass(frozen=True, slots=True)
class NewBlocksMessage:
    """A decoded message. The data of its blocks is in `data`, not in `message`."""

    message: pb.NewBlocks
    data: memoryview


def encode(blocks: Sequence[pb.NewBlock], data: Sequence[bytes]) -> bytes:
    """Encode a message with the descriptions of blocks and the concatenated `data` of the
    blocks."""
    data_bytes = sum(map(len, data))
    rest = pb.NewBlocks(blocks=blocks).SerializeToString()
    return b"".join([DATA_TAG, varint(data_bytes), *data, rest])


def new_block_message(
    place: container_pb2.BlockId,
    chunks: Sequence[ChunkInfo],
    *,
    is_whole: bool,
    metadata: Sequence[tuple[str, str]],
) -> pb.NewBlock:
    """Convert the chunks of a block to a message. `is_whole` is True if the block is complete with
    them."""
    return pb.NewBlock(
        block_id=place,
        chunks=map(codec.chunk_message, chunks),
        is_whole=is_whole,
        metadata=[container_pb2.KeyValue(key=key, value=value) for key, value in metadata],
    )


def decode(encoded: bytes) -> NewBlocksMessage:
    """Decode a `NewBlocks` message. Raise protobuf's DecodeError if the message is invalid."""
    if encoded[:1] == DATA_TAG:
        view = memoryview(encoded)
        size_bytes, start = read_varint(view, 1)
        end = start + size_bytes
        if end <= len(view):
            rest = pb.NewBlocks.FromString(encoded[end:])
            if not rest.data:  # if given twice, the last one counts
                return NewBlocksMessage(rest, view[start:end])
    message = pb.NewBlocks.FromString(encoded)
    return NewBlocksMessage(message, memoryview(message.data))


def parse(received: NewBlocksMessage) -> Iterator[tuple[NewBlockPart, memoryview]]:
    """Yield a pair (part of a block, its data) for each block in a message. Raise RefusedError if
    the message is invalid."""
    blocks = received.message.blocks
    if len(blocks) > BLOCKS_MAX:
        raise codec.malformed("blocks", f"{len(blocks)} are more than {BLOCKS_MAX}")
    start = 0
    for index, message in enumerate(blocks):
        piece = _parse_piece(message, f"blocks[{index}]")
        if not piece.is_whole and index < len(blocks) - 1:
            raise codec.malformed(f"blocks[{index}].is_whole", "only the last may go on")
        end = start + sum(chunk.length_bytes for chunk in piece.block.chunks)
        if end > len(received.data):
            raise codec.malformed("data", f"{len(received.data)} bytes, {end} are described")
        yield piece, received.data[start:end]
        start = end
    if start != len(received.data):
        raise codec.malformed("data", f"{len(received.data)} bytes, {start} are described")


def _parse_piece(message: pb.NewBlock, where: str) -> NewBlockPart:
    container_id, block_id = codec.parse_block_key(message.block_id, f"{where}.block_id")
    if len(message.chunks) > CHUNKS_PER_BLOCK_MAX:
        raise codec.malformed(f"{where}.chunks", f"{len(message.chunks)} are too many")
    chunks = tuple(
        codec.parse_written_chunk(chunk, f"{where}.chunks[{index}]")
        for index, chunk in enumerate(message.chunks)
    )
    bcsid = codec.parse_bcsid(message.block_id.bcsid, f"{where}.block_id.bcsid")
    metadata = codec.parse_metadata(message.metadata, f"{where}.metadata")
    return NewBlockPart(
        container_id, BlockData(block_id, bcsid, chunks, metadata), message.is_whole
    )
