"""What a replica was, and why: told by whoever changes it, bounded, and never made up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.index.replica_history import KEPT_COUNT, decode_entry, encode_entry
from agent.store.index.rows import ReplicaRow, seal
from agent.store.index.transactions import IndexChange
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId, ReplicaState
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import (
    CHUNK_BYTES,
    CONTAINER,
    StoredReplica,
    noise,
    opened,
)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store whose container 1 is closed and whole, with three blocks."""
    yield from opened(tmp_path)


def told(replica: StoredReplica) -> list[tuple[ReplicaState, str]]:
    """Return state and reason of every entry, the oldest first."""
    return [(entry.state, entry.reason) for entry in replica.store.view(CONTAINER).history()]


def repaired(replica: StoredReplica, block_id: int) -> None:
    """Put the first chunk of a block back, as reconcile does with a peer's."""
    chunk = replica.store.view(CONTAINER).block(BlockId(block_id)).chunks[0]
    data = noise(CHUNK_BYTES, block_id * 1_000)
    replica.store.repair(CONTAINER).install_chunk(BlockId(block_id), chunk, data)


def test_damage_and_its_repair_are_told(replica: StoredReplica) -> None:
    """
    Closed, damaged, whole again: three entries, the first and the last with the same root.
    """
    replica.flip(2, 10)
    replica.scan()
    repaired(replica, 2)
    replica.scan()

    assert [
        (ReplicaState.CLOSED, "closed with 3 blocks"),
        (ReplicaState.UNHEALTHY, "damaged: 1 CHUNK_CHECKSUM"),
        (ReplicaState.CLOSED, "repaired; a whole read found no damage"),
    ] == told(replica)
    first, second, third = replica.store.view(CONTAINER).history()
    assert first.root == third.root == replica.store.view(CONTAINER).tree().root
    assert first.root != second.root
    assert first.at_ms <= second.at_ms <= third.at_ms


def test_a_scan_that_finds_nothing_new_is_no_entry(replica: StoredReplica) -> None:
    """
    Another generation of the same tree is no change.
    """
    replica.scan()
    replica.scan()

    assert 1 == len(told(replica))


def test_deleted_blocks_are_told(replica: StoredReplica) -> None:
    """
    The root stays when blocks are deleted; the tombstones are the change.
    """
    remove_blocks(replica.store, CONTAINER, [BlockId(1), BlockId(3)])

    first, second = replica.store.view(CONTAINER).history()
    assert first.root == second.root
    assert (2, "2 blocks deleted") == (second.tombstone_count, second.reason)


def test_history_survives_a_restart_and_ends_with_the_replica(replica: StoredReplica) -> None:
    """The history is on the disk. A container that is deleted and created again starts with an
    empty one.
    """
    replica.store.close()
    replica.reopen()
    assert 1 == len(told(replica))

    replica.store.delete_container(CONTAINER, force=True)
    replica.create(blocks=1)

    assert [(ReplicaState.CLOSED, "closed with 1 block")] == told(replica)


def test_only_the_newest_entries_are_kept(replica: StoredReplica) -> None:
    """
    A replica that flaps for years fills no index; its neighbour loses nothing.
    """
    replica.create(ContainerId(2), blocks=1)
    index = replica.store.volume_set.places[CONTAINER].index
    for number in range(KEPT_COUNT + 10):
        state = (ReplicaState.UNHEALTHY, ReplicaState.CLOSED)[number % 2]

        def change(rows: IndexChange, state: ReplicaState = state) -> None:
            tree = rows.replica(CONTAINER).tree
            rows.put_replica(CONTAINER, ReplicaRow(state=state, tree=tree))

        index.write(change)

    entries = replica.store.view(CONTAINER).history()
    assert KEPT_COUNT == len(entries)
    assert "closed with 3 blocks" not in {entry.reason for entry in entries}
    assert 1 == len(replica.store.view(ContainerId(2)).history())


def test_a_damaged_entry_is_passed_over(replica: StoredReplica) -> None:
    """An entry with a wrong checksum or another version is ignored."""
    (entry,) = replica.store.view(CONTAINER).history()
    row = encode_entry(entry)

    assert entry == decode_entry(CONTAINER, row)
    for damaged in (row[:-1] + b"\0", row[4:], seal(b'{"version":2}')):
        with pytest.raises(DamagedData):
            decode_entry(CONTAINER, damaged)


def test_recent_changes_of_all_replicas_are_listed(replica: StoredReplica) -> None:
    """The list has the newest entries since a moment, oldest first, and the number of entries
    left out.
    """
    replica.flip(2, 10)
    replica.scan()
    repaired(replica, 2)
    replica.scan()
    closed, damaged, healed = replica.store.view(CONTAINER).history()

    everything = replica.store.changes(0, count=10)
    newest = replica.store.changes(0, count=2)
    late = replica.store.changes(healed.at_ms + 1, count=10)

    assert [(CONTAINER, entry) for entry in (closed, damaged, healed)] == list(everything.entries)
    assert [(CONTAINER, damaged), (CONTAINER, healed)] == list(newest.entries)
    assert (0, 1, 0) == (everything.left_out_count, newest.left_out_count, late.left_out_count)
    assert [] == list(late.entries)
