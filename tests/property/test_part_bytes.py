"""Messages that carry data are ordinary protobuf, whichever way they were put together."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from agent.store.files.blockfile import ALIGNMENT_BYTES
from agent.store.files.readqueue import address_of
from agent.transfer.parts import PADDING_TAG, blocks_part, part_with_hole, read_part
from merkle.replica import BlockId
from suture.wire.v1 import datanode_pb2 as pb

BLOCKS = st.lists(
    st.tuples(st.integers(1, 2**63 - 1), st.binary(max_size=300), st.integers(-1, 2**40)),
    max_size=5,
)


def filled(blocks: list[tuple[int, bytes, int]], data: bytes) -> tuple[bytes, int]:
    """Return a part whose hole was filled with the data, and where the hole was."""
    ids = [BlockId(block_id) for block_id, _, _ in blocks]
    part, hole = part_with_hole(
        ids, [row for _, row, _ in blocks], [s for *_, s in blocks], len(data)
    )
    hole[:] = data
    return part, address_of(hole) if data else 0


@given(blocks=BLOCKS, data=st.binary(max_size=70_000))
def test_a_part_with_a_hole_is_the_part_that_was_copied_together(
    blocks: list[tuple[int, bytes, int]], data: bytes
) -> None:
    """Only the padding differs. It has no content, and its length does not depend on the memory."""
    ids = [BlockId(block_id) for block_id, _, _ in blocks]
    rows, sizes = [row for _, row, _ in blocks], [size for *_, size in blocks]
    copied = blocks_part(ids, rows, sizes, memoryview(data))

    part, address = filled(blocks, data)

    assert 0 == address % ALIGNMENT_BYTES
    message = pb.ImportPart.FromString(part)
    assert not any(message.blocks.padding)
    message.blocks.ClearField("padding")
    assert pb.ImportPart.FromString(copied) == message


@given(blocks=BLOCKS, data=st.binary(min_size=1, max_size=70_000))
def test_data_is_found_without_copying_it(
    blocks: list[tuple[int, bytes, int]], data: bytes
) -> None:
    """The data is a view of the message itself, and the rest is what protobuf reads."""
    part, _ = filled(blocks, data)

    found = read_part(part)

    assert found.data.obj is part
    assert data == found.data
    assert [block_id for block_id, _, _ in blocks] == list(found.message.blocks.local_ids)
    assert [row for _, row, _ in blocks] == list(found.message.blocks.rows)
    assert [size for *_, size in blocks] == list(found.message.blocks.file_bytes)


@given(data=st.binary(min_size=1, max_size=500), cut=st.integers(1, 400), wrong=st.integers(1, 255))
def test_padding_that_was_tampered_with_is_read_as_protobuf_reads_it(
    data: bytes, cut: int, wrong: int
) -> None:
    """A sender may say any size: what comes of it is protobuf's answer, and no bytes of others."""
    part, _ = filled([(1, b"row", len(data))], data)
    at = part.index(PADDING_TAG) + 1
    forms = [part[:-cut], part[:at] + bytes([part[at] ^ wrong]) + part[at + 1 :]]
    for form in forms:
        try:
            wanted = pb.ImportPart.FromString(form).blocks.data
        except DecodeError:
            with pytest.raises(DecodeError):
                read_part(form)
        else:
            assert wanted == read_part(form).data
