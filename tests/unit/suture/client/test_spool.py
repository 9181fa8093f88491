"""Files whose reported size is wrong are stored whole, and copies are removed."""

import os
import stat
import tempfile
from io import BytesIO
from pathlib import Path

import pytest

from agent.cli.keys import sources_of
from suture.client import spool as spools
from suture.client.client import _source
from suture.client.file_pieces import SourceFile, chunks_of, pieces_of
from suture.client.spool import Spool

LARGE = os.urandom(spools.IN_MEMORY_BYTES_MAX + 1)


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def stored(source: SourceFile) -> bytes:
    """Return the bytes that a put of `source` sends."""
    pieces = pieces_of(source)
    return b"".join(data for piece in pieces for data in chunks_of(piece))


def test_file_of_proc_is_stored_whole() -> None:
    """Every file in /proc reports size 0."""
    path = Path("/proc/version")
    content = path.read_bytes()

    with Spool() as spool:
        by_command = [stored(source) for source in sources_of([str(path)], "", spool)]
        by_library = stored(_source("version", path, spool))

    assert content
    assert 0 == path.stat().st_size
    assert ([content], content) == (by_command, by_library)


def test_directory_with_files_of_size_zero_is_stored_whole() -> None:
    """A directory of /proc stands for a mount of such a file system."""
    path = Path("/proc/sys/kernel/random")

    with Spool() as spool:
        found = {s.key: stored(s) for s in sources_of([str(path)], "", spool)}

    assert (path / "boot_id").read_bytes() == found["random/boot_id"]


def lying_size(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Have every file report a size, as file systems do that make files as they are read."""
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        facts = list(real(descriptor))
        facts[stat.ST_SIZE] = size_bytes
        return os.stat_result(facts)

    monkeypatch.setattr(spools.os, "fstat", fstat)


@pytest.mark.parametrize("size_bytes", [0, 1, 4_096, len(LARGE) - 1, len(LARGE) + 4_096])
@pytest.mark.parametrize("content", [b"ab", LARGE], ids=["small", "large"])
def test_wrong_size_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int, content: bytes
) -> None:
    """/sys reports a page, others report too little or too much."""
    path = tmp_path / "file"
    path.write_bytes(content)
    lying_size(monkeypatch, size_bytes)

    with Spool() as spool:
        assert content == stored(spool.file("key", path))


@pytest.mark.parametrize("content", [b"", b"a", LARGE], ids=["empty", "small", "large"])
def test_file_with_its_size_is_not_copied(tmp_path: Path, content: bytes) -> None:
    """An ordinary file is read in place."""
    path = tmp_path / "file"
    path.write_bytes(content)

    with Spool() as spool:
        source = spool.file("key", path)

    assert (path, None, len(content)) == (source.path, source.data, source.size_bytes)


def test_copies_of_many_streams_take_bounded_memory(tmp_path: Path) -> None:
    """The bound is of all together: a put may be of thousands of such files."""
    piece = LARGE[: spools.IN_MEMORY_BYTES_MAX // 2]
    with Spool() as spool:
        sources = [spool.stream(f"key{i}", BytesIO(piece)) for i in range(5)]

        held_bytes = sum(len(source.data or b"") for source in sources)
        assert [piece] * 5 == [stored(source) for source in sources]
        assert held_bytes <= spools.IN_MEMORY_BYTES_MAX
    assert [] == list((tmp_path / "tmp").iterdir())


def test_copies_are_readable_under_any_umask() -> None:
    """Only the owner reads them, and the owner does."""
    before = os.umask(0o777)
    try:
        with Spool() as spool:
            source = spool.stream("key", BytesIO(LARGE))
            modes = [path.stat().st_mode & 0o777 for path in (source.path.parent, source.path)]
    finally:
        os.umask(before)

    assert [0o700, 0o600] == modes
