"""The newest entries of many rows are what sorting all of them gives."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.store.index.replica_history import Changes, HistoryEntry, encode_entry, newest, together
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
    why="",
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
            (number, owner, encode_entry(replace(ENTRY, at_ms=at_ms, why=why)))
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
