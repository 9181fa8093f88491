"""Small blocks are cut into parts that hold as many as they may, in order, each once."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.store.operations.replica_export import spread_bytes
from agent.transfer.parts import PART_BLOCKS_MAX, PART_BYTES
from agent.transfer.pieces import SPREAD_BYTES_MAX, ExportPiece, SmallBlockBatch
from merkle.replica import BlockId

SIZES = st.one_of(
    st.integers(1, 5_000), st.integers(1, PART_BYTES), st.sampled_from([1, 4_096, PART_BYTES])
)
RUNS = st.lists(
    st.tuples(st.lists(SIZES, max_size=12), st.integers(1, 300)).map(lambda run: run[0] * run[1]),
    max_size=5,
)


def fits(sizes: list[int]) -> bool:
    """Whether one part may hold blocks of these sizes."""
    return (
        len(sizes) <= PART_BLOCKS_MAX
        and sum(sizes) <= PART_BYTES
        and sum(spread_bytes(size) for size in sizes) <= SPREAD_BYTES_MAX
    )


@given(RUNS)
def test_batches_are_full_and_miss_nothing(runs: list[list[int]]) -> None:
    batch, pieces, sizes = SmallBlockBatch(), list[ExportPiece](), list[int]()
    for run in runs:
        ids = [BlockId(len(sizes) + number) for number in range(len(run))]
        rows = [b"%d" % block_id for block_id in ids]
        pieces += batch.add(ids, rows, np.array(run, dtype=np.int64))
        sizes += run
    pieces += batch.taken()
    assert [size for piece in pieces for size in piece.file_bytes] == sizes
    assert [key for piece in pieces for key in piece.local_ids] == list(range(len(sizes)))
    rows = [row for piece in pieces for row in piece.rows]
    assert rows == [b"%d" % block_id for block_id in range(len(sizes))]
    assert all(piece.local_ids and fits(list(piece.file_bytes)) for piece in pieces)
    for before, after in pairwise(pieces):
        assert not fits([*before.file_bytes, after.file_bytes[0]])
    assert [sum(piece.file_bytes) for piece in pieces] == [piece.data_bytes for piece in pieces]
