"""The newest entries of many rows are what sorting all of them gives."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.store.index.replica_history import (
    Changes,
    HistoryEntry,
    count_findings,
    encode_entry,
    newest,
    together,
)
from merkle.replica import ContainerId, ReplicaState

ENTRY = HistoryEntry(
    at_ms=0,
    state=ReplicaState.CLOSED,
    generation=1,
    algorithm="",
    root=None,
    block_count=1,
    tombstone_count=0,
    finding_count=0,
    reason="",
)
ROWS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20), st.sampled_from(["", "x"])))


@given(ROWS, ROWS, st.integers(0, 21), st.integers(1, 6))
def test_newest(
    here: list[tuple[int, int, str]], there: list[tuple[int, int, str]], since_ms: int, count: int
) -> None:
    """For two volumes, the result has no entry from before the moment and leaves out none that
    is newer than a listed one. Every entry is listed or counted as left out, and damaged rows do
    not count.
    """

    def rows(told: list[tuple[int, int, str]]) -> list[tuple[bytes, bytes]]:
        made = [
            (number, owner, encode_entry(replace(ENTRY, at_ms=at_ms, reason=why)))
            for number, (owner, at_ms, why) in enumerate(told)
        ]
        keys = [(owner.to_bytes(8) + number.to_bytes(4), row) for number, owner, row in made]
        return [*keys, (bytes(12), b"damaged"), (bytes(12), b"")]

    found = together(
        [newest(rows(told), since_ms=since_ms, count=count) for told in (here, there)], count=count
    )

    wanted = sorted(at_ms for _, at_ms, _ in here + there if at_ms >= since_ms)
    assert wanted[-count:] == [entry.at_ms for _, entry in found.entries]
    assert len(wanted) == len(found.entries) + found.left_out_count
    owners = {(ContainerId(owner), at_ms) for owner, at_ms, _ in here + there}
    assert owners >= {(owner, entry.at_ms) for owner, entry in found.entries}


def test_a_volume_that_cannot_be_read_is_named() -> None:
    """The changes of the others do not hide it."""
    found = together([Changes((), unread_paths=("/data/1",)), Changes(())], count=5)

    assert ["/data/1"] == list(found.unread_paths)


COUNTS = st.lists(st.integers(0, 3), max_size=6)


@given(st.lists(COUNTS, min_size=1, max_size=3), st.integers(0, 7))
def test_findings_of_each_replica_are_counted_by_their_differences(
    histories: list[list[int]], since_ms: int
) -> None:
    """The entries of a replica are a millisecond apart. Its first one is the difference from
    none.
    """
    rows = [
        (owner.to_bytes(8) + number.to_bytes(4), encode_entry(entry))
        for owner, counts in enumerate(histories, start=1)
        for number, count in enumerate(counts, start=1)
        for entry in [replace(ENTRY, at_ms=number, finding_count=count)]
    ]

    steps = [
        after - before
        for counts in histories
        for number, (before, after) in enumerate(pairwise([0, *counts]), start=1)
        if number >= since_ms
    ]
    expected = (sum(s for s in steps if s > 0), -sum(s for s in steps if s < 0))
    assert expected == count_findings(rows, since_ms=since_ms)


def test_entry_without_an_intact_predecessor_counts_as_no_difference() -> None:
    """The predecessor is damaged or no longer kept. A damaged entry does not count, either."""

    def row(number: int, count: int) -> tuple[bytes, bytes]:
        entry = replace(ENTRY, at_ms=number, finding_count=count)
        return (1).to_bytes(8) + number.to_bytes(4), encode_entry(entry)

    def damaged(number: int, count: int) -> tuple[bytes, bytes]:
        key, whole = row(number, count)
        return key, whole[:-1] + bytes([whole[-1] ^ 1])

    assert (0, 0) == count_findings([row(5, 3)], since_ms=0)
    assert (2, 0) == count_findings([row(5, 3), row(6, 5)], since_ms=0)
    assert (0, 0) == count_findings([damaged(5, 3), row(6, 5)], since_ms=0)
    assert (0, 0) == count_findings([damaged(1, 3)], since_ms=0)
    assert (0, 1) == count_findings([row(1, 0), damaged(2, 9), row(3, 2), row(4, 1)], since_ms=0)
