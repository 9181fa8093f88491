"""The start: finish, take back, load, or say why not. Unknown never leads to deletion."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import Code, Refused
from agent.store import blockfile
from agent.store.descriptor import descriptor_of, read_descriptor, write_descriptor
from agent.store.fsck import fsck
from agent.store.rows import (
    DescriptorEntry,
    InstallEntry,
    JournalEntry,
    TreeEntry,
    UnlinkEntry,
)
from agent.store.store import ReplicaStore
from merkle.checksum import crc32c
from merkle.codec import encode_tree
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from merkle.tree import bury
from scanner.finding import Fault
from tests.support.stores import (
    CHUNK_BYTES,
    CLUSTER,
    chunk_of,
    closed_replica,
    content,
    flip_bit,
    open_store,
    write_block,
)

ONE = ContainerId(1)
BLOCK = BlockId(2)


def journal(store: ReplicaStore, entry: JournalEntry) -> None:
    """Write a journal entry as an interrupted process would have left it."""
    store._places[ONE].index.write(lambda rows: rows.begin_work(ONE, entry))


def lose_replica_row(store: ReplicaStore, *, all_rows: bool = False) -> None:
    """Remove what the index knows of container 1."""
    index = store._places[ONE].index
    if all_rows:
        index.write(lambda rows: rows.delete_container(ONE))
    else:
        index.write(lambda rows: rows._txn.delete((1).to_bytes(8), db=rows._dbs.replicas))


def reopened(store: ReplicaStore, path: Path, volume_count: int = 1) -> ReplicaStore:
    """Stop and start the datanode."""
    store.close()
    return open_store(path, volume_count=volume_count)


def check_clean(store: ReplicaStore, path: Path) -> None:
    """Stop the datanode; its volume must pass fsck."""
    store.close()
    assert () == fsck(path / "v0", read_data=True).problems


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
    before = store.replicas(), store.blocks(ONE), store.tree(ONE)

    store = reopened(store, tmp_path)

    assert before == (store.replicas(), store.blocks(ONE), store.tree(ONE))
    assert ([], ()) == (steps(store), store.unloadable())
    store.close()


def test_what_was_being_built_or_deleted_is_removed(tmp_path: Path) -> None:
    """
    Temporary directories are emptied, whatever is in them.
    """
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

        assert chunk_of(new) == store.block(ONE, BLOCK).chunks[0]
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
        """
        One generation ahead, whole, and intended: the commit is done now.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        tree = store.tree(ONE).select([1, 3]).with_generation(2)
        journal(store, TreeEntry(2))
        store.paths(ONE).tree.write_bytes(encode_tree(tree, ONE))

        store = reopened(store, tmp_path)

        assert tree == store.tree(ONE)
        assert tree.summary() == store.replica(ONE).tree
        assert ["tree of generation 2 adopted"] == steps(store)
        check_clean(store, tmp_path)

    def test_its_tombstones_finish_their_deletes(self, tmp_path: Path) -> None:
        """
        The tree was the decision to delete: rows and bytes follow.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        tree = bury(store.tree(ONE), [2]).with_generation(2)
        journal(store, TreeEntry(2))
        store.paths(ONE).tree.write_bytes(encode_tree(tree, ONE))

        store = reopened(store, tmp_path)

        assert [1, 3] == [block.block_id for block in store.blocks(ONE)]
        assert {2} == set(store.tombstones(ONE))
        assert not store.paths(ONE).block_file(BLOCK).exists()
        check_clean(store, tmp_path)

    @pytest.mark.parametrize("generation", [1, 3])
    def test_any_other_generation_is_not_adopted(self, tmp_path: Path, generation: int) -> None:
        """
        A tree that is not the successor proves nothing; the entry ends.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        tree = store.tree(ONE)
        other = bury(tree, [2]).with_generation(generation)
        journal(store, TreeEntry(2))
        store.paths(ONE).tree.write_bytes(encode_tree(other, ONE))

        store = reopened(store, tmp_path)

        assert tree == store.tree(ONE)
        assert 3 == len(store.blocks(ONE))
        assert ["tree of generation 2 was never put in place"] == steps(store)
        store.close()

    def test_without_an_intent_nothing_is_adopted(self, tmp_path: Path) -> None:
        """
        A file that somebody put there is not a tree of ours.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        tree = store.tree(ONE)
        store.paths(ONE).tree.write_bytes(encode_tree(bury(tree, [2]).with_generation(2), ONE))

        store = reopened(store, tmp_path)

        assert tree == store.tree(ONE)
        assert [] == steps(store)
        store.close()


def test_an_interrupted_unlink_is_finished(tmp_path: Path) -> None:
    """
    Files of tombstones go, whether or not some are gone already.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    data = store.paths(ONE).block_file(BLOCK).read_bytes()
    store.delete_blocks(ONE, [BLOCK])
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
    """
    What cannot be read is neither finished nor taken back; the agent starts all the same.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    index = store._places[ONE].index
    key = (1).to_bytes(8) + b"\x04" + bytes(16)
    index.write(lambda rows: rows._txn.put(key, b"not a journal entry", db=rows._dbs.journal))

    store = reopened(store, tmp_path)

    assert "journal entry left alone" in steps(store)[0]
    assert 3 == len(store.blocks(ONE))
    store.close()
    assert ["JOURNAL_NOT_EMPTY"] == [problem.kind for problem in fsck(tmp_path / "v0").problems]


class TestStates:
    """States that no restart leaves as they are."""

    def set_state(self, store: ReplicaStore, state: ReplicaState) -> None:
        """Leave the replica in a state as an interrupted process would."""
        index = store._places[ONE].index
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
        assert 1 == len(store.blocks(ONE))
        with pytest.raises(Refused):
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


class TestLosses:
    """Rows, descriptors and directories that are gone."""

    def test_a_damaged_descriptor_does_not_hide_a_replica(self, tmp_path: Path) -> None:
        """
        The row is enough to load it; Ozone would not report it at all.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        before = store.replica(ONE)
        flip_bit(store.paths(ONE).descriptor, 30)

        store = reopened(store, tmp_path)

        assert before == store.replica(ONE)
        store.close()

    @pytest.mark.parametrize("all_rows", [True, False])
    def test_a_lost_row_makes_it_unhealthy_with_every_byte_in_place(
        self, tmp_path: Path, all_rows: bool
    ) -> None:
        """
        It is loaded from its descriptor, counts what rows are left, and cannot pass for empty.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        store.delete_blocks(ONE, [BlockId(1)])
        files = sorted(path.name for path in store.paths(ONE).chunks.iterdir())
        lose_replica_row(store, all_rows=all_rows)

        store = reopened(store, tmp_path)

        facts = store.replica(ONE)
        assert ReplicaState.UNHEALTHY is facts.state
        assert ReplicaState.QUASI_CLOSED is facts.former_state
        assert (0 if all_rows else 2) == facts.block_count
        assert not facts.is_empty
        assert files == sorted(path.name for path in store.paths(ONE).chunks.iterdir())
        assert {1} == set(store.tombstones(ONE)), "the tree file remembers tombstones"
        with pytest.raises(Refused):
            store.delete_container(ONE)
        store.close()

    def test_its_data_can_be_salvaged(self, tmp_path: Path) -> None:
        """
        With a peer's metadata nothing has to be fetched.
        """
        store = open_store(tmp_path)
        blocks = closed_replica(store)
        lose_replica_row(store, all_rows=True)
        store = reopened(store, tmp_path)

        salvaged = [
            store.repair(ONE).salvage_chunk(BlockId(block_id), chunk)
            for block_id, block in blocks.items()
            for chunk in block.chunks
        ]

        assert all(salvaged)
        assert 3 == store.replica(ONE).block_count
        check_clean_but(store, tmp_path, set())

    def test_a_creation_without_its_row_is_finished(self, tmp_path: Path) -> None:
        """
        An empty OPEN replica lost nothing: it was being created.
        """
        store = open_store(tmp_path)
        store.create_container(ONE)
        lose_replica_row(store, all_rows=True)

        store = reopened(store, tmp_path)

        assert ReplicaState.OPEN is store.replica(ONE).state
        write_block(store, 1, 1)
        check_clean(store, tmp_path)

    def test_without_row_and_descriptor_it_is_reported_and_left_alone(self, tmp_path: Path) -> None:
        """
        Its files stay, its id is taken, and the report says why it is not served.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        paths = store.paths(ONE)
        paths.descriptor.unlink()
        lose_replica_row(store, all_rows=True)

        store = reopened(store, tmp_path)

        assert [ONE] == [entry.container_id for entry in store.unloadable()]
        assert [] == store.replicas()
        assert 3 == len(list(paths.chunks.iterdir()))
        with pytest.raises(Refused) as refusal:
            store.create_container(ONE)
        assert Code.CONTAINER_EXISTS is refusal.value.code
        store.close()

    def test_a_lost_directory_is_unhealthy_and_ready_for_repair(self, tmp_path: Path) -> None:
        """
        It is not silently whole: nothing is claimed in its tree, and chunks can be installed.
        """
        store = open_store(tmp_path)
        blocks = closed_replica(store)
        shutil.rmtree(store.paths(ONE).root)

        store = reopened(store, tmp_path)
        store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[0], content((2, 0)))

        facts = store.replica(ONE)
        assert (ReplicaState.UNHEALTHY, 1, 0) == (
            facts.state,
            facts.finding_count,
            facts.data_scan_at_ms,
        )
        assert [Fault.CHUNKS_DIRECTORY_MISSING] == [
            finding.fault for finding in store.findings(ONE)
        ]
        assert 0 == store.tree(ONE).block_count
        store.close()

    def test_a_directory_at_a_wrong_place_is_reported(self, tmp_path: Path) -> None:
        """
        What somebody moved by hand is not loaded and not removed.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        root = store.paths(ONE).root
        elsewhere = root.parent.parent / "containerDir9" / "1"
        elsewhere.parent.mkdir()
        root.rename(elsewhere)

        store = reopened(store, tmp_path)

        assert "not where it belongs" in store.unloadable()[0].reason
        assert 3 == len(list((elsewhere / "chunks").iterdir()))
        store.close()


class TestDuplicates:
    """One container on two volumes."""

    @pytest.mark.parametrize("better", [0, 1])
    def test_the_better_one_is_served_and_both_are_kept(self, tmp_path: Path, better: int) -> None:
        """
        CLOSED wins, then the BCSID; the other is reported, with all its files.
        """
        stores = [open_store(tmp_path / f"dn{number}", volume_count=1) for number in range(2)]
        for number, store in enumerate(stores):
            store.create_container(ONE)
            write_block(store, 1, 1, bcsid=9 if number == better else 8)
            store.close_container(ONE)
            store.close()
        for number in range(2):
            shutil.move(tmp_path / f"dn{number}" / "v0", tmp_path / f"v{number}")

        store = open_store(tmp_path, volume_count=2)

        assert 9 == store.replica(ONE).bcsid
        assert [ONE] == [facts.container_id for facts in store.replicas()]
        assert 1 == len(store.unloadable())
        assert "another replica" in store.unloadable()[0].reason
        files = list(tmp_path.glob("v*/hdds/*/current/containerDir0/1/chunks/1.block"))
        assert 2 == len(files)
        store.close()


def check_clean_but(store: ReplicaStore, path: Path, kinds: set[str]) -> None:
    """Stop the datanode; fsck may find problems of these kinds and no other."""
    store.close()
    found = {problem.kind for problem in fsck(path / "v0", read_data=True).problems}
    assert kinds >= found, found


def test_the_bcsid_of_the_descriptor_is_only_a_note(tmp_path: Path) -> None:
    """
    A replica whose rows are lost does not claim commits that it may not have.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    paths = store.paths(ONE)
    row = store._places[ONE]
    with row.index.read() as rows:
        described = descriptor_of(ONE, replace(rows.replica(ONE), bcsid=Bcsid(900)))
    write_descriptor(paths.descriptor, described)
    lose_replica_row(store, all_rows=True)

    store = reopened(store, tmp_path)

    assert 0 == store.replica(ONE).bcsid
    assert "bcsid 900" in store.findings(ONE)[0].evidence
    store.close()
