"""Closing: what a replica is when nobody writes to it any more."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.index.rows import DescriptorEntry, InstallEntry
from agent.store.options import StoreOptions
from agent.store.recovery.fsck import fsck
from agent.store.replica.descriptor import read_descriptor, write_descriptor
from agent.store.replica_store import ReplicaStore
from merkle.checksum import Algorithm
from merkle.replica import Bcsid, BlockData, BlockId, ContainerId, ReplicaState
from merkle.tree_building import TreeBuilder
from suture.errors import Code, RefusedError
from tests.support.storage.stores import (
    CHUNK_BYTES,
    CLUSTER,
    chunk_of,
    closed_replica,
    content,
    open_store,
    options_of_test,
    quarantined,
    write_block,
)

ONE = ContainerId(1)


@pytest.mark.parametrize(
    ("bcsid", "force", "expected"),
    [
        (5, False, ReplicaState.CLOSED),
        (4, False, ReplicaState.CLOSED),
        (6, False, ReplicaState.QUASI_CLOSED),
        (6, True, ReplicaState.CLOSED),
    ],
)
def test_a_replica_below_the_bcsid_closes_quasi(
    store: ReplicaStore, bcsid: int, force: bool, expected: ReplicaState
) -> None:
    """A replica that missed a commit becomes QUASI_CLOSED, unless the control plane forces the
    close.
    """
    store.create_container(ONE)
    write_block(store, 1, 1, bcsid=5)

    facts = store.close_container(ONE, bcsid=bcsid, force=force)

    assert expected is facts.state
    assert expected is read_descriptor(store.paths(ONE).descriptor, ONE).state


def test_quasi_closed_becomes_closed_when_it_has_caught_up(store: ReplicaStore) -> None:
    """
    The second close needs the BCSID, or force.
    """
    store.create_container(ONE)
    write_block(store, 1, 1, bcsid=5)
    store.close_container(ONE, bcsid=6)

    still = store.close_container(ONE, bcsid=6)
    store.repair(ONE).advance_bcsid(6)
    closed = store.close_container(ONE, bcsid=6)

    assert ReplicaState.QUASI_CLOSED is still.state
    assert ReplicaState.CLOSED is closed.state


def test_forced_close_takes_the_commit_id_of_the_container(store: ReplicaStore) -> None:
    """The commits that the replica lacks were given up, or never acknowledged, as the control
    plane knows.
    """
    store.create_container(ONE)
    write_block(store, 1, 1, bcsid=5)
    short = store.close_container(ONE, bcsid=7)

    whole = store.close_container(ONE, bcsid=7, force=True)
    again = store.close_container(ONE, bcsid=9, force=True)

    assert (ReplicaState.QUASI_CLOSED, 5) == (short.state, short.bcsid)
    assert (ReplicaState.CLOSED, 7) == (whole.state, whole.bcsid)
    assert whole == again


def test_forced_close_keeps_a_higher_commit_id(store: ReplicaStore) -> None:
    """The container was closed at an earlier commit than that of the replica."""
    store.create_container(ONE)
    write_block(store, 1, 1, bcsid=5)
    store.close_container(ONE, bcsid=7)

    facts = store.close_container(ONE, bcsid=4, force=True)

    assert (ReplicaState.CLOSED, 5) == (facts.state, facts.bcsid)


def test_closing_again_changes_nothing(store: ReplicaStore) -> None:
    """
    A close command that is sent twice is harmless.
    """
    closed_replica(store)
    before = store.replica(ONE)

    assert before == store.close_container(ONE, bcsid=99)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_the_tree_is_there_when_the_close_returns(tmp_path: Path, algorithm: Algorithm) -> None:
    """
    The tree from metadata is what the fold rules say, and the report carries its summary.
    """
    store = open_store(tmp_path, options=options_of_test(algorithm=algorithm))
    blocks = closed_replica(store, block_ids=(3, 8))
    builder = TreeBuilder(algorithm)
    for block_id, block in blocks.items():
        builder.add_block(block_id)
        for chunk in block.chunks:
            builder.add_chunk(chunk.offset, chunk.length_bytes, chunk.window_checksums)

    tree = store.view(ONE).tree()

    assert builder.build(generation=1) == tree
    assert tree.summary() == store.replica(ONE).tree
    store.close()


def test_a_container_without_blocks_closes_empty(store: ReplicaStore) -> None:
    """
    Nothing was written, so it is empty, and its tree is a tree and not an absence.
    """
    store.create_container(ONE)

    facts = store.close_container(ONE)

    assert facts.is_empty
    assert facts.tree is not None
    assert 0 == facts.tree.block_count


def test_an_open_replica_is_never_called_empty(store: ReplicaStore) -> None:
    """
    A client may be about to write.
    """
    assert not store.create_container(ONE).is_empty


def test_uncommitted_bytes_go_to_quarantine_at_a_close(tmp_path: Path) -> None:
    """A closed replica holds its blocks and nothing else. The rest stays in quarantine for a
    time.
    """
    store = open_store(tmp_path)
    store.create_container(ONE)
    block = write_block(store, 1, 1, chunk_count=1)
    tail, orphan = content("tail"), content("orphan")
    store.writer(ONE).write_chunk(BlockId(1), chunk_of(tail, CHUNK_BYTES), tail)
    store.writer(ONE).write_chunk(BlockId(2), chunk_of(orphan), orphan)
    with store.paths(ONE).block_file(BlockId(2)).open("ab") as file:
        file.write(b"unacknowledged")

    facts = store.close_container(ONE, bcsid=1)

    assert (1, CHUNK_BYTES) == (facts.block_count, facts.used_bytes)
    assert [block] == store.view(ONE).blocks()
    assert {(1, CHUNK_BYTES): tail, (2, 0): orphan + b"unacknowledged"} == quarantined(tmp_path)
    store.close()
    assert () == fsck(tmp_path / "v0", read_data=True).problems


def test_empty_file_without_a_row_is_removed_at_a_close(tmp_path: Path) -> None:
    """A file is created before its bytes arrive. If they never arrive, nothing is worth keeping,
    and a container with a file that no row names could not be deleted.
    """
    store = open_store(tmp_path)
    store.create_container(ONE)
    empty = BlockData(BlockId(1), Bcsid(1), ())
    store.writer(ONE).put_block(empty)
    store.paths(ONE).block_file(BlockId(1)).touch()  # of a block that has no bytes
    orphan = content("orphan")
    store.writer(ONE).write_chunk(BlockId(2), chunk_of(orphan), orphan)
    os.truncate(store.paths(ONE).block_file(BlockId(2)), 0)  # a write that the disk lost

    store.close_container(ONE, bcsid=1)

    assert [store.paths(ONE).block_file(BlockId(1))] == list(store.paths(ONE).chunks.iterdir())
    assert {} == quarantined(tmp_path)
    store.close()
    assert () == fsck(tmp_path / "v0", read_data=True).problems


def test_the_empty_file_of_a_damaged_row_is_left_alone(store: ReplicaStore) -> None:
    """Its expected content is unknown, so all of it may be lost."""
    store.create_container(ONE)
    write_block(store, 1, 1, chunk_count=1)
    file = store.paths(ONE).block_file(BlockId(1))
    os.truncate(file, 0)
    row = bytearray(store.view(ONE).block_row(BlockId(1)) or b"")
    row[len(row) // 2] ^= 1
    index = store.volume_set.places[ONE].index
    index.write(lambda rows: rows.put_block(ONE, BlockId(1), bytes(row)))

    facts = store.close_container(ONE, bcsid=1)

    assert ReplicaState.UNHEALTHY is facts.state
    assert file.exists()


def test_a_replica_before_its_close_has_no_tree(store: ReplicaStore) -> None:
    """
    No tree is an error of its own, not an empty tree.
    """
    store.create_container(ONE)

    assert store.replica(ONE).tree is None
    for request in (lambda one: store.view(one).tree(), store.begin_scan, store.repair):
        with pytest.raises(RefusedError) as refusal:
            request(ONE)
        assert Code.UNCLOSED_CONTAINER_IO is refusal.value.code


def test_quarantine_is_purged_by_age(tmp_path: Path) -> None:
    """Quarantined bytes are kept as long as configured, and not longer."""
    now_ms = [1_000_000]
    options = StoreOptions(reserve_bytes=0, lmdb_map_bytes=64 * 1024**2, now_ms=lambda: now_ms[0])
    store = open_store(tmp_path, options=options)
    for container_id in (1, 2):
        store.create_container(ContainerId(container_id))
        data = content(container_id)
        store.writer(ContainerId(container_id)).write_chunk(BlockId(1), chunk_of(data), data)
        store.close_container(ContainerId(container_id))
        now_ms[0] += 60_000

    purged = store.volume_set.purge_quarantine(older_than_s=90)

    assert 1 == purged
    assert {(1, 0): content(2)} == quarantined(tmp_path)
    store.close()


def test_quarantined_bytes_that_the_journal_needs_are_not_purged(tmp_path: Path) -> None:
    """Age removes nothing that an interrupted repair would restore."""
    store = open_store(tmp_path)
    store.create_container(ONE)
    data = content("pending")
    store.writer(ONE).write_chunk(BlockId(2), chunk_of(data), data)
    store.close_container(ONE)
    name = next((tmp_path / "v0" / "hdds" / CLUSTER / "quarantine").glob("*.bytes")).stem
    entry = InstallEntry(BlockId(2), chunk_of(data), 0, 0, name, pending=False)
    store.volume_set.places[ONE].index.write(lambda rows: rows.begin_work(ONE, entry))

    kept = store.volume_set.purge_quarantine(older_than_s=-10)
    store.volume_set.places[ONE].index.write(lambda rows: rows.end_work(ONE, entry))
    purged = store.volume_set.purge_quarantine(older_than_s=-10)

    assert (0, 1) == (kept, purged)
    store.close()


def test_a_block_of_no_chunks_survives_the_close(store: ReplicaStore) -> None:
    """The block is in the tree, as the fold rules require."""
    store.create_container(ONE)
    store.writer(ONE).put_block(BlockData(BlockId(4), Bcsid(1)))

    facts = store.close_container(ONE, bcsid=1)

    assert facts.tree is not None
    assert 1 == facts.tree.block_count
    assert [4] == store.view(ONE).tree().block_ids.tolist()


def test_a_repeated_close_brings_the_descriptor_up_to_date(store: ReplicaStore) -> None:
    """
    The state had changed when the disk was full; the retry finishes what that left.
    """
    closed_replica(store)
    path = store.paths(ONE).descriptor
    write_descriptor(path, replace(read_descriptor(path, ONE), state=ReplicaState.OPEN))
    store.volume_set.places[ONE].index.write(lambda rows: rows.begin_work(ONE, DescriptorEntry()))

    store.close_container(ONE)

    assert ReplicaState.CLOSED is read_descriptor(path, ONE).state
    with store.volume_set.places[ONE].index.read() as rows:
        assert [] == list(rows.journal())
