"""Files that claim more than they hold, and volumes without room: nothing is filled with zeros."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.files import extents
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId
from suture.errors import BlockFailed, Code, UnavailableError
from tests.support.storage.stores import (
    CHUNK_BYTES,
    CLUSTER,
    closed_replica,
    content,
    flip_bit,
    open_store,
    options_of_test,
    write_block,
)

ONE, BLOCK = ContainerId(1), BlockId(2)
HUGE_BYTES = 1024**4
END = 2 * CHUNK_BYTES
MARK = b"at the end of nothing"


def add_huge_tail(path: Path) -> None:
    """Put a hole of a tebibyte and some bytes behind what a block file has."""
    with path.open("r+b") as file:
        file.seek(HUGE_BYTES)
        file.write(MARK)


def kept(tmp_path: Path) -> Path:
    """Return the one piece in quarantine."""
    [found] = (tmp_path / "v0" / "hdds" / CLUSTER / "quarantine").glob("*.bytes")
    return found


def check_kept(path: Path) -> None:
    """Check that the tail is there, and takes no room."""
    facts = path.stat()
    assert HUGE_BYTES + len(MARK) == facts.st_size + END
    assert 512 * facts.st_blocks < 1024**2
    with path.open("rb") as file:
        file.seek(-len(MARK), os.SEEK_END)
        assert MARK == file.read()


def test_a_huge_sparse_tail_takes_no_room(store: ReplicaStore, tmp_path: Path) -> None:
    """The tail is trimmed at once, and its copy is as sparse as the original."""
    closed_replica(store)
    path = store.paths(ONE).block_file(BLOCK)
    add_huge_tail(path)

    assert HUGE_BYTES + len(MARK) == store.repair(ONE).trim(BLOCK) + END

    assert path.read_bytes() == content((2, 0)) + content((2, 1))
    check_kept(kept(tmp_path))


def test_a_close_takes_a_huge_sparse_tail_away(store: ReplicaStore, tmp_path: Path) -> None:
    """Uncommitted bytes go to quarantine with their holes."""
    store.create_container(ONE)
    write_block(store, ONE, BLOCK)
    add_huge_tail(store.paths(ONE).block_file(BLOCK))

    store.close_container(ONE, bcsid=1)

    assert store.paths(ONE).block_file(BLOCK).stat().st_size == END
    check_kept(kept(tmp_path))


def test_a_huge_linked_file_is_copied_with_its_holes(store: ReplicaStore, tmp_path: Path) -> None:
    """
    A file of its own takes no more room than the one that it was.
    """
    blocks = closed_replica(store)
    path = store.paths(ONE).block_file(BLOCK)
    flip_bit(path, 5)
    add_huge_tail(path)
    backup = tmp_path / "backup"
    backup.hardlink_to(path)

    store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[0], content((2, 0)))

    assert 512 * path.stat().st_blocks < 1024**2
    assert path.stat().st_size == backup.stat().st_size
    with path.open("rb") as file:
        assert file.read(END) == content((2, 0)) + content((2, 1))


class TestReserve:
    """Volumes whose free space is the reserve and not much more."""

    @pytest.fixture
    def tight(self, tmp_path: Path) -> Iterator[ReplicaStore]:
        """A store without room for one chunk beside its reserve; container 1 is closed."""
        store = open_store(tmp_path)
        closed_replica(store)
        store.close()
        space = os.statvfs(tmp_path)
        reserve = space.f_bavail * space.f_frsize * 2
        store = open_store(tmp_path, options=options_of_test(reserve_bytes=reserve))
        yield store
        store.close()

    def test_a_tail_that_would_touch_the_reserve_stays(self, tight: ReplicaStore) -> None:
        """The error has the required room, and no byte is moved."""
        path = tight.paths(ONE).block_file(BLOCK)
        with path.open("ab") as file:
            file.write(b"trailing" * 10_000)
        before = path.read_bytes()

        with pytest.raises(BlockFailed, match="more are needed") as caught:
            tight.repair(ONE).trim(BLOCK)

        assert Code.DISK_OUT_OF_SPACE is caught.value.code
        assert before == path.read_bytes()

    def test_a_repair_that_would_touch_the_reserve_is_refused(self, tight: ReplicaStore) -> None:
        """The damaged bytes stay, and there is no copy of them."""
        path = tight.paths(ONE).block_file(BLOCK)
        chunk = tight.view(ONE).block(BLOCK).chunks[0]
        flip_bit(path, 5)
        before = path.read_bytes()

        with pytest.raises(UnavailableError, match=f"{CHUNK_BYTES} more are needed") as caught:
            tight.repair(ONE).install_chunk(BLOCK, chunk, content((2, 0)))

        assert Code.DISK_OUT_OF_SPACE is caught.value.code
        assert before == path.read_bytes()
        quarantine = path.parents[4] / "quarantine"
        assert [] == list(quarantine.iterdir())


class TestCopy:
    def test_a_copy_that_reads_back_otherwise_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The written bytes are compared with those read back."""
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(content("copied"))
        real = extents.write_all
        monkeypatch.setattr(
            extents, "write_all", lambda fd, data, offset: real(fd, data[:-1] + b"?", offset)
        )
        with (
            source.open("rb") as reading,
            pytest.raises(OSError, match="reads back different bytes"),
        ):
            extents.copy(reading.fileno(), target, start=0, end=CHUNK_BYTES)

    def test_a_part_is_copied_with_the_holes_in_it(self, tmp_path: Path) -> None:
        """Data, a hole, data, and a hole at the end."""
        source, target = tmp_path / "source", tmp_path / "target"
        page = os.sysconf("SC_PAGE_SIZE")
        with source.open("w+b") as file:
            file.write(b"a" * page)
            file.seek(100 * page)
            file.write(b"b" * page)
            file.truncate(200 * page)
        with source.open("rb") as reading:
            extents.copy(reading.fileno(), target, start=10, end=200 * page)
        assert source.read_bytes()[10:] == target.read_bytes()
        assert 512 * target.stat().st_blocks <= 4 * page
