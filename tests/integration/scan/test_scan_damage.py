"""Real damage to a real store, found by the scan that the agent runs."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.store.scan_reader import StoreReplicaReader
from merkle.checksum import Algorithm
from merkle.replica import BlockId, ChecksumType, ContainerId, ReplicaState
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding, Verdict
from tests.support.faults.page_cache import cached_pages, drop_pages
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.replica_reader import scan
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, StoredReplica, opened

Fact = tuple[Verdict, DamageFault, int, int]
CORRUPT = Verdict.CORRUPT


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with a closed container of three blocks of two chunks."""
    yield from opened(tmp_path / "volume")


def facts(findings: tuple[ScanFinding, ...] | list[ScanFinding]) -> list[Fact]:
    """Return what findings are about, without their words."""
    return [(item.verdict, item.fault, item.block_id, item.offset) for item in findings]


def unhealthy_chunks(tree: Tree) -> list[tuple[int, int]]:
    """Return (block, offset) of the chunks that the tree marks."""
    return [
        (block_id, leaf.offset)
        for block_id in tree.block_ids.tolist()
        for leaf in tree.leaves(block_id)
        if not leaf.healthy
    ]


def found(replica: StoredReplica) -> list[Fact]:
    """Scan, check that what was reported is what the store keeps, and return it."""
    report = replica.scan()

    assert report.committed
    assert list(report.findings) == replica.store.findings(CONTAINER)
    return facts(report.findings)


class TestClean:
    @pytest.mark.parametrize("algorithm", list(Algorithm))
    def test_a_clean_scan_finds_nothing_and_keeps_the_tree(
        self, tmp_path: Path, algorithm: Algorithm
    ) -> None:
        """The scan's tree equals the one that closing built from metadata."""
        replica = StoredReplica(tmp_path / "volume", algorithm=algorithm)
        replica.create()
        before = replica.store.view(CONTAINER).tree()

        report = replica.scan()

        after = replica.store.view(CONTAINER).tree()
        assert () == report.findings
        assert (before.root, 0) == (after.root, after.unhealthy_count)
        assert before.summary() == after.with_generation(before.generation).summary()
        assert (ReplicaState.CLOSED, False) == (
            report.commit.state_after,
            report.commit.root_changed,
        )
        assert replica.store.replica(CONTAINER).data_scan_at_ms > 0
        replica.close()

    def test_every_checksum_type_and_an_empty_block_scan_clean(self, tmp_path: Path) -> None:
        """Metadata and scan agree for every kind of block that a client can write."""
        replica = StoredReplica(tmp_path / "volume")
        replica.store.create_container(CONTAINER)
        for checksum_type in ChecksumType:
            replica.put(int(checksum_type), CHUNK_BYTES, 10, checksum_type=checksum_type)
        replica.put(99)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        root = replica.store.view(CONTAINER).tree().root

        assert [] == found(replica)
        assert root == replica.store.view(CONTAINER).tree().root
        replica.close()

    def test_a_reader_knows_when_its_replica_has_moved_on(self, replica: StoredReplica) -> None:
        """A delete ends the validity of what a scan has seen."""
        reader = StoreReplicaReader(replica.store, CONTAINER, replica.store.begin_scan(CONTAINER))
        was_current = reader.is_current()

        remove_blocks(replica.store, CONTAINER, [BlockId(1)])

        assert (True, False) == (was_current, reader.is_current())
        reader.close()

    def test_the_page_cache_is_left_alone(self, replica: StoredReplica) -> None:
        """A scan reads the medium: pages that were not cached are not cached after it."""
        paths = [replica.file(block_id) for block_id in (1, 2, 3)]
        paths[0].read_bytes()
        warm_count = cached_pages(paths[0])
        for path in paths:
            drop_pages(path)

        replica.scan()

        assert warm_count == -(-paths[0].stat().st_size // 4096)
        assert [0, 0, 0] == [cached_pages(path) for path in paths]

    def test_without_direct_reads_the_page_cache_is_emptied(self, replica: StoredReplica) -> None:
        """The fallback reads what the medium holds, and leaves no pages behind."""
        path = replica.file(1)
        path.read_bytes()
        base = replica.store.begin_scan(CONTAINER)
        reader = StoreReplicaReader(replica.store, CONTAINER, base, direct=False)

        outcome = scan(reader)

        reader.close()
        assert replica.store.view(CONTAINER).tree().root == outcome.tree.root
        assert 0 == cached_pages(path)


class TestChunkDamage:
    def test_a_bit_flip_under_a_warm_page_cache(self, replica: StoredReplica) -> None:
        """Exactly the chunk with the flipped bit is corrupt and marked in the tree."""
        replica.file(2).read_bytes()
        replica.flip(2, CHUNK_BYTES + 70_000)
        before = replica.store.view(CONTAINER).tree()

        assert [(CORRUPT, DamageFault.CHUNK_CHECKSUM, 2, CHUNK_BYTES)] == found(replica)
        after = replica.store.view(CONTAINER).tree()
        assert [(2, CHUNK_BYTES)] == unhealthy_chunks(after)
        assert before.leaves(1) == after.leaves(1)
        assert before.root != after.root
        assert ReplicaState.UNHEALTHY == replica.store.replica(CONTAINER).state

    def test_a_zeroed_page(self, replica: StoredReplica) -> None:
        """The evidence names the page."""
        replica.overwrite(1, 8_192, bytes(4_096))

        report = replica.scan()

        assert [(CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, 0)] == facts(report.findings)
        assert "the 4096-byte page at byte 8192 is all zero" in report.findings[0].evidence

    def test_a_truncated_file(self, replica: StoredReplica) -> None:
        """The chunk that was cut is short and marked, the one behind it is not in the tree."""
        os.truncate(replica.file(1), CHUNK_BYTES - 1)

        assert [
            (CORRUPT, DamageFault.CHUNK_SHORT, 1, 0),
            (CORRUPT, DamageFault.CHUNK_MISSING, 1, CHUNK_BYTES),
        ] == found(replica)
        leaves = replica.store.view(CONTAINER).tree().leaves(1)
        assert [(0, CHUNK_BYTES - 1, False)] == [
            (leaf.offset, leaf.length_bytes, leaf.healthy) for leaf in leaves
        ]

    def test_swapped_block_files(self, replica: StoredReplica) -> None:
        """Two whole files are swapped. Every chunk fails, and the lengths differ as well."""
        first, second = replica.file(1), replica.file(2)
        aside = first.with_name("aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)

        assert [
            (CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, 0),
            (CORRUPT, DamageFault.CHUNK_CHECKSUM, 1, CHUNK_BYTES),
            (CORRUPT, DamageFault.TRAILING_BYTES, 1, 2 * CHUNK_BYTES + 1),
            (CORRUPT, DamageFault.CHUNK_CHECKSUM, 2, 0),
            (CORRUPT, DamageFault.CHUNK_SHORT, 2, CHUNK_BYTES),
        ] == found(replica)

    def test_appended_garbage(self, replica: StoredReplica) -> None:
        """Nothing that was written is damaged, and the tree stays what it was."""
        root = replica.store.view(CONTAINER).tree().root
        with replica.file(3).open("ab") as file:
            file.write(b"garbage")

        assert [(CORRUPT, DamageFault.TRAILING_BYTES, 3, 2 * CHUNK_BYTES + 3)] == found(replica)
        assert root == replica.store.view(CONTAINER).tree().root

    def test_scan_lists_all_bad_chunks_of_a_dying_disk(self, replica: StoredReplica) -> None:
        """One scan finds all damage, so one reconcile can repair all of it."""
        for block_id in (1, 2, 3):
            replica.flip(block_id, 5)
            replica.flip(block_id, CHUNK_BYTES + 5)

        assert 6 == len(found(replica))
        assert 6 == replica.store.view(CONTAINER).tree().unhealthy_count


class TestStructureDamage:
    def test_a_deleted_block_file(self, replica: StoredReplica) -> None:
        """The block is not in the tree any more, so peers see it missing."""
        replica.file(2).unlink()

        assert [(CORRUPT, DamageFault.BLOCK_FILE_MISSING, 2, 0)] == found(replica)
        assert -1 == replica.store.view(CONTAINER).tree().index_of(2)

    def test_a_deleted_metadata_row(self, replica: StoredReplica) -> None:
        """The tree remembers the block; later scans do too, though the tree then does not."""
        replica.delete_row(2)

        assert [(CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1)] == found(replica)
        assert -1 == replica.store.view(CONTAINER).tree().index_of(2)
        assert [(CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1)] == found(replica)

    def test_a_metadata_row_and_its_file_deleted(self, replica: StoredReplica) -> None:
        """A block of which nothing is left is still missed."""
        replica.delete_row(2)
        replica.file(2).unlink()

        assert [(CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1)] == found(replica)

    @pytest.mark.parametrize(
        ("first", "fault"),
        [
            (lambda made: made.file(2).unlink(), DamageFault.BLOCK_FILE_MISSING),
            (lambda made: made.damage_row(2), DamageFault.BLOCK_ROW_DAMAGED),
        ],
        ids=["file", "row"],
    )
    def test_a_row_that_is_lost_after_what_it_tells_of(
        self, replica: StoredReplica, first: Callable[[StoredReplica], object], fault: DamageFault
    ) -> None:
        """The tree has not had the block since, so that only the finding remembers it."""
        first(replica)
        before = {(of, block_id) for _, of, block_id, _ in found(replica)}
        replica.delete_row(2)
        replica.file(2).unlink(missing_ok=True)

        again = [found(replica), found(replica)]

        assert {(fault, 2)} == before
        assert [[(CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1)]] * 2 == again
        assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state

    @pytest.mark.parametrize("junk", [None, b"junk"], ids=["no tree", "damaged tree"])
    def test_a_row_that_is_lost_with_the_tree(
        self, replica: StoredReplica, junk: bytes | None
    ) -> None:
        """The index counts more blocks than it has rows, so an unknown file belongs to one of
        them.
        """
        tree = replica.store.paths(CONTAINER).tree
        tree.unlink() if junk is None else tree.write_bytes(junk)
        replica.delete_row(2)

        first, again = found(replica), found(replica)

        lost = (CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1)
        assert lost in first
        assert [lost] == again
        assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state

    def test_a_block_whose_row_is_lost_can_be_deleted(self, replica: StoredReplica) -> None:
        """Nothing but the finding knows it; then its tombstone does, and its file goes."""
        replica.delete_row(2)
        before = found(replica)
        remove_blocks(replica.store, CONTAINER, [BlockId(2), BlockId(99)])

        after = found(replica)

        assert [(CORRUPT, DamageFault.BLOCK_ROW_MISSING, 2, -1)] == before
        assert [] == after
        assert {2} == set(replica.store.view(CONTAINER).tombstones())
        assert not replica.file(2).exists()
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state

    def test_a_damaged_metadata_row(self, replica: StoredReplica) -> None:
        """A row that fails its own checksum is no witness."""
        replica.damage_row(2)

        assert [(CORRUPT, DamageFault.BLOCK_ROW_DAMAGED, 2, -1)] == found(replica)

    def test_a_stale_tree_file_costs_nothing(self, replica: StoredReplica) -> None:
        """The stale file is noted and replaced, and the replica stays closed."""
        paths = replica.store.paths(CONTAINER)
        old = paths.tree.read_bytes()
        replica.scan()
        newer = replica.store.view(CONTAINER).tree()
        paths.tree.write_bytes(old)

        report = replica.scan()

        assert [(Verdict.OK, DamageFault.TREE_STALE, -1, -1)] == facts(report.findings)
        assert ReplicaState.CLOSED == report.commit.state_after
        assert newer.generation + 1 == replica.store.view(CONTAINER).tree().generation
        assert () == replica.scan().findings

    @pytest.mark.parametrize(
        ("content", "fault"),
        [(None, DamageFault.TREE_MISSING), (b"junk", DamageFault.TREE_DAMAGED)],
    )
    def test_a_tree_file_that_cannot_be_read_is_made_anew(
        self, replica: StoredReplica, content: bytes | None, fault: DamageFault
    ) -> None:
        """The tree follows from the data, never the other way round."""
        path, root = replica.store.paths(CONTAINER).tree, replica.store.view(CONTAINER).tree().root
        path.unlink() if content is None else path.write_bytes(content)

        assert [(Verdict.OK, fault, -1, -1)] == found(replica)
        assert root == replica.store.view(CONTAINER).tree().root
        assert path.exists()

    @pytest.mark.parametrize(
        ("content", "fault"),
        [(None, DamageFault.DESCRIPTOR_MISSING), (b"junk: [", DamageFault.DESCRIPTOR_DAMAGED)],
    )
    def test_a_bad_descriptor_is_damage(
        self, replica: StoredReplica, content: bytes | None, fault: DamageFault
    ) -> None:
        """Without it the replica could not be loaded after the index was lost.

        Marking the replica writes a new one, so the next scan heals it.
        """
        path = replica.store.paths(CONTAINER).descriptor
        path.unlink() if content is None else path.write_bytes(content)

        assert [(CORRUPT, fault, -1, -1)] == found(replica)
        assert [] == found(replica)
        assert ReplicaState.CLOSED == replica.store.replica(CONTAINER).state

    def test_a_lost_chunks_directory(self, replica: StoredReplica) -> None:
        """There is one finding for the directory and one for each block."""
        shutil.rmtree(replica.store.paths(CONTAINER).chunks)

        assert [
            (CORRUPT, DamageFault.BLOCK_FILE_MISSING, 1, 0),
            (CORRUPT, DamageFault.BLOCK_FILE_MISSING, 2, 0),
            (CORRUPT, DamageFault.BLOCK_FILE_MISSING, 3, 0),
            (CORRUPT, DamageFault.CHUNKS_DIRECTORY_MISSING, -1, -1),
        ] == found(replica)

    def test_foreign_files_are_noted(self, replica: StoredReplica) -> None:
        """Foreign files between the blocks are named, and are no damage."""
        chunks = replica.store.paths(CONTAINER).chunks
        (chunks / "core.1234").write_bytes(b"x")
        (chunks / "77.block").symlink_to("/dev/zero")
        (chunks / "88.block").write_bytes(b"never committed")

        report = replica.scan()

        assert [
            (Verdict.OK, DamageFault.FOREIGN_FILE, -1, -1),
            (Verdict.OK, DamageFault.FOREIGN_FILE, -1, -1),
            (Verdict.OK, DamageFault.BLOCK_ROW_MISSING, 88, -1),
        ] == facts(report.findings)
        assert ReplicaState.CLOSED == report.commit.state_after

    @pytest.mark.parametrize("kind", ["symlink", "pipe", "directory"])
    def test_something_else_in_the_place_of_a_block_file(
        self, replica: StoredReplica, kind: str
    ) -> None:
        """The other file is neither followed nor waited for. The block's file is reported as
        missing.
        """
        path = replica.file(1)
        path.unlink()
        match kind:
            case "symlink":
                path.symlink_to(replica.file(2))
            case "pipe":
                os.mkfifo(path)
            case _:
                path.mkdir()

        assert (CORRUPT, DamageFault.BLOCK_FILE_MISSING, 1, 0) in found(replica)


class TestAfterwards:
    def test_a_replica_that_was_mended_is_healthy_again(self, replica: StoredReplica) -> None:
        """A clean full read ends UNHEALTHY, and the findings with it."""
        replica.flip(1, 5)
        assert ReplicaState.UNHEALTHY == replica.scan().commit.state_after
        replica.flip(1, 5)

        report = replica.scan()

        assert ReplicaState.CLOSED == report.commit.state_after
        assert [] == replica.store.findings(CONTAINER)
        assert 0 == replica.store.view(CONTAINER).tree().unhealthy_count

    def test_a_deleted_block_stays_deleted(self, replica: StoredReplica) -> None:
        """A scan neither misses nor resurrects it, and the root stays."""
        root = replica.store.view(CONTAINER).tree().root
        remove_blocks(
            replica.store, CONTAINER, [replica.store.view(CONTAINER).blocks()[1].block_id]
        )

        assert [] == found(replica)
        tree = replica.store.view(CONTAINER).tree()
        assert (root, 1, 2) == (tree.root, tree.tombstone_count, tree.block_count)

    def test_uncommitted_chunks_of_a_dead_client_are_no_damage(self, tmp_path: Path) -> None:
        """A client that died before its commit must not make every replica UNHEALTHY."""
        replica = StoredReplica(tmp_path / "volume")
        replica.store.create_container(CONTAINER)
        block = replica.put(1, CHUNK_BYTES)
        chunk = block.chunks[0]
        data = replica.file(1).read_bytes()
        replica.store.writer(CONTAINER).write_chunk(
            block.block_id, chunk._replace(offset=CHUNK_BYTES), data
        )
        replica.store.writer(CONTAINER).write_chunk(BlockId(2), chunk, data)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)

        assert [] == found(replica)
        replica.close()

    def test_containers_do_not_mix(self, replica: StoredReplica) -> None:
        """Damage in one container does not affect another."""
        other = ContainerId(513)
        replica.create(other)
        replica.flip(1, 0)

        assert () == replica.scan(other).findings
        assert 1 == replica.scan().finding_count
