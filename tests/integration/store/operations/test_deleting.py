"""Deleting: a tombstone first, and nothing that is merely unknown."""

import os
from pathlib import Path

import pytest

from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.errors import Code, RefusedError
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    chunk_of,
    closed_replica,
    commit_scan,
    content,
    damage,
    metadata_tree,
    open_store,
)

ONE = ContainerId(1)


class TestBlocks:
    """Deleting blocks."""

    def test_the_root_stays_and_the_block_goes(self, store: ReplicaStore) -> None:
        """
        A replica that deleted a block and one that will are equal in their roots.
        """
        closed_replica(store)
        root = store.view(ONE).tree().root

        deleted = remove_blocks(store, ONE, [BlockId(2)])

        facts = store.replica(ONE)
        assert 1 == deleted
        assert root == store.view(ONE).tree().root
        assert [1, 3] == [block.block_id for block in store.view(ONE).blocks()]
        assert not store.paths(ONE).block_file(BlockId(2)).exists()
        assert (2, 4 * CHUNK_BYTES) == (facts.block_count, facts.used_bytes)

    def test_deleting_again_changes_nothing(self, store: ReplicaStore) -> None:
        """
        A repeated command, and one for a block that never was, are harmless.
        """
        closed_replica(store)
        remove_blocks(store, ONE, [BlockId(2)])
        before = store.replica(ONE), store.view(ONE).tombstones()

        assert 0 == remove_blocks(store, ONE, [BlockId(2), BlockId(99)])
        assert before == (store.replica(ONE), store.view(ONE).tombstones())

    def test_the_tombstone_keeps_what_was_written_not_what_was_read(
        self, store: ReplicaStore
    ) -> None:
        """
        Replicas agree on a tombstone even where one of them was damaged before the delete.
        """
        closed_replica(store)
        healthy = store.view(ONE).tree()
        expected = int(healthy.block_checksums[healthy.index_of(2)])
        without = healthy.select([1, 3])
        commit_scan(
            store,
            ONE,
            tree=without,
            findings=[],
            complete=True,
        )

        remove_blocks(store, ONE, [BlockId(2)])

        assert {2: expected} == store.view(ONE).tombstones()
        assert healthy.root == store.view(ONE).tree().root

    def test_damage_goes_with_its_block(self, store: ReplicaStore) -> None:
        """Damage of a deleted block cannot be repaired any more. Findings of other blocks stay,
        and so does the state, because only a scan shows that the rest is whole.
        """
        closed_replica(store)
        planted = [
            damage(block_id=block_id, offset=offset)
            for block_id, offset in ((1, 0), (1, CHUNK_BYTES), (3, 0))
        ]
        commit_scan(
            store,
            ONE,
            tree=store.view(ONE).tree(),
            findings=planted,
            complete=True,
        )

        first = store.free_blocks(ONE, [BlockId(1), BlockId(2)])
        left = [one.block_id for one in store.findings(ONE)], store.replica(ONE).finding_count
        last = store.free_blocks(ONE, [BlockId(3)])

        facts = store.replica(ONE)
        assert ([3], 1) == left
        assert ([], 0) == (store.findings(ONE), facts.finding_count)
        assert ReplicaState.UNHEALTHY is facts.state
        assert [False, True] == [first.was_last_damage, last.was_last_damage]

    def test_an_open_replica_keeps_its_blocks(self, store: ReplicaStore) -> None:
        """A replica that is being written is not deleted block by block."""
        store.create_container(ONE)

        with pytest.raises(RefusedError) as refusal:
            remove_blocks(store, ONE, [BlockId(2)])

        assert Code.DELETE_ON_OPEN_CONTAINER is refusal.value.code

    def test_a_tombstone_is_never_written_again(self, store: ReplicaStore) -> None:
        """A repair or a salvage does not bring a deleted block back."""
        blocks = closed_replica(store)
        data = store.view(ONE).read(BlockId(2), 0, CHUNK_BYTES)
        remove_blocks(store, ONE, [BlockId(2)])
        repair = store.repair(ONE)

        for request in (
            lambda: repair.install_chunk(BlockId(2), blocks[2].chunks[0], data),
            lambda: repair.salvage_chunk(BlockId(2), blocks[2].chunks[0]),
            lambda: repair.install_empty_block(BlockId(2)),
        ):
            with pytest.raises(RefusedError) as refusal:
                request()
            assert Code.NO_SUCH_BLOCK is refusal.value.code


class TestContainers:
    """Deleting containers."""

    def test_an_empty_closed_replica_goes_without_force(self, tmp_path: Path) -> None:
        """
        No row, no directory, and the volume passes fsck.
        """
        store = open_store(tmp_path)
        store.create_container(ONE)
        store.close_container(ONE)
        root = store.paths(ONE).root

        store.delete_container(ONE)

        assert [] == store.replicas()
        assert not root.exists()
        with pytest.raises(RefusedError) as refusal:
            store.replica(ONE)
        assert Code.CONTAINER_NOT_FOUND is refusal.value.code
        store.close()
        assert () == fsck(tmp_path / "v0").problems

    def test_an_open_one_is_refused(self, store: ReplicaStore) -> None:
        """
        A client may be writing.
        """
        store.create_container(ONE)

        with pytest.raises(RefusedError) as refusal:
            store.delete_container(ONE)

        assert Code.DELETE_ON_OPEN_CONTAINER is refusal.value.code
        assert ReplicaState.OPEN is store.replica(ONE).state

    def test_delete_of_a_container_with_rows_is_refused(self, store: ReplicaStore) -> None:
        """Its blocks must be deleted first, or the delete must be forced."""
        closed_replica(store)

        with pytest.raises(RefusedError) as refusal:
            store.delete_container(ONE)

        assert Code.DELETE_ON_NON_EMPTY_CONTAINER is refusal.value.code
        assert 3 == len(store.view(ONE).blocks())

    def test_delete_of_a_container_with_an_unknown_file_is_refused(
        self, store: ReplicaStore
    ) -> None:
        """A lost index is no proof of emptiness."""
        store.create_container(ONE)
        store.close_container(ONE)
        (store.paths(ONE).chunks / "5.block").write_bytes(b"data whose row is lost")

        with pytest.raises(RefusedError, match=r"5\.block") as refusal:
            store.delete_container(ONE)

        assert Code.DELETE_ON_NON_EMPTY_CONTAINER is refusal.value.code

    def test_container_with_empty_unknown_files_is_deleted(self, store: ReplicaStore) -> None:
        """A client that died before its first byte arrived left such a file."""
        store.create_container(ONE)
        store.close_container(ONE)
        (store.paths(ONE).chunks / "5.block").touch()

        store.delete_container(ONE)

        assert [] == store.replica_ids()

    def test_delete_of_a_container_with_a_special_file_is_refused(
        self, store: ReplicaStore
    ) -> None:
        """A pipe has no bytes to count, and an operator may have put it there."""
        store.create_container(ONE)
        store.close_container(ONE)
        os.mkfifo(store.paths(ONE).chunks / "5.block")

        with pytest.raises(RefusedError, match=r"5\.block") as refusal:
            store.delete_container(ONE)

        assert Code.DELETE_ON_NON_EMPTY_CONTAINER is refusal.value.code

    @pytest.mark.parametrize("close", [True, False])
    def test_force_deletes_everything(self, tmp_path: Path, close: bool) -> None:
        """
        Rows of every kind go with the directory.
        """
        store = open_store(tmp_path)
        if close:
            closed_replica(store)
            remove_blocks(store, ONE, [BlockId(1)])
        else:
            store.create_container(ONE)
            data = content("pending")
            store.writer(ONE).write_chunk(BlockId(9), chunk_of(data), data)

        store.delete_container(ONE, force=True)
        store.create_container(ONE)

        assert [] == store.view(ONE).blocks()
        assert {} == store.view(ONE).tombstones()
        assert 0 == store.replica(ONE).used_bytes
        store.close()
        assert () == fsck(tmp_path / "v0").problems

    def test_others_are_untouched(self, store: ReplicaStore) -> None:
        """
        Neighbours in the index and in the directory keep all they have.
        """
        for container_id in (1, 2, 3):
            closed_replica(store, container_id)
        before = [store.replica(ContainerId(container_id)) for container_id in (1, 3)]

        store.delete_container(ContainerId(2), force=True)

        assert before == store.replicas()
        assert 3 == metadata_tree(store, 3).block_count
