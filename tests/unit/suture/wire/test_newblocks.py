"""Messages of new blocks: what is put together is an ordinary message, and what comes is judged."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from merkle.checksum import window_checksums
from merkle.replica import ChecksumType, ChunkInfo
from suture.errors import Code, RefusedError
from suture.wire.mapping import new_blocks_message
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

WINDOW_BYTES = 16_384


def new_block(local_id: int, *datas: bytes, is_whole: bool = True) -> pb.NewBlock:
    """Describe a block as its writer would."""
    chunks: list[ChunkInfo] = []
    for data in datas:
        checksums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
        offset = chunks[-1].end if chunks else 0
        chunks.append(ChunkInfo(offset, len(data), ChecksumType.CRC32C, WINDOW_BYTES, checksums))
    place = container_pb2.BlockId(container_id=7, local_id=local_id, bcsid=local_id)
    return new_blocks_message.new_block_message(
        place, chunks, is_whole=is_whole, metadata=[("key", "k")]
    )


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6))
def test_encoded_blocks_are_an_ordinary_protobuf_message(datas: list[bytes]) -> None:
    """Protobuf's own decoder reads it, and so does Suture's, which keeps the data out of the
    message.
    """
    blocks = [new_block(number, data) for number, data in enumerate(datas, 1)]

    encoded = new_blocks_message.encode(blocks, datas)

    assert pb.NewBlocks(data=b"".join(datas), blocks=blocks) == pb.NewBlocks.FromString(encoded)
    received = new_blocks_message.decode(encoded)
    assert b"" == received.message.data
    assert blocks == list(received.message.blocks)
    pieces = list(new_blocks_message.parse(received))
    assert datas == [bytes(data) for _, data in pieces]
    assert list(range(1, len(datas) + 1)) == [piece.block.block_id for piece, _ in pieces]


@given(st.binary(max_size=100), st.integers(0, 100))
def test_a_message_of_others_is_read_as_protobuf_reads_it(data: bytes, cut: int) -> None:
    """
    Fields in another order, data given twice, a message that is cut off: one meaning, or none.
    """
    rest = pb.NewBlocks(blocks=[new_block(1, b"x")]).SerializeToString()
    one = pb.NewBlocks(data=data).SerializeToString()
    other = pb.NewBlocks(data=data + b"!").SerializeToString()
    for encoded in (rest + one, one + rest, one + other + rest, (one + rest)[:cut], rest[:cut]):
        try:
            expected = pb.NewBlocks.FromString(encoded)
        except DecodeError:
            with pytest.raises(DecodeError):
                new_blocks_message.decode(encoded)
            continue
        received = new_blocks_message.decode(encoded)
        assert expected.data == bytes(received.data)
        assert list(expected.blocks) == list(received.message.blocks)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.NewBlocks(data=b"xx", blocks=[new_block(1, b"x")]), "data"),
        (pb.NewBlocks(data=b"", blocks=[new_block(1, b"x")]), "data"),
        (pb.NewBlocks(data=b"x"), "data"),
        (pb.NewBlocks(blocks=[new_block(0)]), "blocks[0].block_id.local_id"),
        (
            pb.NewBlocks(
                data=b"xy", blocks=[new_block(1, b"x", is_whole=False), new_block(2, b"y")]
            ),
            "blocks[0].is_whole",
        ),
        (pb.NewBlocks(blocks=[new_block(1)] * (new_blocks_message.BLOCKS_MAX + 1)), "blocks"),
    ],
)
def test_senseless_block_message_is_refused(message: pb.NewBlocks, field: str) -> None:
    """The refusal names the field."""
    with pytest.raises(RefusedError) as refusal:
        list(new_blocks_message.parse(new_blocks_message.decode(message.SerializeToString())))

    assert Code.MALFORMED_REQUEST is refusal.value.code
    assert field == refusal.value.facts["field"]
