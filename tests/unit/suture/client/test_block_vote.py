"""Which row of a block counts, of those that several replicas have."""

import pytest

from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from suture.client.block_vote import BlockVote
from suture.client.put_metadata import SCHEME
from suture.ec.blockgroup import GROUP_LENGTH_KEY
from suture.ec.scheme import parse_scheme

ONE = BlockId(1)
RS_3_2 = parse_scheme("rs-3-2-4k")


def row(bcsid: int, *chunks: ChunkInfo, **metadata: str) -> BlockData:
    """Build a row of the block."""
    return BlockData(ONE, Bcsid(bcsid), chunks, tuple(metadata.items()))


def shard(length_bytes: int | None) -> BlockData:
    """Build the row of a shard, which says how long its group is, or does not."""
    said = {} if length_bytes is None else {GROUP_LENGTH_KEY: str(length_bytes)}
    return row(1, **said)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_row_of_the_later_commit_counts(order: tuple[int, int]) -> None:
    """The row of the later commit counts, whichever replica is read first."""
    chunk = ChunkInfo(0, 5, ChecksumType.NONE, 16 * 1024, b"")
    both, rows = (row(3, chunk), row(2)), BlockVote(7)

    for index in order:
        rows.add(both[index], 0)

    assert both[0] == rows.shown[ONE]
    assert 5 == rows.length_bytes(ONE, None, is_coded=False)


@pytest.mark.parametrize(
    ("told", "expected"),
    [((9, 9, 9, 4), 9), ((9, 9, 4, 4), 4), ((9, 9, None, None), 9), ((None, None), 0)],
)
def test_group_is_as_long_as_enough_shards_say(told: tuple[int | None, ...], expected: int) -> None:
    """A shard without a length is no vote for an empty group."""
    rows = BlockVote(7)
    for index, length_bytes in enumerate(told, 1):
        rows.add(shard(length_bytes), index)

    assert expected == rows.length_bytes(ONE, RS_3_2, is_coded=True)
    assert set(range(1, len(told) + 1)) == rows.holders[ONE]


def test_scheme_is_that_of_the_first_row_that_names_one_that_is_known() -> None:
    """A damaged name is passed over."""
    rows = BlockVote(7)
    rows.add(row(1, **{SCHEME: "xx-1"}), 1)
    assert rows.scheme() is None

    rows.add(row(2, **{SCHEME: "rs-3-2-4k"}), 2)
    assert RS_3_2 == rows.scheme()
