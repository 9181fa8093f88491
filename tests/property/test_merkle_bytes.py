"""What is written comes back, what is damaged does not pass, and two witnesses agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.blockrow import decode_block, encode_block, is_intact
from merkle.checksum import Algorithm, window_checksums
from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, ChecksumType
from merkle.second_checksum import witness_checksums
from merkle.tree_building import build_from_rows
from merkle.tree_codec import decode_tree, encode_tree
from tests.support.storage.tree_strategies import ALGORITHMS, WINDOW_BYTES, blocks, trees
from tests.support.storage.trees import CONTAINER, rows_of

laws = settings(max_examples=90, deadline=None)
FLIPS = st.integers(1, 255)
POSITIONS = st.integers(0, 2**32)


@laws
@given(st.data(), ALGORITHMS)
def test_a_tree_comes_back(data: st.DataObject, algorithm: Algorithm) -> None:
    """
    Any tree, of either algorithm.
    """
    tree = data.draw(trees(algorithm))

    assert tree == decode_tree(encode_tree(tree, CONTAINER), CONTAINER)


@laws
@given(trees(), POSITIONS, FLIPS)
def test_a_changed_byte_of_a_tree_is_noticed(tree: object, position: int, flip: int) -> None:
    """
    Any byte, changed to any other.
    """
    damaged = bytearray(encode_tree(tree, CONTAINER))
    damaged[position % len(damaged)] ^= flip

    with pytest.raises(DamagedData):
        decode_tree(damaged, CONTAINER)


@laws
@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    """Bytes that are no tree are reported as damaged, and nothing else happens."""
    with pytest.raises(DamagedData):
        decode_tree(b"SUTRTREE\x01\x00\x02\x00\x00\x00\x00\x00" + data, CONTAINER)


@laws
@given(blocks())
def test_blocks_come_back(content: list[BlockData]) -> None:
    """
    Any committed block.
    """
    assert content == [decode_block(block_id, row) for block_id, row in rows_of(content)]


@laws
@given(blocks().filter(bool), POSITIONS, FLIPS)
def test_a_changed_byte_of_a_row_is_noticed(
    content: list[BlockData], position: int, flip: int
) -> None:
    """A reader of one block and a reader of a whole tree both notice it."""
    first = content[0].block_id
    damaged = bytearray(encode_block(content[0]))
    damaged[position % len(damaged)] ^= flip
    rows = [(first, bytes(damaged)), *rows_of(content[1:])]

    assert not is_intact(first, bytes(damaged))
    with pytest.raises(DamagedData):
        decode_block(first, bytes(damaged))
    with pytest.raises(DamagedData, match=f"block {first}"):
        build_from_rows(rows, {}, algorithm=Algorithm.XXH3_64)


@laws
@given(st.binary(max_size=500), st.sampled_from(list(ChecksumType)), WINDOW_BYTES)
def test_checksum_witnesses_agree(
    data: bytes, checksum_type: ChecksumType, window_bytes: int
) -> None:
    """The types, the data and the windows are arbitrary."""
    expected = window_checksums(checksum_type, window_bytes, data)

    assert expected == witness_checksums(checksum_type, window_bytes, data)
