"""A start on what is left: rows, descriptors, directories and whole replicas that are gone."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.replica.descriptor import descriptor_of, write_descriptor
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from scanner.finding import DamageFault
from suture.errors import Code, RefusedError
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    check_clean,
    closed_replica,
    content,
    flip_bit,
    lose_replica_row,
    open_store,
    reopened,
    write_block,
)

ONE = ContainerId(1)
BLOCK = BlockId(2)


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
        """The replica is loaded from its descriptor, counts the remaining rows, and cannot pass
        for empty.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        remove_blocks(store, ONE, [BlockId(1)])
        files = sorted(path.name for path in store.paths(ONE).chunks.iterdir())
        lose_replica_row(store, all_rows=all_rows)

        store = reopened(store, tmp_path)

        facts = store.replica(ONE)
        assert ReplicaState.UNHEALTHY is facts.state
        assert ReplicaState.QUASI_CLOSED is facts.former_state
        assert (0 if all_rows else 2) == facts.block_count
        assert not facts.is_empty
        assert files == sorted(path.name for path in store.paths(ONE).chunks.iterdir())
        assert {1} == set(store.view(ONE).tombstones()), "the tree file remembers tombstones"
        with pytest.raises(RefusedError):
            store.delete_container(ONE)
        store.close()

    def test_data_of_a_replica_without_rows_is_salvaged_in_place(self, tmp_path: Path) -> None:
        """With a peer's metadata, no byte has to be fetched."""
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
        check_clean(store, tmp_path)

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
        """Its files stay, its id is taken, and the report has the reason why it is not served."""
        store = open_store(tmp_path)
        closed_replica(store)
        paths = store.paths(ONE)
        paths.descriptor.unlink()
        lose_replica_row(store, all_rows=True)

        store = reopened(store, tmp_path)

        assert [ONE] == [entry.container_id for entry in store.unloadable()]
        assert [] == store.replicas()
        assert 3 == len(list(paths.chunks.iterdir()))
        with pytest.raises(RefusedError) as refusal:
            store.create_container(ONE)
        assert Code.CONTAINER_EXISTS is refusal.value.code
        store.close()

    def test_a_replica_without_descriptor_hides_no_other(self, tmp_path: Path) -> None:
        """With a lost index, the other replicas are recorded in the same commit."""
        store = open_store(tmp_path)
        for container_id in (1, 2, 3):
            closed_replica(store, container_id, block_ids=(1,))
        store.paths(ContainerId(2)).descriptor.write_bytes(b"")
        index = store.volume_set.places[ONE].layout.database
        store.close()
        shutil.rmtree(index)

        store = open_store(tmp_path)

        assert [2] == [entry.container_id for entry in store.unloadable()]
        assert [(1, ReplicaState.UNHEALTHY), (3, ReplicaState.UNHEALTHY)] == [
            (facts.container_id, facts.state) for facts in store.replicas()
        ]
        store.close()

    def test_a_lost_directory_is_unhealthy_and_ready_for_repair(self, tmp_path: Path) -> None:
        """The replica does not pass for whole: its tree is empty, and chunks can be installed."""
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
        assert [DamageFault.CHUNKS_DIRECTORY_MISSING] == [
            finding.fault for finding in store.findings(ONE)
        ]
        assert 0 == store.view(ONE).tree().block_count
        store.close()

    def test_a_directory_at_a_wrong_place_is_reported(self, tmp_path: Path) -> None:
        """A directory that was moved by hand is neither loaded nor removed."""
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


def test_the_bcsid_of_the_descriptor_is_only_a_note(tmp_path: Path) -> None:
    """
    A replica whose rows are lost does not claim commits that it may not have.
    """
    store = open_store(tmp_path)
    closed_replica(store)
    paths = store.paths(ONE)
    row = store.volume_set.places[ONE]
    with row.index.read() as rows:
        described = descriptor_of(ONE, replace(rows.replica(ONE), bcsid=Bcsid(900)))
    write_descriptor(paths.descriptor, described)
    lose_replica_row(store, all_rows=True)

    store = reopened(store, tmp_path)

    assert 0 == store.replica(ONE).bcsid
    assert "bcsid 900" in store.findings(ONE)[0].evidence
    store.close()
