"""Where the tables of an archive lie while they are read."""

import os
import time
from pathlib import Path

import pytest

from ozone.transfer import scratch
from ozone.transfer.scratch import MEMORY_BYTES_MAX, PREFIX, YOUNG_S, Scratch, clear_abandoned
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


def test_what_outgrows_memory_is_moved_to_the_disk(memory: Path) -> None:
    """With what was written before, and before a byte of it is."""
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
    """It is full, or there is no such directory."""
    monkeypatch.setattr(scratch, "MEMORY_FREE_BYTES_MIN", free_bytes_min)
    with Scratch(memory if free_bytes_min else memory / "absent") as tables:
        (tables.reserve(1) / "one").write_bytes(b"first")

        assert ["one"] == kept(memory.parent / "disk")


def test_what_a_killed_process_left_in_memory_is_removed(memory: Path) -> None:
    """And nothing that is in use, or was made a moment ago."""
    old_s = time.time() - 2 * YOUNG_S
    for name in (f"{PREFIX}left", f"{PREFIX}young", "another"):
        (memory / name).mkdir()
        (memory / name / "table").write_bytes(b"rows")
    with Scratch(memory) as used:
        for path in (memory / f"{PREFIX}left", memory / "another", used.path):
            os.utime(path, (old_s, old_s))

        clear_abandoned(memory)

        assert {f"{PREFIX}young", "another", used.path.name} == {p.name for p in memory.iterdir()}


@pytest.mark.skipif(not os.access(scratch.MEMORY, os.W_OK), reason="there is no memory to write to")
def test_an_agent_that_starts_does_so(tmp_path: Path) -> None:
    """Whoever takes containers in."""
    left = scratch.MEMORY / f"{PREFIX}{tmp_path.name}-{os.getpid()}"
    left.mkdir()
    os.utime(left, (0, 0))

    with served(tmp_path):
        assert not left.exists()
