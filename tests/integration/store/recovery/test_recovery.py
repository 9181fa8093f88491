"""The start: finish, take back, load, or say why not. Unknown never leads to deletion."""

from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from agent.salvage import offline_volumes
from agent.store.files import blockfile
from agent.store.index.rows import (
    DescriptorEntry,
    InstallEntry,
    JournalEntry,
    TreeEntry,
    UnlinkEntry,
)
from agent.store.recovery.fsck import fsck
from agent.store.replica.descriptor import read_descriptor, write_descriptor
from agent.store.replica_store import ReplicaStore
from merkle.checksum import crc32c
from merkle.replica import BlockId, ContainerId, ReplicaState
from merkle.tree_codec import encode_tree
from suture.errors import RefusedError
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    CLUSTER,
    check_clean,
    chunk_of,
    closed_replica,
    content,
    open_store,
    reopened,
    write_block,
)
from tests.support.storage.tree_model import bury

ONE = ContainerId(1)
BLOCK = BlockId(2)


def journal(store: ReplicaStore, entry: JournalEntry) -> None:
    """Write a journal entry as an interrupted process would have left it."""
    store.volume_set.places[ONE].index.write(lambda rows: rows.begin_work(ONE, entry))


def steps(store: ReplicaStore) -> list[str]:
    """What the start says that it did."""
    return [step.what for step in store.recovery.steps]


def test_a_clean_stop_needs_no_recovery(tmp_path: Path) -> None:
    """
    Facts, blocks and trees are what they were; the start did nothing.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    store.create_container(ContainerId(2))
    before = store.replicas(), store.view(ONE).blocks(), store.view(ONE).tree()

    store = reopened(store, tmp_path)

    assert before == (store.replicas(), store.view(ONE).blocks(), store.view(ONE).tree())
    assert ([], ()) == (steps(store), store.unloadable())
    store.close()


def test_a_replica_that_a_newer_agent_wrote_is_not_taken_for_damaged(tmp_path: Path) -> None:
    """After a downgrade the row has a valid checksum and a newer version. A row made from the
    descriptor would lack facts, so the volume is left as it is.
    """
    store = open_store(tmp_path, volume_count=2)
    for container_id in (1, 2):
        closed_replica(store, container_id, block_ids=(1,))
    [layout] = {store.volume_set.places[ONE].layout}
    index = layout.cluster / "db"
    store.close()
    newer = rewritten_by_newer(index)
    (layout.importing / "left").mkdir(parents=True)

    store = open_store(tmp_path, volume_count=2)

    [failed] = [volume for volume in store.volumes() if volume.failed]
    served = [facts.container_id for facts in store.replicas()]
    store.close()
    assert layout.volume == failed.path
    assert "the row of container 1 has version 2, this agent supports 1" in failed.error
    assert [2] == served
    assert newer == replica_row(index)
    assert (layout.importing / "left").is_dir()


def test_neither_fsck_nor_salvage_takes_what_a_newer_agent_wrote_for_damaged(
    tmp_path: Path,
) -> None:
    """
    Both say which agent can read the volume.
    """
    store = open_store(tmp_path)
    closed_replica(store, 1, block_ids=(1,))
    layout = store.volume_set.places[ONE].layout
    store.close()
    rewritten_by_newer(layout.cluster / "db")
    said = "the row of container 1 has version 2, this agent supports 1"
    unreadable: dict[str, str] = {}

    with pytest.raises(RefusedError, match=said) as refused:
        fsck(layout.volume)
    with offline_volumes.opened([layout.volume], unreadable) as volumes:
        assert () == volumes

    assert "start the agent version that wrote the volume" == refused.value.hint
    assert [said in why for why in unreadable.values()] == [True]


def test_a_row_whose_version_is_damaged_costs_no_other(tmp_path: Path) -> None:
    """Without a valid checksum it is not the row of a newer agent, so the replica is adopted."""
    store = open_store(tmp_path)
    for container_id in (1, 2):
        closed_replica(store, container_id, block_ids=(1,))
    index = store.volume_set.places[ONE].layout.cluster / "db"
    store.close()
    put_row(index, b"\2" + replica_row(index)[1:])

    store = open_store(tmp_path)

    served = [facts.container_id for facts in store.replicas()]
    store.close()
    assert [1, 2] == sorted(served)


def replica_row(index: Path) -> bytes:
    """Return the row of the replica of container 1, as it lies in the index."""
    with (
        lmdb.open(str(index), max_dbs=16, readonly=True) as environment,
        environment.begin() as txn,
    ):
        row = txn.get(bytes(7) + b"\1", db=environment.open_db(b"replicas", txn, create=False))
    assert row is not None
    return bytes(row)


def rewritten_by_newer(index: Path) -> bytes:
    """Write that row as version 2 has it, with one number more; return it."""
    row = replica_row(index)
    body = b"\2" + row[1:100] + (77).to_bytes(8) + row[100:-4]
    newer = body + crc32c(body).to_bytes(4)
    put_row(index, newer)
    return newer


def put_row(index: Path, row: bytes) -> None:
    """Write the row of the replica of container 1 behind the store's back."""
    with lmdb.open(str(index), max_dbs=16) as environment, environment.begin(write=True) as txn:
        txn.put(bytes(7) + b"\1", row, db=environment.open_db(b"replicas", txn, create=False))


def test_temporary_directories_are_emptied_at_a_start(tmp_path: Path) -> None:
    """Their content does not matter."""
    store = open_store(tmp_path)
    temporary = tmp_path / "v0" / "hdds" / CLUSTER / "tmp"
    (temporary / "importing" / "7" / "chunks").mkdir(parents=True)
    (temporary / "importing" / "7" / "chunks" / "1.block").write_bytes(b"x")
    (temporary / "deleting" / "file").write_bytes(b"x")

    store = reopened(store, tmp_path)

    assert [] == [path for path in temporary.rglob("*") if path.parent != temporary]
    store.close()


class TestInterruptedWrites:
    """Install entries in the journal."""

    def entry(self, store: ReplicaStore, new: bytes, quarantine: str = "") -> InstallEntry:
        """The journal entry of a repair of block 2's first chunk."""
        return InstallEntry(
            block_id=BLOCK,
            chunk=chunk_of(new),
            data_checksum=crc32c(new),
            old_length_bytes=blockfile.size_bytes(store.paths(ONE).block_file(BLOCK)),
            quarantine=quarantine,
            pending=False,
        )

    def test_bytes_that_arrived_are_kept(self, tmp_path: Path) -> None:
        """
        The write was whole: the row is recorded, the entry ends.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        new = content("new")
        journal(store, self.entry(store, new))
        blockfile.overwrite(store.paths(ONE).block_file(BLOCK), new, 0)

        store = reopened(store, tmp_path)

        assert chunk_of(new) == store.view(ONE).block(BLOCK).chunks[0]
        assert ["block 2, chunk at 0: interrupted write finished"] == steps(store)
        check_clean(store, tmp_path)

    def test_bytes_that_did_not_arrive_whole_are_taken_back(self, tmp_path: Path) -> None:
        """
        The old bytes come back from quarantine, to the last one.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        path = store.paths(ONE).block_file(BLOCK)
        old = path.read_bytes()
        new = content("new")
        quarantined = tmp_path / "v0" / "hdds" / CLUSTER / "quarantine" / "1-2-0-5.bytes"
        quarantined.write_bytes(old[:CHUNK_BYTES])
        journal(store, self.entry(store, new, "1-2-0-5"))
        blockfile.overwrite(path, new[:777], 0)

        store = reopened(store, tmp_path)

        assert old == path.read_bytes()
        assert ["block 2, chunk at 0: interrupted write taken back"] == steps(store)
        check_clean(store, tmp_path)

    def test_a_file_that_was_not_there_is_not_there_again(self, tmp_path: Path) -> None:
        """
        Half of a first chunk is no block.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        new = content("new")
        entry = replace(self.entry(store, new), block_id=BlockId(9), old_length_bytes=-1)
        journal(store, entry)
        store.paths(ONE).block_file(BlockId(9)).write_bytes(new[:100])

        store = reopened(store, tmp_path)

        assert not store.paths(ONE).block_file(BlockId(9)).exists()
        check_clean(store, tmp_path)

    def test_a_file_that_grew_is_as_long_as_before(self, tmp_path: Path) -> None:
        """
        A chunk that was to be appended and did not arrive whole leaves no tail.
        """
        store = open_store(tmp_path)
        blocks = closed_replica(store)
        new = content("new")
        entry = replace(self.entry(store, new), chunk=chunk_of(new, blocks[2].length_bytes))
        journal(store, entry)
        path = store.paths(ONE).block_file(BLOCK)
        old = path.read_bytes()
        path.write_bytes(old + new[:100])

        store = reopened(store, tmp_path)

        assert old == path.read_bytes()
        check_clean(store, tmp_path)


class TestInterruptedTrees:
    """Tree entries in the journal."""

    def test_a_tree_in_place_is_adopted(self, tmp_path: Path) -> None:
        """The tree is one generation ahead, whole, and intended, so the commit is completed."""
        store = open_store(tmp_path)
        closed_replica(store)
        tree = store.view(ONE).tree().select([1, 3]).with_generation(2)
        journal(store, TreeEntry(2))
        store.paths(ONE).tree.write_bytes(encode_tree(tree, ONE))

        store = reopened(store, tmp_path)

        assert tree == store.view(ONE).tree()
        assert tree.summary() == store.replica(ONE).tree
        assert ["tree of generation 2 adopted"] == steps(store)
        check_clean(store, tmp_path)

    def test_tombstones_of_an_interrupted_tree_finish_their_deletes(self, tmp_path: Path) -> None:
        """The tree was the decision to delete, so rows and bytes are deleted."""
        store = open_store(tmp_path)
        closed_replica(store)
        tree = bury(store.view(ONE).tree(), [2]).with_generation(2)
        journal(store, TreeEntry(2))
        store.paths(ONE).tree.write_bytes(encode_tree(tree, ONE))

        store = reopened(store, tmp_path)

        assert [1, 3] == [block.block_id for block in store.view(ONE).blocks()]
        assert {2} == set(store.view(ONE).tombstones())
        assert not store.paths(ONE).block_file(BLOCK).exists()
        check_clean(store, tmp_path)

    @pytest.mark.parametrize("generation", [1, 3])
    def test_any_other_generation_is_not_adopted(self, tmp_path: Path, generation: int) -> None:
        """
        A tree that is not the successor proves nothing; the entry ends.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        tree = store.view(ONE).tree()
        other = bury(tree, [2]).with_generation(generation)
        journal(store, TreeEntry(2))
        store.paths(ONE).tree.write_bytes(encode_tree(other, ONE))

        store = reopened(store, tmp_path)

        assert tree == store.view(ONE).tree()
        assert 3 == len(store.view(ONE).blocks())
        assert ["tree of generation 2 was never put in place"] == steps(store)
        store.close()

    def test_without_an_intent_nothing_is_adopted(self, tmp_path: Path) -> None:
        """A foreign file is not the agent's tree."""
        store = open_store(tmp_path)
        closed_replica(store)
        tree = store.view(ONE).tree()
        store.paths(ONE).tree.write_bytes(encode_tree(bury(tree, [2]).with_generation(2), ONE))

        store = reopened(store, tmp_path)

        assert tree == store.view(ONE).tree()
        assert [] == steps(store)
        store.close()


def test_an_interrupted_unlink_is_finished(tmp_path: Path) -> None:
    """
    Files of tombstones go, whether or not some are gone already.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    data = store.paths(ONE).block_file(BLOCK).read_bytes()
    remove_blocks(store, ONE, [BLOCK])
    store.paths(ONE).block_file(BLOCK).write_bytes(data)
    journal(store, UnlinkEntry((BLOCK, BlockId(77))))

    store = reopened(store, tmp_path)

    assert ["unlinked 2 deleted blocks"] == steps(store)
    check_clean(store, tmp_path)


def test_a_descriptor_that_lags_is_written_anew(tmp_path: Path) -> None:
    """
    The state in the index is the state.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    path = store.paths(ONE).descriptor
    write_descriptor(path, replace(read_descriptor(path, ONE), state=ReplicaState.OPEN))
    journal(store, DescriptorEntry())

    store = reopened(store, tmp_path)

    assert ReplicaState.CLOSED is read_descriptor(path, ONE).state
    check_clean(store, tmp_path)


def test_a_damaged_journal_entry_is_left_alone_and_said(tmp_path: Path) -> None:
    """An unreadable entry is neither finished nor rolled back, and the agent starts."""
    store = open_store(tmp_path)
    closed_replica(store)
    index = store.volume_set.places[ONE].index
    key = (1).to_bytes(8) + b"\x04" + bytes(16)
    index.write(lambda rows: rows._txn.put(key, b"not a journal entry", db=rows._dbs.journal))

    store = reopened(store, tmp_path)

    assert "journal entry left alone" in steps(store)[0]
    assert 3 == len(store.view(ONE).blocks())
    store.close()
    assert ["JOURNAL_NOT_EMPTY"] == [problem.kind for problem in fsck(tmp_path / "v0").problems]


class TestStates:
    """States that no restart leaves as they are."""

    def set_state(self, store: ReplicaStore, state: ReplicaState) -> None:
        """Leave the replica in a state as an interrupted process would."""
        index = store.volume_set.places[ONE].index
        index.write(lambda rows: rows.put_replica(ONE, replace(rows.replica(ONE), state=state)))

    def test_a_delete_that_began_is_finished(self, tmp_path: Path) -> None:
        """
        From the state alone, with the directory still in place.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        self.set_state(store, ReplicaState.DELETED)

        store = reopened(store, tmp_path)

        assert [] == store.replicas()
        assert ["delete finished"] == steps(store)
        check_clean(store, tmp_path)

    def test_an_unfinished_copy_is_deleted(self, tmp_path: Path) -> None:
        """
        RECOVERING with index 0 is a copy that never became a replica.
        """
        store = open_store(tmp_path)
        store.create_container(ONE, state=ReplicaState.RECOVERING)
        write_block(store, 1, 1)

        store = reopened(store, tmp_path)

        assert [] == store.replicas()
        check_clean(store, tmp_path)

    def test_an_unfinished_reconstruction_is_unhealthy(self, tmp_path: Path) -> None:
        """
        With an index it is kept, not written any more, and never heals by itself.
        """
        store = open_store(tmp_path)
        store.create_container(ONE, replica_index=4, state=ReplicaState.RECOVERING)
        write_block(store, 1, 1)

        store = reopened(store, tmp_path)

        facts = store.replica(ONE)
        assert (ReplicaState.UNHEALTHY, None) == (facts.state, facts.former_state)
        assert 1 == len(store.view(ONE).blocks())
        with pytest.raises(RefusedError):
            write_block(store, 1, 2)
        check_clean(store, tmp_path)

    def test_a_close_that_began_can_be_repeated(self, tmp_path: Path) -> None:
        """
        CLOSING stays CLOSING until the control plane asks again.
        """
        store = open_store(tmp_path)
        store.create_container(ONE)
        write_block(store, 1, 1)
        self.set_state(store, ReplicaState.CLOSING)

        store = reopened(store, tmp_path)
        closing = store.replica(ONE).state

        assert ReplicaState.CLOSING is closing
        assert ReplicaState.CLOSED is store.close_container(ONE, bcsid=1).state
        check_clean(store, tmp_path)
