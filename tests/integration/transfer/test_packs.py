"""Small blocks that share a file: they come, are sent on, and leave."""

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.files import readqueue
from agent.store.files.layout import PACK_NAME
from agent.store.index.packformat import PAGE_BYTES
from agent.store.operations import replica_import
from agent.store.replica.packs import BlockBytes, unpack
from merkle.replica import BlockId
from scanner.finding import DamageFault
from suture.errors import SutureError
from tests.support.faults.page_cache import cached_pages
from tests.support.storage.datanodes import Datanode, code_of
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.packed import (
    ODD,
    OWN_FILES,
    SIZES,
    TWO,
    contents,
    damage,
    findings,
    note_commits,
    pack_of,
    packed_pair,
    packed_rows,
    problems,
    row_key,
)
from tests.support.storage.pushed import Pair, decoded, encoded, serving_pair
from tests.support.storage.stored_replica import CONTAINER


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two datanodes; the target has packed what the source sent it."""
    with packed_pair(tmp_path) as made:
        yield made


class TestArrival:
    """What is packed, and what can be seen of it."""

    def test_small_blocks_share_a_file_and_others_have_their_own(self, pair: Pair) -> None:
        """
        Rows, bytes, root and facts are the source's; scan and fsck find nothing.
        """
        assert {PACK_NAME, *OWN_FILES} == set(pair.target.files())
        assert (
            sorted(SIZES) == pair.target.replica.store.pack(CONTAINER).blocks().block_ids.tolist()
        )
        assert contents(pair.source) == contents(pair.target)
        stores = [one.replica.store for one in (pair.source, pair.target)]
        assert stores[0].view(CONTAINER).tree().root == stores[1].view(CONTAINER).tree().root
        assert stores[0].replica(CONTAINER).used_bytes == stores[1].replica(CONTAINER).used_bytes
        assert [] == findings(pair.target)
        assert {} == problems(pair)

    def test_few_small_blocks_have_files(self, tmp_path: Path) -> None:
        """A few small blocks get files, as with clients' writes, because packing is not worth it
        for them.
        """
        with serving_pair(tmp_path, packed_count_min=4) as few:
            few.source.replica.store.create_container(CONTAINER)
            for block_id in (1, 2, 3):
                few.source.replica.put(block_id, 100)
            few.source.replica.store.close_container(CONTAINER, bcsid=0, force=True)

            few.source.replicate(few.target)

            assert few.source.files() == few.target.files()

    def test_pack_is_not_kept_in_the_page_cache(self, pair: Pair) -> None:
        """The page cache belongs to the clients."""
        assert 0 == cached_pages(pack_of(pair.target))
        pair.target.scan()
        assert 0 == cached_pages(pack_of(pair.target))

    @pytest.mark.parametrize("way", ["queues", "threads"])
    def test_a_packed_replica_is_sent_on(
        self, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        """The next datanode has the same blocks, whichever way the packed replica is read."""
        if way == "threads":
            monkeypatch.setattr(readqueue, "NUMBERS", {})
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        third.serve()

        outcome = pair.target.replicate(third)

        assert ("imported", 0) == (outcome.result, outcome.damaged_chunk_count)
        assert contents(pair.source) == contents(third)
        assert pack_of(pair.target).read_bytes() == pack_of(third).read_bytes()
        third.close()

    def test_a_damaged_block_arrives_in_a_file_of_its_own(self, pair: Pair, tmp_path: Path) -> None:
        """
        A replica with known damage may be the best copy; what is whole of it is packed.
        """
        damage(pair.target, 2)
        assert [(2, DamageFault.CHUNK_CHECKSUM)] == findings(pair.target)
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        third.serve()

        outcome = pair.target.replicate(third)

        assert ("imported", 1) == (outcome.result, outcome.damaged_chunk_count)
        assert third.replica.file(2).exists()
        assert third.replica.store.pack(CONTAINER).of(TWO) is None
        assert [(2, DamageFault.CHUNK_CHECKSUM)] == findings(third)
        third.close()

    def test_damage_that_nobody_declares_is_not_taken(self, pair: Pair, tmp_path: Path) -> None:
        """
        The target refuses it, and nothing of it is left there.
        """
        damage(pair.target, 2)
        third = Datanode("dn-c", tmp_path / "c")
        third.serve()

        parts = encoded(list(decoded(pair.target)))
        assert "CHECKSUM_MISMATCH" == code_of(lambda: third.importer.receive(parts))

        Pair(pair.target, third, tmp_path).target_is_untouched()
        third.close()

    def test_a_stream_that_breaks_off_leaves_nothing(self, pair: Pair, tmp_path: Path) -> None:
        """
        No file, no room, no descriptor.
        """
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        parts = list(decoded(pair.target))
        last = max(i for i, part in enumerate(parts) if part.WhichOneof("part") == "blocks")
        before = sorted(Path("/proc/self/fd").iterdir())

        code = code_of(lambda: third.importer.receive(encoded(parts[:last])))

        assert "MALFORMED_REQUEST" == code
        Pair(pair.target, third, tmp_path).target_is_untouched()
        assert before == sorted(Path("/proc/self/fd").iterdir())
        third.close()


class TestDurability:
    """What is recorded is on the medium before."""

    def test_a_pack_is_durable_before_its_rows(
        self, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A small one is synced with the file system, as small files are.
        """
        events: list[str] = []
        third = Datanode("dn-c", tmp_path / "c", packed_count_min=5)
        third.serve()
        real_sync = replica_import.sync_file_system

        def sync(fd: int) -> None:
            real_sync(fd)
            events.append("synced")

        monkeypatch.setattr(replica_import, "sync_file_system", sync)
        note_commits(monkeypatch, events)
        remove_blocks(pair.source.replica.store, CONTAINER, map(BlockId, ODD))
        events.clear()

        pair.source.replicate(third)

        assert {PACK_NAME} == set(third.files())
        assert ["synced", "commit"] == events[:2]
        third.close()

    def test_an_own_file_is_durable_before_the_block_leaves_the_pack(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        The names of the directories, its bytes, its name, then the row.
        """
        store = pair.target.replica.store
        events: list[str] = []
        real_sync = os.fsync

        def sync(fd: int) -> None:
            real_sync(fd)
            events.append(Path(f"/proc/self/fd/{fd}").resolve().name)

        monkeypatch.setattr(os, "fsync", sync)
        note_commits(monkeypatch, events)

        unpack(store.volume_set.places[CONTAINER], CONTAINER, TWO)

        directories = ["current", "containerDir0", str(CONTAINER)]
        assert [*directories, "2.block", "chunks", "commit"] == events


class TestDelete:
    """Blocks leave, and give their room back."""

    def test_a_deleted_block_gives_its_pages_back(self, pair: Pair) -> None:
        """
        The others stay where they are; the pack is as long as it was.
        """
        before = pack_of(pair.target).stat()

        remove_blocks(pair.target.replica.store, CONTAINER, [BlockId(5), BlockId(7)])

        after = pack_of(pair.target).stat()
        assert before.st_size == after.st_size
        assert 65_536 + 2 * PAGE_BYTES == 512 * (before.st_blocks - after.st_blocks)
        left = {key: data for key, data in contents(pair.source).items() if key not in (5, 7)}
        assert left == contents(pair.target)
        assert [] == findings(pair.target)
        assert {} == problems(pair)

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EOPNOTSUPP])
    def test_a_file_system_that_takes_no_pages_back_stops_no_delete(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """A full file system may need room for it, and others do not support it. The room is
        freed with the pack.
        """
        before = pack_of(pair.target).stat()
        asked: list[int] = []

        class Refusing:
            """A C library whose file system takes nothing back."""

            def fallocate(self, *_: object) -> int:
                """Refuse."""
                asked.append(ctypes.set_errno(number))
                return -1

        with monkeypatch.context() as patched:
            patched.setattr(ctypes, "CDLL", lambda *_, **__: Refusing())
            remove_blocks(pair.target.replica.store, CONTAINER, [TWO])

        assert asked
        assert before.st_blocks == pack_of(pair.target).stat().st_blocks
        assert [] == findings(pair.target)
        remove_blocks(pair.target.replica.store, CONTAINER, map(BlockId, SIZES))
        assert OWN_FILES == set(pair.target.files())

    @pytest.mark.parametrize("unpacked", [False, True])
    def test_the_last_block_takes_the_pack_with_it(self, pair: Pair, *, unpacked: bool) -> None:
        """
        The container is empty then and can be deleted, also if the last ones had left it before.
        """
        store = pair.target.replica.store
        last = [BlockId(38), BlockId(39)]
        remove_blocks(store, CONTAINER, [BlockId(key) for key in SIZES if key not in last])
        assert pack_of(pair.target).exists()
        if unpacked:
            for block_id in last:
                unpack(store.volume_set.places[CONTAINER], CONTAINER, block_id)
            assert pack_of(pair.target).exists()

        remove_blocks(store, CONTAINER, [*last, *map(BlockId, ODD)])

        assert {} == pair.target.files()
        assert {} == problems(pair)
        pair.target.replica.store.delete_container(CONTAINER)

    def test_a_pack_whose_table_cannot_be_read_is_not_thrown_away(self, pair: Pair) -> None:
        """Without rows and table its content is unknown."""
        with packed_rows(pair) as transaction:
            for block_id in SIZES:
                transaction.delete(row_key(block_id))
        os.truncate(pack_of(pair.target), place_bytes := 10 * PAGE_BYTES)

        remove_blocks(pair.target.replica.store, CONTAINER, [BlockId(51)])

        assert place_bytes == pack_of(pair.target).stat().st_size

    @pytest.mark.parametrize("what", ["deleted", "unpacked"])
    def test_read_of_a_block_that_leaves_a_pack_returns_no_zeros(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """Its pages may have been freed between the look-up and the read."""
        store, whole = pair.target.replica.store, contents(pair.source)[2]
        real = BlockBytes.read

        def late(place: BlockBytes, offset: int, length_bytes: int) -> bytes:
            monkeypatch.setattr(BlockBytes, "read", real)
            if what == "deleted":
                remove_blocks(store, CONTAINER, [TWO])
            else:
                unpack(store.volume_set.places[CONTAINER], CONTAINER, TWO)
                with pack_of(pair.target).open("r+b") as file:
                    file.write(bytes(100_000))
            return place.read(offset, length_bytes)

        monkeypatch.setattr(BlockBytes, "read", late)

        if what == "unpacked":
            assert whole == store.view(CONTAINER).read(TWO, 0, 4_000)
        else:
            with pytest.raises(SutureError, match="0 of 4000 bytes"):
                store.view(CONTAINER).read(TWO, 0, 4_000)
