"""Many chunks installed at once: each is old or new, whatever fails, and none is a special case."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.files import blockfile
from agent.store.index.rows import InstallEntry
from agent.store.operations import batch_repair, overwrite
from agent.store.operations.batch_repair import OfferedChunk, install_batch
from agent.store.operations.overwrite import FILES_SYNCED_MAX
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica_store import ReplicaStore
from agent.store.scan_reader import StoreReplicaReader
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ContainerId
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    check_clean,
    chunk_of,
    closed_replica,
    content,
    flip_bit,
    open_store,
    options_of_test,
    quarantined,
    reopened,
)

ONE = ContainerId(1)


def offer(block_id: int, number: int, data: bytes | None = None) -> OfferedChunk:
    """Offer a chunk as `closed_replica` writes it."""
    found = data or content((block_id, number))
    return OfferedChunk(BlockId(block_id), chunk_of(found, number * CHUNK_BYTES), found)


def journal(store: ReplicaStore) -> list[object]:
    """Return the unfinished work of container 1."""
    with store.volume_set.places[ONE].index.read() as rows:
        return [entry for _, entry in rows.journal(ONE)]


def files(store: ReplicaStore) -> dict[str, bytes]:
    """Return the files of all blocks."""
    return {path.name: path.read_bytes() for path in store.paths(ONE).chunks.iterdir()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """A store with a closed container 1 of blocks 1, 2 and 3, two chunks each, all damaged."""
    opened = open_store(tmp_path)
    closed_replica(opened)
    damage(opened)
    yield opened
    opened.close()


def damage(store: ReplicaStore) -> None:
    """Damage the first chunk of block 1 and the second of 2; lose the file of block 3."""
    flip_bit(store.paths(ONE).block_file(BlockId(1)), 5)
    flip_bit(store.paths(ONE).block_file(BlockId(2)), CHUNK_BYTES + 5)
    store.paths(ONE).block_file(BlockId(3)).unlink()


WANTED = (offer(1, 0), offer(2, 1), offer(3, 0), offer(3, 1), offer(9, 0), offer(9, 1))


def in_quarantine(tmp_path: Path) -> list[Path]:
    """Return the files in quarantine."""
    return sorted(tmp_path.glob("v0/hdds/*/quarantine/*"))


class TestInstalled:
    """What is plain is installed in one go."""

    def test_batch_installs_all_chunks_and_keeps_old_bytes_in_one_copy(
        self, tmp_path: Path, store: ReplicaStore
    ) -> None:
        """The chunks are damaged, missing and new. The note of the copy says which part belongs
        to which chunk.
        """
        before = files(store)
        blocks = {number: store.view(ONE).block(BlockId(number)) for number in (1, 2, 3)}

        done = store.install_chunks(ONE, WANTED)

        assert set(range(len(WANTED))) == done
        for block_id in (1, 2, 3, 9):
            whole = content((block_id, 0)) + content((block_id, 1))
            assert whole == files(store)[f"{block_id}.block"]
        assert blocks == {number: store.view(ONE).block(BlockId(number)) for number in (1, 2, 3)}
        assert [0, CHUNK_BYTES] == [one.offset for one in store.view(ONE).block(BlockId(9)).chunks]
        assert {
            (1, 0): before["1.block"][:CHUNK_BYTES],
            (2, CHUNK_BYTES): before["2.block"][CHUNK_BYTES:],
        } == quarantined(tmp_path)
        assert 2 == len(in_quarantine(tmp_path))
        check_clean(store, tmp_path)

    def test_the_counts_of_the_replica_follow(self, store: ReplicaStore) -> None:
        """Chunks recorded before are not counted twice."""
        before = store.replica(ONE)

        store.install_chunks(ONE, WANTED)

        after = store.replica(ONE)
        assert before.block_count + 1 == after.block_count
        assert before.used_bytes + 2 * CHUNK_BYTES == after.used_bytes

    @pytest.mark.parametrize(
        ("count", "expected"),
        [(2, (44, (("key", "k9"),))), (1, (0, ()))],
        ids=["all chunks", "not all"],
    )
    def test_lent_block_facts_come_with_all_of_its_chunks(
        self, store: ReplicaStore, count: int, expected: tuple[int, object]
    ) -> None:
        """The facts come in the same commit, and only with all chunks, because a commit id
        covers them all.
        """
        offers = [offer(9, 0), offer(9, 1)]
        chunks = tuple(one.chunk for one in offers)
        lent = BlockData(BlockId(9), Bcsid(44), chunks, (("key", "k9"),))

        store.install_chunks(ONE, [replace(one, lent=lent) for one in offers[:count]])

        block = store.view(ONE).block(BlockId(9))
        assert expected == (block.bcsid, block.metadata)

    def test_own_block_facts_are_kept(self, store: ReplicaStore) -> None:
        """No commit id is lowered, and no client's metadata is replaced."""
        before = store.view(ONE).block(BlockId(1))
        assert before.metadata
        lent = replace(before, bcsid=Bcsid(0), metadata=(("key", "another"),))

        store.install_chunks(ONE, [replace(offer(1, 0), lent=lent)])

        assert before == store.view(ONE).block(BlockId(1))

    def test_a_scan_that_has_begun_is_outdated(self, store: ReplicaStore) -> None:
        """
        Before the first byte is written, too.
        """
        before = store.begin_scan(ONE).generation

        store.install_chunks(ONE, WANTED[:1])

        assert before + 1 < store.generation(ONE)

    def test_steps_of_a_batch_are_durable_in_order(
        self, store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The order is log, copy, journal, bytes, files and names, records."""
        steps: list[str] = []
        fsync, fdatasync, pwrite = os.fsync, os.fdatasync, os.pwrite

        def name_of(fd: int) -> str:
            return Path(f"/proc/self/fd/{fd}").readlink().name.partition(".")[0].partition("-")[0]

        def sync(fd: int) -> None:
            steps.append(f"sync of {name_of(fd)}")
            fsync(fd)

        def datasync(fd: int) -> None:
            steps.append(f"sync of {name_of(fd)}")
            fdatasync(fd)

        def write(fd: int, data: bytes, offset: int) -> int:
            steps.append(f"write to {name_of(fd)}")
            return pwrite(fd, data, offset)

        index = store.volume_set.places[ONE].index
        commit = index.write
        log = store.volume_set.places[ONE].verification
        monkeypatch.setattr(log, "append", lambda *_: steps.append("told"))
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "fdatasync", datasync)
        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(index, "write", lambda change: (steps.append("commit"), commit(change)))

        store.install_chunks(ONE, [offer(1, 0), offer(3, 0), offer(3, 1)])

        copied = ["write to 1", "sync of 1", "sync of quarantine"]  # note, then bytes
        assert [
            *("told", *copied, *copied, "commit"),
            *("write to 1", "sync of 1", "write to 3", "write to 3", "sync of 3"),
            *("sync of chunks", "commit"),
        ] == steps

    def test_many_files_are_synced_with_their_file_system(
        self, store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Once, before anything is recorded: each by itself is a commit of the file system."""
        steps: list[str] = []
        index = store.volume_set.places[ONE].index
        fdatasync, real = os.fdatasync, overwrite.sync_all
        commit = index.write

        def datasync(fd: int) -> None:
            steps.append("sync of a file")
            fdatasync(fd)

        def sync(directory: Path) -> None:
            steps.append(f"sync of all below {directory.name}")
            real(directory)

        monkeypatch.setattr(os, "fdatasync", datasync)
        monkeypatch.setattr(overwrite, "sync_all", sync)
        monkeypatch.setattr(index, "write", lambda change: (steps.append("commit"), commit(change)))
        offers = [offer(block_id, 0) for block_id in range(10, 11 + FILES_SYNCED_MAX)]

        done = store.install_chunks(ONE, offers)

        assert len(offers) == len(done)
        assert ["commit", "sync of all below chunks", "commit"] == steps

    def test_a_scan_is_shown_what_was_replaced(self, store: ReplicaStore) -> None:
        """
        Out of the copy that it shares with others.
        """
        old = files(store)["2.block"][CHUNK_BYTES:]
        store.install_chunks(ONE, WANTED)
        reader = StoreReplicaReader(store, ONE, store.begin_scan(ONE))

        found = list(reader.former_bytes(BlockId(2), CHUNK_BYTES))
        others = list(reader.former_bytes(BlockId(3), 0))

        reader.close()
        assert ([old], []) == (found, others)


class TestLeftAlone:
    """What a batch does not take is as it was, and the others are done."""

    @pytest.mark.parametrize(
        "unfit",
        [
            offer(1, 1, content("other")),
            offer(2, 1, content("other")),
            offer(3, 1),
            OfferedChunk(BlockId(3), chunk_of(content((3, 0))), content("not this")),
            OfferedChunk(BlockId(1), chunk_of(content("across"), 5_000), content("across")),
            OfferedChunk(
                BlockId(1), chunk_of(content("across"), 5_000), content("across"), proof="dn2"
            ),
        ],
        ids=["verifies", "not our row's", "a hole", "not as described", "across", "across, proven"],
    )
    def test_chunk_refused_alone_is_skipped_in_a_batch(
        self, store: ReplicaStore, unfit: OfferedChunk
    ) -> None:
        """The chunk changes nothing and stops nothing. Alone, it is refused with the reason."""
        before = files(store)

        done = store.install_chunks(ONE, [unfit, offer(1, 0)])

        assert {1} == done
        after = files(store)
        assert content((1, 0)) + content((1, 1)) == after.pop("1.block")
        del before["1.block"]
        assert before == after
        with pytest.raises(RefusedError):
            store.repair(ONE).install_chunk(unfit.block_id, unfit.chunk, unfit.data)

    def test_a_chunk_without_checksums_is_not_overwritten_while_it_is_there(
        self, store: ReplicaStore
    ) -> None:
        """
        Unknown is no reason to overwrite.
        """
        two, block_id, data = ContainerId(2), BlockId(1), content((1, 0))
        store.create_container(two)
        chunk = chunk_of(data, checksum_type=ChecksumType.NONE)
        block = BlockData(block_id, Bcsid(1), (chunk,))
        store.writer(two).write_chunk(block_id, chunk, data, commit=block)
        store.close_container(two, bcsid=1)

        done = store.install_chunks(two, [OfferedChunk(block_id, chunk, content("x"))])

        assert frozenset() == done
        assert data == store.view(two).read(block_id, 0, CHUNK_BYTES)

    def test_ordered_chunk_replaces_one_that_verifies(
        self, tmp_path: Path, store: ReplicaStore
    ) -> None:
        """The replaced bytes are kept in quarantine."""
        other = content("other")
        ordered = OfferedChunk(BlockId(1), chunk_of(other, CHUNK_BYTES), other, is_ordered=True)

        done = [store.install_chunks(ONE, [replace(ordered, proof=one)]) for one in ("", "dn2")]

        assert [set(), {0}] == done
        assert {(1, CHUNK_BYTES): content((1, 1))} == quarantined(tmp_path)

    def test_a_deleted_block_is_not_brought_back(self, store: ReplicaStore) -> None:
        """The peer that offers it has not executed the delete yet."""
        remove_blocks(store, ONE, [BlockId(3)])

        done = store.install_chunks(ONE, WANTED)

        assert {0, 1, 4, 5} == done
        assert BlockId(3) not in [block.block_id for block in store.view(ONE).blocks()]

    def test_a_file_with_other_names_is_not_written(
        self, tmp_path: Path, store: ReplicaStore
    ) -> None:
        """The file is copied first, on its own."""
        path = store.paths(ONE).block_file(BlockId(1))
        (tmp_path / "other name").hardlink_to(path)
        before = path.read_bytes()

        done = store.install_chunks(ONE, WANTED[:2])

        assert {1} == done
        assert before == path.read_bytes()


class TestFailing:
    """Nothing is half done."""

    def test_chunk_that_does_not_arrive_rolls_the_batch_back(
        self,
        tmp_path: Path,
        store: ReplicaStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The old bytes, the missing file, the journal and the quarantine are as they were."""
        before, real = files(store), blockfile.overwrite_pieces

        def forgetful(
            path: Path, pieces: Sequence[tuple[int, bytes]], *, is_synced: bool = True
        ) -> None:
            real(path, pieces, is_synced=is_synced)
            if path.name == "9.block":
                flip_bit(path, CHUNK_BYTES + 9)

        monkeypatch.setattr(blockfile, "overwrite_pieces", forgetful)
        done = store.install_chunks(ONE, WANTED)

        assert frozenset() == done
        assert before == files(store)
        assert ([], []) == (journal(store), in_quarantine(tmp_path))

    def test_an_index_that_cannot_record_the_new_bytes_gets_the_old_ones_back(
        self,
        store: ReplicaStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """
        Now, not at the next start.
        """
        before = files(store)

        def full(*_: object) -> None:
            raise UnavailableError(Code.DISK_OUT_OF_SPACE, "no room in the index")

        monkeypatch.setattr(batch_repair, "record_chunks", full)

        assert frozenset() == store.install_chunks(ONE, WANTED)
        assert before == files(store)
        assert [] == journal(store)

    def test_a_batch_without_room_is_not_begun(self, tmp_path: Path, store: ReplicaStore) -> None:
        """The reserve stays. Each chunk alone is refused with the reason."""
        before = files(store)

        full = options_of_test(reserve_bytes=2**62)
        replica = ReplicaHandle(store.volume_set.places[ONE], full, ONE, full.on_trouble)
        done = install_batch(replica, WANTED)

        assert frozenset() == done
        assert (before, []) == (files(store), in_quarantine(tmp_path))


class TestInterrupted:
    """What a start makes of a batch that was cut off; `test_store_kill` cuts it everywhere."""

    def begun(self, store: ReplicaStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin a batch and write nothing, as a process that is killed then."""

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(blockfile, "overwrite_pieces", killed)
            patched.setattr(overwrite, "_roll_back", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                store.install_chunks(ONE, WANTED)

    def test_interrupted_batch_restores_each_chunk_from_the_shared_copy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half of each chunk arrived. The part that one entry restores is still there for the
        next.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        damage(store)
        before = files(store)
        self.begun(store, monkeypatch)
        for one in WANTED[:2]:
            half = one.data[: CHUNK_BYTES // 2]
            path = store.paths(ONE).block_file(one.block_id)
            blockfile.overwrite(path, half[:-1] + b"?", one.chunk.offset)
        assert before != files(store)

        store = reopened(store, tmp_path)

        assert before == files(store)
        assert [] == journal(store)
        store.close()

    def test_a_chunk_that_arrived_behind_one_that_did_not_is_taken_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A block whose row was lost would get one with a hole.
        """
        store = open_store(tmp_path)
        closed_replica(store)
        path = store.paths(ONE).block_file(BlockId(1))
        for offset in (5, CHUNK_BYTES + 5):
            flip_bit(path, offset)
        store.volume_set.places[ONE].index.write(lambda rows: rows.delete_block(ONE, BlockId(1)))
        before = files(store)

        real = blockfile.overwrite_pieces

        def killed(*_: object, **__: object) -> None:
            real(path, [(0, WANTED[0].data[:-1] + b"?"), (CHUNK_BYTES, content((1, 1)))])
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(blockfile, "overwrite_pieces", killed)
            patched.setattr(overwrite, "_roll_back", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                store.install_chunks(ONE, [replace(offer(1, n), proof="dn2") for n in (0, 1)])
        assert {"dn2"} == {getattr(entry, "proof", "") for entry in journal(store)}
        store = reopened(store, tmp_path)

        assert before == files(store)
        assert None is store.view(ONE).block_row(BlockId(1))
        assert [] == journal(store)
        store.close()

    def test_a_copy_that_is_too_short_restores_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The entry stays and is reported, and no other bytes are written."""
        store = open_store(tmp_path)
        closed_replica(store)
        damage(store)
        before = files(store)
        self.begun(store, monkeypatch)
        [copy] = tmp_path.glob("v0/hdds/*/quarantine/*.bytes")
        copy.write_bytes(copy.read_bytes()[:-1])

        store = reopened(store, tmp_path)

        assert before == files(store)
        assert [(2, CHUNK_BYTES)] == [
            (entry.block_id, entry.chunk.offset)
            for entry in journal(store)
            if isinstance(entry, InstallEntry)
        ]
        store.close()


def test_the_copy_of_a_batch_is_not_purged_while_the_journal_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is kept while the journal needs it, however old it is."""
    store = open_store(tmp_path)
    closed_replica(store)
    damage(store)
    TestInterrupted().begun(store, monkeypatch)

    assert 0 == store.volume_set.purge_quarantine(-1.0)
    assert 2 == len(in_quarantine(tmp_path))
    store.close()
