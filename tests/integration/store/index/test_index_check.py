"""An index is read before it is mapped: what would kill the process is an error that names it."""

import os
import random
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout
from agent.store.index.check import indexcheck
from agent.store.index.check.indexcheck import check_index
from agent.store.index.databases import DATABASES
from agent.store.index.environment import Index
from agent.store.index.rows import KEY_BYTES
from agent.store.index.transactions import IndexChange
from agent.store.recovery.fsck import fsck
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, SutureError, VolumeFailed
from tests.support.storage.stores import CLUSTER, closed_replica, content, open_store

PAGE = 4096
MAP_BYTES = 64 * 1024**2
SEEDS = 80
CHILD_TIMEOUT_S = 20
SMALL_BYTES = indexcheck.SMALL_BYTES
SIZES_BYTES = (30, 300, 1_500, 3_000, 9_000)


def churn(index: Index, seed: int, rounds: int) -> None:
    """Put and delete rows of all sizes, so that there are branches, overflows and free pages."""
    chance = random.Random(seed)

    def change(rows: IndexChange) -> None:
        for _ in range(60):
            container_id = ContainerId(chance.randrange(1, 20))
            block_id = BlockId(chance.randrange(1, 200))
            if chance.random() < 0.4:
                rows.delete_block(container_id, block_id)
            else:
                row = content(chance.random(), chance.choice(SIZES_BYTES))
                rows.put_block(container_id, block_id, row)
                rows.put_tombstone(container_id, block_id, 1)

    for _ in range(rounds):
        index.write(change)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file of an index that is well."""
    directory = tmp_path_factory.mktemp("index")
    index = Index(directory, map_bytes=MAP_BYTES)
    churn(index, 1, rounds=20)
    index.close()
    return (directory / "data.mdb").read_bytes()


def use(directory: Path) -> None:
    """Read every row through the map, then write much and delete all."""
    index = Index(directory, map_bytes=MAP_BYTES)
    with index.read() as rows:
        for name in DATABASES:
            for _ in rows._walk(getattr(rows._dbs, name), b"", b""):
                pass
    churn(index, 2, rounds=4)

    def clear(rows: IndexChange) -> None:
        for container_id in range(20):
            rows.delete_container(ContainerId(container_id))

    index.write(clear)
    index.close()


def end_of(directory: Path) -> str:
    """Use an index in a process of its own; return what became of that."""
    pid = os.fork()
    if not pid:
        code = 9
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.alarm(CHILD_TIMEOUT_S)
            use(directory)
            code = 0
        except SutureError:
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return {0: "fine", 3: "refused"}.get(os.WEXITSTATUS(status), "raised")


def damaged(good: bytes, seed: int) -> bytes:
    """Return the file with one fault of any kind."""
    chance, data = random.Random(seed), bytearray(good)
    page_count = len(good) // PAGE
    at = chance.randrange(chance.choice([4, page_count])) * PAGE
    match chance.choice(["page", "header", "nodes", "cut", "copy", "zero"]):
        case "page":
            data[at : at + PAGE] = chance.randbytes(PAGE)
        case "header":
            where = at + chance.randrange(16)
            data[where : where + 2] = chance.randbytes(2)
        case "nodes":
            where = at + chance.randrange(PAGE - 40)
            data[where : where + 40] = chance.randbytes(40)
        case "cut":
            del data[chance.randrange(1, len(data)) :]
        case "copy":
            other = chance.randrange(2, page_count) * PAGE
            data[at : at + PAGE] = good[other : other + PAGE]
        case _:
            data[at : at + PAGE] = bytes(PAGE)
    return bytes(data)


class TestCheck:
    """What it says of a file."""

    def test_an_index_that_is_well_passes_after_every_change(self, tmp_path: Path) -> None:
        """
        Empty, small, deep, with free pages and with none: nothing good is refused.
        """
        index = Index(tmp_path, map_bytes=MAP_BYTES)
        for seed in range(12):
            check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)
            churn(index, seed, rounds=2)
        index.close()

        assert check_index(tmp_path, key_bytes=KEY_BYTES, whole=True) > 100 * PAGE

    @pytest.mark.parametrize("large_bytes", [0, SMALL_BYTES])
    def test_an_index_whose_last_pages_were_never_written_is_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_bytes: int
    ) -> None:
        """One transaction wrote rows and removed the last ones again. LMDB counts the pages
        without writing them. The volume was left out as truncated at each start.
        """
        monkeypatch.setattr(indexcheck, "SMALL_BYTES", large_bytes)
        index = Index(tmp_path, map_bytes=MAP_BYTES)

        def change(rows: IndexChange) -> None:
            for block_id in range(1, 6):
                rows.put_block(ContainerId(1), BlockId(block_id), bytes(10 * PAGE))
            rows.delete_block(ContainerId(1), BlockId(5))

        index.write(change)
        index.close()
        data = (tmp_path / "data.mdb").read_bytes()
        counted = max(struct.unpack_from("<Q", data, at + 136)[0] + 1 for at in (0, PAGE))
        assert len(data) < counted * PAGE, "else this proves nothing"

        index = Index(tmp_path, map_bytes=MAP_BYTES, check_whole=False)

        with index.read() as rows:
            assert [1, 2, 3, 4] == [block_id for block_id, _ in rows.blocks(ContainerId(1))]
        churn(index, 1, rounds=5)
        index.close()
        check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)
        assert end_of(tmp_path) == "fine"

    def test_a_large_one_that_is_short_is_read_whole(
        self, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only a full check shows whether the missing pages are free."""
        monkeypatch.setattr(indexcheck, "SMALL_BYTES", 0)
        (tmp_path / "data.mdb").write_bytes(good[: len(good) // 2])

        with pytest.raises(VolumeFailed, match="truncated"):
            check_index(tmp_path, key_bytes=KEY_BYTES)

    def test_a_count_of_pages_that_cannot_be_takes_no_memory(
        self, good: bytes, tmp_path: Path
    ) -> None:
        """
        A bit of the meta page flipped: room for so many pages would end the agent.
        """
        data = bytearray(good)
        for at in (0, PAGE):
            data[at + 136 + 5] ^= 1
        (tmp_path / "data.mdb").write_bytes(data)

        with pytest.raises(VolumeFailed, match="truncated"):
            check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)

    def test_checked_index_never_kills_its_process(self, good: bytes, tmp_path: Path) -> None:
        """Seeded faults anywhere in the file are refused, or are harmless to reads and writes of
        LMDB.
        """
        ends: Counter[str] = Counter()
        for seed in range(SEEDS):
            shutil.rmtree(tmp_path / "db", ignore_errors=True)
            (tmp_path / "db").mkdir()
            (tmp_path / "db/data.mdb").write_bytes(damaged(good, seed))
            ends[end_of(tmp_path / "db")] += 1

        assert {"fine", "refused"} == set(ends)
        assert min(ends.values()) > SEEDS // 8

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            (lambda data: data[: len(data) // 2], "truncated"),
            (lambda data: data[:100], "meta page 0: truncated"),
            (lambda data: data[: PAGE + 60], "meta page 1: truncated"),
            (lambda data: b"\0" * PAGE + data[PAGE:], "meta page 0: not LMDB format"),
            (lambda data: data[: 2 * PAGE] + b"\0" * (len(data) - 2 * PAGE), "holds another page"),
        ],
    )
    def test_the_message_says_what_is_wrong(
        self, good: bytes, tmp_path: Path, fault: Callable[[bytes], bytes], words: str
    ) -> None:
        """
        File, page and reason, and what to do.
        """
        (tmp_path / "data.mdb").write_bytes(fault(good))

        with pytest.raises(VolumeFailed, match=words) as failure:
            check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)

        assert Code.UNABLE_TO_READ_METADATA_DB is failure.value.code
        assert str(tmp_path / "data.mdb") in str(failure.value)
        assert "restart the agent" in failure.value.hint

    def test_a_free_page_that_is_in_use_is_found(self, good: bytes, tmp_path: Path) -> None:
        """
        The next commit would write over a row: silent loss, which LMDB itself never sees.
        """
        (tmp_path / "data.mdb").write_bytes(good)
        meta = max(good[:PAGE], good[PAGE : 2 * PAGE], key=lambda page: page[144:152][::-1])
        free_root, main_root = (struct.unpack_from("<Q", meta, at)[0] for at in (80, 128))
        page = bytearray(good[free_root * PAGE : (free_root + 1) * PAGE])
        node = struct.unpack_from("<H", page, 16)[0]
        struct.pack_into("<Q", page, node + 24, main_root)  # head, key, count, then the first page
        with (tmp_path / "data.mdb").open("r+b") as file:
            file.seek(free_root * PAGE)
            file.write(page)

        with pytest.raises(VolumeFailed, match=f"page {main_root} is free, and in use"):
            check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)

    def test_a_pipe_or_link_in_its_place_is_refused(self, good: bytes, tmp_path: Path) -> None:
        """
        A reader would wait at the one for ever, and be led elsewhere by the other.
        """
        file = tmp_path / "data.mdb"
        os.mkfifo(file)
        with pytest.raises(VolumeFailed, match="is in its place"):
            check_index(tmp_path, key_bytes=KEY_BYTES)
        file.unlink()
        (tmp_path / "elsewhere").write_bytes(good)
        file.symlink_to(tmp_path / "elsewhere")

        with pytest.raises(VolumeFailed, match="is in its place"):
            check_index(tmp_path, key_bytes=KEY_BYTES)

    def test_a_large_one_is_read_whole_only_when_asked(
        self, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        After a clean stop a start does not wait for gigabytes.
        """
        (tmp_path / "data.mdb").write_bytes(good)
        monkeypatch.setattr(indexcheck, "SMALL_BYTES", 0)

        begun = check_index(tmp_path, key_bytes=KEY_BYTES)
        whole = check_index(tmp_path, key_bytes=KEY_BYTES, whole=True)

        assert begun < 4 * PAGE < whole


class TestVolumes:
    """What a store and fsck make of it."""

    def test_a_cut_index_leaves_one_volume_out(self, tmp_path: Path) -> None:
        """
        Mapped, it would kill the process (SIGBUS), at each start again.
        """
        store = open_store(tmp_path, volume_count=2)
        for container_id in (1, 2):
            closed_replica(store, container_id)
        bad_id = store.replica(ContainerId(2)).volume_id
        bad = next(volume.path for volume in store.volumes() if volume.volume_id == bad_id)
        store.close()
        file = VolumeLayout(bad, CLUSTER).database / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)

        store = open_store(tmp_path, volume_count=2)

        assert [1] == [facts.container_id for facts in store.replicas()]
        [failed] = [volume for volume in store.volumes() if volume.failed]
        assert (bad_id, bad) == (failed.volume_id, failed.path)
        assert str(file) in failed.error
        assert "restart the agent" in failed.error
        store.close()

    def test_fsck_says_what_is_wrong_with_an_index(self, tmp_path: Path) -> None:
        """An operator runs fsck when a volume was left out."""
        store = open_store(tmp_path)
        closed_replica(store)
        store.close()
        file = VolumeLayout(tmp_path / "v0", CLUSTER).database / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)

        [problem] = fsck(tmp_path / "v0").problems

        assert "INDEX_UNREADABLE" == problem.kind
        assert "truncated" in problem.message

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_an_index_that_was_not_closed_is_read_whole(
        self, tmp_path: Path, is_clean: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The index may have killed its process. One fault in a late page shows whether it was
        read.
        """
        store = open_store(tmp_path)
        closed_replica(store, 1, block_ids=range(1, 200))
        store.close()
        lock = VolumeLayout(tmp_path / "v0", CLUSTER).lock
        assert 0 == lock.stat().st_size, "a clean stop says so"
        if not is_clean:
            lock.write_text("1\na process that was killed\n")
        file = VolumeLayout(tmp_path / "v0", CLUSTER).database / "data.mdb"
        data = bytearray(file.read_bytes())
        for page in range(2, len(data) // PAGE):
            text = data[page * PAGE :][:PAGE]
            if b"k150" in text and b"tombstones" not in text:
                data[page * PAGE + 12] ^= 1  # its lower bound is odd now
        file.write_bytes(data)
        monkeypatch.setattr(indexcheck, "SMALL_BYTES", 0)

        if is_clean:
            open_store(tmp_path).close()
        else:
            with pytest.raises(VolumeFailed, match="has impossible bounds"):
                open_store(tmp_path)
            assert lock.stat().st_size, "the next start reads it again"
