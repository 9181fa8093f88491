"""Where the tables of an archive lie while they are read."""

import os
import time
from pathlib import Path

import pytest

from ozone.transfer import scratch
from ozone.transfer.entries import ArchiveEntry
from ozone.transfer.scratch import MEMORY_BYTES_MAX, PREFIX, YOUNG_S, Scratch, clear_abandoned
from ozone.transfer.tables import keep_table, write_table
from suture.errors import UnavailableError
from tests.support.ozone.ozone_agent import served


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of that in memory, and another for all else."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(scratch, "MEMORY_FREE_BYTES_MIN", 0)
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    return memory


def kept(parent: Path) -> list[str]:
    """Return the names of all files below a directory."""
    return sorted(path.name for path in parent.rglob("*") if path.is_file())


def test_small_tables_are_kept_in_memory(memory: Path) -> None:
    """All of them in one directory, which is gone afterwards."""
    with Scratch(memory) as tables:
        for name in ("one", "two"):
            (tables.reserve(MEMORY_BYTES_MAX // 2) / name).write_bytes(name.encode())
        assert ["one", "two"] == kept(memory)
        assert tables.path.parent == memory

    assert [] == list(memory.iterdir())


def test_archive_tables_that_outgrow_memory_move_to_disk(memory: Path) -> None:
    """The tables written before move as well, before the next byte is written."""
    disk = memory.parent / "disk"
    with Scratch(memory) as tables:
        (tables.reserve(1) / "one").write_bytes(b"first")
        (tables.reserve(MEMORY_BYTES_MAX) / "two").write_bytes(b"second")

        assert [] == kept(memory)
        assert ["one", "two"] == kept(disk)
        assert b"first" == (tables.path / "one").read_bytes()
        assert tables.path == tables.reserve(1)  # and stays there

    assert [] == list(disk.iterdir())


@pytest.mark.parametrize("free_bytes_min", [2**62, 0])
def test_without_room_in_memory_the_disk_is_used(
    memory: Path, monkeypatch: pytest.MonkeyPatch, free_bytes_min: int
) -> None:
    """The memory file system is full, or its directory does not exist."""
    monkeypatch.setattr(scratch, "MEMORY_FREE_BYTES_MIN", free_bytes_min)
    with Scratch(memory if free_bytes_min else memory / "absent") as tables:
        (tables.reserve(1) / "one").write_bytes(b"first")

        assert ["one"] == kept(memory.parent / "disk")


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_scratch_of_a_killed_process_is_removed(memory: Path, is_on_disk: bool) -> None:
    """Directories in use, young directories and foreign ones stay. A killed import leaves up to
    two gibibytes.
    """
    place = memory.parent / "disk" if is_on_disk else memory
    old_s = time.time() - 2 * YOUNG_S
    for name in (f"{PREFIX}left", f"{PREFIX}young", "another"):
        (place / name).mkdir()
        (place / name / "table").write_bytes(b"rows")
    with Scratch(memory) as used:
        used.reserve(2 * MEMORY_BYTES_MAX if is_on_disk else 1)
        for path in (place / f"{PREFIX}left", place / "another", used.path):
            os.utime(path, (old_s, old_s))

        clear_abandoned(memory)

        assert {f"{PREFIX}young", "another", used.path.name} == {p.name for p in place.iterdir()}


def test_an_agent_without_room_for_tables_says_so(memory: Path) -> None:
    """The error concerns neither the archive, nor its sender or receiver, nor a volume."""
    disk = memory.parent / "disk"
    disk.rmdir()
    with pytest.raises(UnavailableError, match=r"tables of an archive: .*ENOENT"), Scratch(disk):
        pass
    with Scratch(memory) as tables, pytest.raises(UnavailableError, match="tables of an archive"):
        tables.reserve(2 * MEMORY_BYTES_MAX)
    with Scratch(memory) as tables:
        tables.path.rmdir()
        with pytest.raises(UnavailableError, match="tables of an archive"):
            keep_table(ArchiveEntry("db/block_data.data", 4, iter([memoryview(b"rows")])), tables)
    with pytest.raises(UnavailableError, match=rf"tables of an archive: IO error.*{disk}"):
        write_table(disk, "block_data", iter([(b"key", b"value")]))
    clear_abandoned(memory)  # which stops no start


@pytest.mark.skipif(not os.access(scratch.MEMORY, os.W_OK), reason="there is no memory to write to")
def test_an_agent_that_starts_does_so(tmp_path: Path) -> None:
    """Every agent that imports containers does so."""
    left = scratch.MEMORY / f"{PREFIX}{tmp_path.name}-{os.getpid()}"
    left.mkdir()
    os.utime(left, (0, 0))

    with served(tmp_path):
        assert not left.exists()
