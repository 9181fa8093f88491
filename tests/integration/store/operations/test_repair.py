"""Repair: it makes a replica better, or leaves it as it is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.store.index.rows import InstallEntry
from agent.store.operations.overwrite import check_arrived
from agent.store.operations.repair import ReplicaRepair
from agent.store.recovery.fsck import fsck
from agent.store.replica.descriptor import read_descriptor
from agent.store.replica_store import ReplicaStore
from merkle.checksum import crc32c
from merkle.damaged_data import DamagedData
from merkle.replica import (
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from suture.errors import Code, RefusedError, VolumeFailed
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    chunk_of,
    closed_replica,
    content,
    flip_bit,
    metadata_tree,
    open_store,
    quarantined,
)

ONE = ContainerId(1)
BLOCK = BlockId(2)
FIRST, SECOND = content((2, 0)), content((2, 1))


def lose_row(store: ReplicaStore, block_id: BlockId) -> None:
    """Remove a block's row behind the store's back."""
    store.volume_set.places[ONE].index.write(lambda rows: rows.delete_block(ONE, block_id))


@pytest.fixture
def blocks(store: ReplicaStore) -> dict[int, BlockData]:
    """The blocks of a closed container 1: 1, 2 and 3, of two chunks each."""
    return closed_replica(store)


class TestInstall:
    """Writing a peer's chunk."""

    def test_a_corrupt_chunk_is_replaced_and_the_old_bytes_are_kept(
        self, tmp_path: Path, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        Afterwards the file is what was written once; what was there instead is in quarantine.
        """
        path = store.paths(ONE).block_file(BLOCK)
        flip_bit(path, CHUNK_BYTES + 5)
        corrupt = path.read_bytes()[CHUNK_BYTES:]
        before = store.replica(ONE)

        store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[1], SECOND)

        assert FIRST + SECOND == path.read_bytes()
        assert {(2, CHUNK_BYTES): corrupt} == quarantined(tmp_path)
        assert before == store.replica(ONE)
        assert blocks[2] == store.view(ONE).block(BLOCK)

    def test_a_chunk_that_verifies_is_never_overwritten(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """The medium is read right before the write, whatever a tree or a caller says (I2)."""
        other = content("other")
        path = store.paths(ONE).block_file(BLOCK)

        for chunk, data in (
            (blocks[2].chunks[0], FIRST),
            (chunk_of(other), other),
        ):
            with pytest.raises(RefusedError) as refusal:
                store.repair(ONE).install_chunk(BLOCK, chunk, data)
            assert Code.INELIGIBLE is refusal.value.code
        assert FIRST + SECOND == path.read_bytes()

    def test_a_chunk_without_checksums_is_not_overwritten_while_it_is_there(
        self, store: ReplicaStore
    ) -> None:
        """Bytes that cannot be checked are unknown, and unknown bytes are not overwritten."""
        store.create_container(ONE)
        chunk = chunk_of(FIRST, checksum_type=ChecksumType.NONE)
        block = BlockData(BLOCK, Bcsid(1), (chunk,))
        store.writer(ONE).write_chunk(BLOCK, chunk, FIRST, commit=block)
        store.close_container(ONE, bcsid=1)
        path = store.paths(ONE).block_file(BLOCK)

        with pytest.raises(RefusedError) as refusal:
            store.repair(ONE).install_chunk(BLOCK, chunk, SECOND)
        assert Code.INELIGIBLE is refusal.value.code
        path.write_bytes(FIRST[:-1])
        store.repair(ONE).install_chunk(BLOCK, chunk, FIRST)

        assert FIRST == path.read_bytes()

    def test_a_missing_file_is_rebuilt_from_its_first_chunk(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        The later chunk has to wait for the earlier one: no hole is ever made.
        """
        path = store.paths(ONE).block_file(BLOCK)
        path.unlink()
        repair = store.repair(ONE)

        with pytest.raises(RefusedError) as refusal:
            repair.install_chunk(BLOCK, blocks[2].chunks[1], SECOND)
        assert Code.CHUNK_GAP is refusal.value.code
        assert not path.exists()
        repair.install_chunk(BLOCK, blocks[2].chunks[0], FIRST)
        repair.install_chunk(BLOCK, blocks[2].chunks[1], SECOND)

        assert FIRST + SECOND == path.read_bytes()

    def test_a_block_that_was_never_here_is_added(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """Row, counts and tree follow. BCSID and metadata are adopted if the caller requests it."""
        repair = store.repair(ONE)
        for number in range(2):
            data = content((9, number))
            repair.install_chunk(BlockId(9), chunk_of(data, number * CHUNK_BYTES), data)
        partial = store.view(ONE).block(BlockId(9))
        repair.adopt_metadata(BlockId(9), (("key", "k9"),))
        repair.adopt_bcsid(BlockId(9), 44)
        repair.advance_bcsid(44)

        block = store.view(ONE).block(BlockId(9))
        facts = store.replica(ONE)
        assert Bcsid(0) == partial.bcsid
        assert (44, (("key", "k9"),)) == (block.bcsid, block.metadata)
        assert (4, 8 * CHUNK_BYTES, 44) == (facts.block_count, facts.used_bytes, facts.bcsid)
        assert [1, 2, 3, 9] == metadata_tree(store).block_ids.tolist()
        assert 3 == len(blocks)

    def test_a_bcsid_is_never_lowered(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        A peer that is behind teaches nothing.
        """
        repair = store.repair(ONE)

        repair.adopt_bcsid(BLOCK, 1)
        repair.advance_bcsid(1)

        assert blocks[2].bcsid == store.view(ONE).block(BLOCK).bcsid
        assert 3 == store.replica(ONE).bcsid

    def test_a_block_without_chunks_is_added(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        A block that is nothing but its row is repaired, too; one that is here is left alone.
        """
        store.repair(ONE).install_empty_block(BlockId(9))
        store.repair(ONE).install_empty_block(BLOCK)

        assert BlockData(BlockId(9), Bcsid(0)) == store.view(ONE).block(BlockId(9))
        assert blocks[2] == store.view(ONE).block(BLOCK)
        assert 4 == store.replica(ONE).block_count

    def test_a_damaged_row_of_a_block_without_chunks_is_replaced(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        There is no chunk whose repair would.
        """
        nine = BlockId(9)
        store.repair(ONE).install_empty_block(nine)
        row = bytearray(store.view(ONE).block_row(nine) or b"")
        row[20] ^= 1
        store.volume_set.places[ONE].index.write(lambda rows: rows.put_block(ONE, nine, bytes(row)))

        store.repair(ONE).install_empty_block(nine)

        assert BlockData(nine, Bcsid(0)) == store.view(ONE).block(nine)
        assert len(blocks) + 1 == store.replica(ONE).block_count

    def test_a_damaged_row_is_replaced_chunk_by_chunk(
        self, tmp_path: Path, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        A row that cannot be read is as good as none; counts are right afterwards.
        """
        row = bytearray(store.view(ONE).block_row(BLOCK) or b"")
        row[20] ^= 1
        store.volume_set.places[ONE].index.write(
            lambda rows: rows.put_block(ONE, BLOCK, bytes(row))
        )
        repair = store.repair(ONE)

        for chunk in blocks[2].chunks:
            assert repair.salvage_chunk(BLOCK, chunk)

        assert blocks[2].chunks == store.view(ONE).block(BLOCK).chunks
        store.close()
        assert () == fsck(tmp_path / "v0", read_data=True).problems

    def test_a_replaced_row_keeps_what_it_said_of_other_chunks(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """Only the chunk that the operator ordered changes."""
        flip_bit(store.paths(ONE).block_file(BLOCK), 3)
        other = content("what the peers have")

        repair = store.repair(ONE)
        with pytest.raises(RefusedError) as unproven:
            repair.install_chunk(BLOCK, chunk_of(other), other, is_ordered=True)
        assert Code.NOT_PROVEN is unproven.value.code
        repair.install_chunk(BLOCK, chunk_of(other), other, is_ordered=True, proof="dn2")

        assert (chunk_of(other), blocks[2].chunks[1]) == store.view(ONE).block(BLOCK).chunks
        assert blocks[2].bcsid == store.view(ONE).block(BLOCK).bcsid


def test_a_medium_that_does_not_keep_what_was_written_fails(tmp_path: Path) -> None:
    """Bytes that read back differently were not written, whatever the kernel reported."""
    path = tmp_path / "2.block"
    path.write_bytes(SECOND)
    entry = InstallEntry(BLOCK, chunk_of(FIRST), crc32c(FIRST), 0, "", pending=False)

    with pytest.raises(VolumeFailed, match="read back differ"):
        check_arrived(path, [entry])
    path.write_bytes(FIRST)
    check_arrived(path, [entry])


BAD_OFFERS: dict[str, tuple[Code, Callable[[ReplicaRepair], object]]] = {
    "data that is not the chunk": (
        Code.CHECKSUM_MISMATCH,
        lambda repair: repair.install_chunk(BLOCK, chunk_of(FIRST), SECOND),
    ),
    "too little data": (
        Code.INVALID_WRITE_SIZE,
        lambda repair: repair.install_chunk(BLOCK, chunk_of(FIRST), FIRST[:-1]),
    ),
    "a chunk of no bytes": (
        Code.INVALID_WRITE_SIZE,
        lambda repair: repair.install_chunk(BLOCK, chunk_of(b""), b""),
    ),
    "a chunk across two of ours": (
        Code.OVERLAPPING_CHUNK,
        lambda repair: repair.install_chunk(
            BLOCK, chunk_of(content("x", 15_000)), content("x", 15_000)
        ),
    ),
    "a chunk in the middle of ours": (
        Code.OVERLAPPING_CHUNK,
        lambda repair: repair.install_chunk(BLOCK, chunk_of(FIRST, 4096), FIRST),
    ),
    "a hole": (
        Code.CHUNK_GAP,
        lambda repair: repair.install_chunk(BLOCK, chunk_of(FIRST, 50_000), FIRST),
    ),
    "a hole in a new block": (
        Code.CHUNK_GAP,
        lambda repair: repair.install_chunk(BlockId(9), chunk_of(FIRST, 10_000), FIRST),
    ),
    "an impossible block id": (
        Code.MALFORMED_REQUEST,
        lambda repair: repair.install_chunk(BlockId(0), chunk_of(FIRST), FIRST),
    ),
    "a negative offset": (
        Code.MALFORMED_REQUEST,
        lambda repair: repair.install_chunk(BLOCK, chunk_of(FIRST)._replace(offset=-1), FIRST),
    ),
    "a bcsid out of range": (
        Code.MALFORMED_REQUEST,
        lambda repair: repair.advance_bcsid(-1),
    ),
    "a bcsid of no block": (Code.NO_SUCH_BLOCK, lambda repair: repair.adopt_bcsid(BlockId(9), 1)),
    "metadata of no block": (
        Code.NO_SUCH_BLOCK,
        lambda repair: repair.adopt_metadata(BlockId(9), ()),
    ),
    "a tombstone of 65 bits": (
        Code.MALFORMED_REQUEST,
        lambda repair: repair.adopt_tombstone(BLOCK, 2**64),
    ),
}


@pytest.mark.parametrize("name", BAD_OFFERS)
def test_a_bad_offer_changes_nothing(
    store: ReplicaStore, blocks: dict[int, BlockData], name: str
) -> None:
    """
    A peer may send anything.
    """
    code, request = BAD_OFFERS[name]
    before = store.replica(ONE), store.view(ONE).blocks(), store.generation(ONE)

    with pytest.raises(RefusedError) as refusal:
        request(store.repair(ONE))

    assert code is refusal.value.code
    assert before == (store.replica(ONE), store.view(ONE).blocks(), store.generation(ONE))
    assert FIRST + SECOND == store.paths(ONE).block_file(BLOCK).read_bytes()
    assert 3 == len(blocks)


class TestSalvage:
    """Rows that were lost while the bytes were not."""

    def test_a_lost_row_is_recorded_again_without_a_byte_written(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        A peer's metadata is enough when the bytes verify against it.
        """
        path = store.paths(ONE).block_file(BLOCK)
        before = path.stat().st_mtime_ns
        lose_row(store, BLOCK)

        salvaged = [store.repair(ONE).salvage_chunk(BLOCK, chunk) for chunk in blocks[2].chunks]

        assert [True, True] == salvaged
        assert blocks[2].chunks == store.view(ONE).block(BLOCK).chunks
        assert before == path.stat().st_mtime_ns

    def test_bytes_that_do_not_verify_are_not_recorded(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        False means: fetch it. Neither does a chunk without checksums pass, nor a missing file.
        """
        lose_row(store, BLOCK)
        flip_bit(store.paths(ONE).block_file(BLOCK), 5)
        unsummed = chunk_of(content((1, 0)), checksum_type=ChecksumType.NONE)
        repair = store.repair(ONE)

        assert not repair.salvage_chunk(BLOCK, blocks[2].chunks[0])
        assert not repair.salvage_chunk(BlockId(1), unsummed)
        assert not repair.salvage_chunk(BlockId(9), chunk_of(FIRST))
        assert store.view(ONE).block_row(BLOCK) is None


class TestTrim:
    """Bytes behind the last chunk."""

    def test_trailing_bytes_go_to_quarantine(
        self, tmp_path: Path, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        The file ends where the block ends, and what was behind can still be looked at.
        """
        path = store.paths(ONE).block_file(BLOCK)
        path.write_bytes(path.read_bytes() + b"garbage")

        moved = store.repair(ONE).trim(BLOCK)

        assert 7 == moved
        assert FIRST + SECOND == path.read_bytes()
        assert {(2, blocks[2].length_bytes): b"garbage"} == quarantined(tmp_path)
        assert 0 == store.repair(ONE).trim(BLOCK)

    def test_a_file_without_a_row_goes_whole(
        self, tmp_path: Path, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """The caller has tried to salvage the orphan before."""
        path = store.paths(ONE).block_file(BlockId(77))
        path.write_bytes(b"orphan")

        assert 6 == store.repair(ONE).trim(BlockId(77))
        assert not path.exists()
        assert {(77, 0): b"orphan"} == quarantined(tmp_path)
        assert 3 == len(blocks)

    def test_a_damaged_row_stops_it(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """If the end of a block is unknown, every byte of its file may be data."""
        store.volume_set.places[ONE].index.write(
            lambda rows: rows.put_block(ONE, BLOCK, b"damaged!" * 9)
        )

        with pytest.raises(RefusedError) as refusal:
            store.repair(ONE).trim(BLOCK)

        assert Code.INELIGIBLE is refusal.value.code
        assert blocks[2].length_bytes == store.paths(ONE).block_file(BLOCK).stat().st_size


class TestTombstones:
    """Adopting a peer's delete."""

    def test_a_live_block_is_deleted_with_the_peers_checksum(
        self, tmp_path: Path, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        The ordinary way of deleting, with the value that the peer keeps.
        """
        store.repair(ONE).adopt_tombstone(BLOCK, 12345)

        tree = store.view(ONE).tree()
        assert {2: 12345} == store.view(ONE).tombstones()
        assert 12345 == int(tree.block_checksums[tree.index_of(2)])
        assert not store.paths(ONE).block_file(BLOCK).exists()
        store.close()
        assert () == fsck(tmp_path / "v0").problems
        assert 3 == len(blocks)

    def test_tombstone_of_a_block_never_stored_here_is_kept(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """Otherwise the roots of the two replicas would differ for ever."""
        store.repair(ONE).adopt_tombstone(BlockId(50), 7)

        assert [1, 2, 3, 50] == store.view(ONE).tree().block_ids.tolist()
        assert 3 == store.replica(ONE).block_count
        assert 3 == len(blocks)

    def test_a_larger_checksum_replaces_the_one_here(
        self, store: ReplicaStore, blocks: dict[int, BlockData]
    ) -> None:
        """
        Two replicas that deleted different versions of a block agree on one value.
        """
        remove_blocks(store, ONE, [BLOCK])

        store.repair(ONE).adopt_tombstone(BLOCK, 2**64 - 1)

        assert {2: 2**64 - 1} == store.view(ONE).tombstones()
        assert 3 == len(blocks)


def test_a_damaged_descriptor_is_written_anew(
    store: ReplicaStore, blocks: dict[int, BlockData]
) -> None:
    """The index has all facts of a descriptor."""
    path = store.paths(ONE).descriptor
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedData):
        read_descriptor(path, ONE)

    store.repair(ONE).rewrite_descriptor()

    assert ReplicaState.CLOSED is read_descriptor(path, ONE).state
    assert 3 == len(blocks)


def test_every_repair_passes_fsck(tmp_path: Path) -> None:
    """
    Rows, counts, files and journal are in order after repairs of every kind.
    """
    store = open_store(tmp_path)
    blocks = closed_replica(store)
    paths = store.paths(ONE)
    flip_bit(paths.block_file(BlockId(1)), 3)
    paths.block_file(BLOCK).unlink()
    lose_row(store, BlockId(3))
    repair = store.repair(ONE)

    chunk: ChunkInfo
    for number, chunk in enumerate(blocks[2].chunks):
        repair.install_chunk(BLOCK, chunk, content((2, number)))
    repair.install_chunk(BlockId(1), blocks[1].chunks[0], content((1, 0)))
    for chunk in blocks[3].chunks:
        assert repair.salvage_chunk(BlockId(3), chunk)
    store.close()

    # The row was lost behind the store's back, so its count is one too high: that fsck must see.
    kinds = [problem.kind for problem in fsck(tmp_path / "v0", read_data=True).problems]
    assert ["COUNTS_DIFFER"] == kinds
