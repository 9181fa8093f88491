"""Rows read side by side are what they are one by one, whatever their bytes."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.store.index import columns
from agent.store.index.columns import ReplicaColumns, decode_columns
from agent.store.index.rows import STATES, ReplicaRow, decode_replica, encode_replica, seal
from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import Bcsid, ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
U16 = st.integers(0, 2**16 - 1)
TREES = st.builds(TreeSummary, st.sampled_from(Algorithm), U64, U64, U64, U64, U64)
ROWS = st.builds(
    ReplicaRow,
    state=st.sampled_from(ReplicaState),
    former_state=st.none() | st.sampled_from(ReplicaState),
    replica_index=U16,  # what the wire takes is far below
    bcsid=U64.map(Bcsid),
    used_bytes=U64,
    block_count=U64,
    generation=U64,
    tree=st.none() | TREES,
    data_scan_at_ms=U64,
    finding_count=U32,
    contradiction_count=U32,  # more than fits is kept as the most that does
    created_at_ms=U64,
    origin_datanode_id=st.text(max_size=4),
).map(encode_replica)


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """Return a row with one byte changed or bytes cut off, under a checksum that fits or not."""
    body = bytearray(draw(ROWS))[:-4]
    at = draw(st.integers(0, len(body) - 1) | st.sampled_from([0, 1, 2, 3]))
    body[at] ^= draw(st.integers(1, 255))
    cut = bytes(body[: draw(st.sampled_from([len(body), at]))])
    return seal(cut) if draw(st.booleans()) else cut + bytes(draw(st.integers(0, 4)))


def one_by_one(rows: list[bytes]) -> tuple[list[tuple[object, ...]], list[tuple[int, str]]]:
    """Return the whole rows and what is wrong with the others, as `decode_replica` sees them."""
    whole: list[tuple[object, ...]] = []
    damaged = []
    for number, raw in enumerate(rows):
        try:
            row = decode_replica(ContainerId(number), raw)
        except DamagedData as damage:
            damaged.append((number, str(damage)))
        else:
            numbers = (row.replica_index, row.used_bytes, row.data_scan_at_ms, row.finding_count)
            whole.append((number, row.state, *numbers))
    return whole, damaged


def side_by_side(found: ReplicaColumns) -> list[tuple[object, ...]]:
    """Return columns as rows."""
    return [
        (number, STATES[state], *numbers)
        for number, state, *numbers in zip(
            found.container_ids.tolist(),
            found.states.tolist(),
            found.replica_indexes.tolist(),
            found.used_bytes.tolist(),
            found.data_scan_at_ms.tolist(),
            found.finding_counts.tolist(),
            strict=True,
        )
    ]


@settings(deadline=None)
@example(rows=[seal(encode_replica(ReplicaRow(state=ReplicaState.OPEN))[:-4] + b"\xff")])
@given(rows=st.lists(ROWS | altered() | st.binary(max_size=8), max_size=7))
def test_columns_tell_what_each_row_tells(rows: list[bytes]) -> None:
    """The same replicas, the same numbers, and the same rows are damaged for the same reason."""
    items = [(number.to_bytes(8), row) for number, row in enumerate(rows)]
    batch_count = columns.BATCH_COUNT
    columns.BATCH_COUNT = 3  # type: ignore[misc]  # several batches, also one that is full at the end
    try:
        found, damaged = decode_columns(items)
    finally:
        columns.BATCH_COUNT = batch_count  # type: ignore[misc]

    expected, expected_damaged = one_by_one(rows)
    assert expected == side_by_side(found)
    assert expected_damaged == sorted((number, str(damage)) for number, damage in damaged)
