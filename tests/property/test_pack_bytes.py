"""Rows and table of packs say where each block is, or that they are damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.store.index.packformat import (
    FOOTER_BYTES,
    PACKED_BYTES_MAX,
    PAGE_BYTES,
    PackedBlocks,
    decode_footer,
    decode_packed,
    decode_place,
    decode_table,
    encode_packed,
    encode_table,
)
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId

MEMBERS = st.dictionaries(
    st.integers(1, 2**63 - 1), st.integers(0, PACKED_BYTES_MAX), min_size=1, max_size=20
)


def packed(members: dict[int, int]) -> PackedBlocks:
    """Return blocks of these ids and lengths, side by side."""
    ids = sorted(members)
    return PackedBlocks.side_by_side(ids, [members[block_id] for block_id in ids])


def read_back(data: bytes, offset: int) -> PackedBlocks:
    """Read table and footer that follow blocks which end at `offset`, as from a file."""
    count, start, checksum = decode_footer(data[-FOOTER_BYTES:], offset + len(data))
    return decode_table(data[start - offset : -FOOTER_BYTES], count, checksum)


@given(MEMBERS)
def test_blocks_begin_at_pages_and_never_overlap(members: dict[int, int]) -> None:
    """
    Each has whole pages of its own, in the order of ids, without a page between them.
    """
    end = 0
    for block_id, place in packed(members):
        assert end == place.offset
        assert members[block_id] == place.length_bytes
        end += -(-place.length_bytes // PAGE_BYTES) * PAGE_BYTES


@given(MEMBERS, st.integers(1, 2**63 - 1))
def test_rows_and_table_give_back_what_they_were_made_of(
    members: dict[int, int], other: int
) -> None:
    """
    Both say of each block where it is, and of any other that it is not there.
    """
    blocks = packed(members)
    rows = dict(encode_packed(blocks))

    from_rows, from_table = decode_packed(rows.items()), read_back(encode_table(blocks, 0), 0)

    assert list(blocks) == list(from_rows) == list(from_table)
    for block_id, place in blocks:
        assert place == blocks.of(block_id) == decode_place(rows[block_id])
    assert (other in members) == (blocks.of(BlockId(other)) is not None)


@given(MEMBERS, st.data())
def test_a_flipped_bit_of_a_row_makes_it_no_row(
    members: dict[int, int], data: st.DataObject
) -> None:
    """
    The other rows are read all the same.
    """
    rows = dict(encode_packed(packed(members)))
    victim = data.draw(st.sampled_from(sorted(rows)))
    bit = data.draw(st.integers(0, 8 * len(rows[victim]) - 1))
    damaged = bytearray(rows[victim])
    damaged[bit // 8] ^= 1 << bit % 8
    rows[victim] = bytes(damaged)

    found = decode_packed(rows.items())

    assert decode_place(rows[victim]) is None
    assert sorted(set(members) - {victim}) == found.block_ids.tolist()


@given(MEMBERS, st.integers(0, 3), st.data())
def test_a_table_that_is_damaged_or_cut_is_never_believed(
    members: dict[int, int], page: int, data: st.DataObject
) -> None:
    """
    A flipped bit anywhere, or an end that is missing, is seen.
    """
    offset = page * PAGE_BYTES
    table = encode_table(packed(members), offset)
    assert list(packed(members)) == list(read_back(table, offset))
    bit = data.draw(st.integers(0, 8 * len(table) - 1))
    damaged = bytearray(table)
    damaged[bit // 8] ^= 1 << bit % 8

    with pytest.raises(DamagedData):
        read_back(bytes(damaged), offset)
    with pytest.raises(DamagedData):
        read_back(table[: data.draw(st.integers(0, len(table) - 1))], offset)


def test_no_blocks_are_no_rows() -> None:
    """
    Nothing is found among none.
    """
    assert [] == list(encode_packed(PackedBlocks.none())) == list(decode_packed([]))
    assert PackedBlocks.none().of(BlockId(1)) is None
    assert decode_place(b"") is None
