"""Replacing files: the old content or the new one, and errors by what to do about them."""

import errno
import os
import stat
from pathlib import Path

import pytest

from agent.store.files import blockfile
from suture.errors import Code, SutureError, UnavailableError, VolumeFailed
from suture.runtime import durable
from tests.support.storage.stores import content


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """
    Nothing temporary is left.
    """
    path = tmp_path / "file"
    durable.replace_file(path, b"old, and longer")
    durable.replace_file(path, b"new")

    assert b"new" == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_a_discarded_stage_leaves_the_old_content(tmp_path: Path) -> None:
    """Its content is invisible until it is published."""
    path = tmp_path / "file"
    durable.replace_file(path, b"old")

    staged = durable.stage(path, b"new")
    seen = path.read_bytes()
    staged.discard()
    staged.publish()

    assert b"old" == seen == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_a_stage_is_published_once(tmp_path: Path) -> None:
    """
    A transaction that runs twice publishes once.
    """
    path = tmp_path / "file"
    staged = durable.stage(path, b"new")

    staged.publish()
    staged.publish()
    staged.discard()

    assert b"new" == path.read_bytes()


def test_a_stage_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """
    The error names the file.
    """
    with pytest.raises(VolumeFailed, match="missing/file"):
        durable.replace_file(tmp_path / "missing" / "file", b"new")

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, UnavailableError, Code.DISK_OUT_OF_SPACE),
        (errno.EDQUOT, UnavailableError, Code.DISK_OUT_OF_SPACE),
        (errno.EFBIG, UnavailableError, Code.DISK_OUT_OF_SPACE),
        (errno.EMFILE, UnavailableError, Code.BUSY),
        (errno.ENOMEM, UnavailableError, Code.BUSY),
        (errno.EIO, VolumeFailed, Code.IO_EXCEPTION),
        (errno.EROFS, VolumeFailed, Code.IO_EXCEPTION),
    ],
)
def test_an_error_says_what_to_do(number: int, kind: type[SutureError], code: Code) -> None:
    """
    Wait for space, try again, or stop using the volume.
    """
    with (
        pytest.raises(kind, match=errno.errorcode[number]) as raised,
        durable.disk_errors(Path("/v/file")),
    ):
        raise OSError(number, "planted")

    assert code is raised.value.code


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    """The target of a link is not removed."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept")
    inside = tmp_path / "inside"
    (inside / "deep" / "deeper").mkdir(parents=True)
    (inside / "deep" / "link").symlink_to(outside)
    (inside / "directory-link").symlink_to(tmp_path)

    durable.remove_tree(inside)
    durable.remove_tree(inside)

    assert [outside] == list(tmp_path.iterdir())
    assert b"kept" == outside.read_bytes()


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5000, 99_999, 100_000, 200_000])
@pytest.mark.parametrize("length_bytes", [1, 4096, 10_000])
def test_reading_past_the_cache_reads_the_same(
    tmp_path: Path, offset: int, length_bytes: int
) -> None:
    """A direct read returns the same bytes at every alignment, up to the end of the file and
    past it.
    """
    data = content("file", 100_000)
    path = tmp_path / "1.block"
    path.write_bytes(data)

    expected = data[offset : offset + length_bytes]

    assert expected == blockfile.read_past_cache(path, offset, length_bytes)
    assert expected == blockfile.read(path, offset, length_bytes)


class Syncs:
    """Notes what is made durable, and when, beside what is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        real_write, real_sync, real_directory = os.pwrite, os.fdatasync, durable.sync_directory

        def write(fd: int, data: memoryview, offset: int) -> int:
            self.steps.append("bytes")
            return real_write(fd, data, offset)

        def sync(fd: int) -> None:
            self.steps.append("sync of the bytes")
            real_sync(fd)

        def sync_directory(path: Path) -> None:
            self.steps.append("sync of the name")
            real_directory(path)

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(os, "fdatasync", sync)
        monkeypatch.setattr(blockfile, "sync_directory", sync_directory)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_first_chunk_of_a_file_is_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """The name is synced even if a process created the file and died before it synced the name."""
    path = tmp_path / "1.block"
    if is_there:
        path.write_bytes(b"cut off")
    syncs = Syncs(monkeypatch)

    blockfile.append(path, b"first", 0)

    assert ["bytes", "sync of the bytes", "sync of the name"] == syncs.steps
    assert b"first" == path.read_bytes()


def test_a_later_chunk_is_durable_when_it_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its bytes are, before anybody records it; the name was before.
    """
    path = tmp_path / "1.block"
    blockfile.append(path, b"first", 0)
    syncs = Syncs(monkeypatch)

    blockfile.append(path, b"second", 5)

    assert ["bytes", "sync of the bytes"] == syncs.steps


def test_bytes_written_over_others_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes and the name are synced before the journal entry of the old bytes ends."""
    path = tmp_path / "1.block"
    blockfile.append(path, b"first", 0)
    syncs = Syncs(monkeypatch)

    blockfile.overwrite(path, b"other", 0)

    assert ["bytes", "sync of the bytes", "sync of the name"] == syncs.steps


def test_a_file_is_replaced_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The new content is on the medium before it takes the old name; then that is, too.
    """
    steps: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(fd: int) -> None:
        steps.append(
            "sync of " + ("the name" if stat.S_ISDIR(os.fstat(fd).st_mode) else "the bytes")
        )
        real_sync(fd)

    def replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    durable.replace_file(tmp_path / "file", b"new")

    assert ["sync of the bytes", "rename", "sync of the name"] == steps


def test_many_files_are_replaced_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All new contents are on the medium before the first file is replaced; then all names are."""
    steps: list[str] = []
    real_sync, real_replace = durable.sync_all, Path.replace
    contents = {tmp_path / name: name.encode() for name in ("one", "two")}

    def sync(directory: Path) -> None:
        written = [path.with_name(f"{path.name}.tmp").exists() for path in contents]
        steps.append(f"sync with {sum(written)} new contents beside")
        real_sync(directory)

    def replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(durable, "sync_all", sync)
    monkeypatch.setattr(Path, "replace", replace)
    durable.replace_files(contents, below=tmp_path)

    ends = ("sync with 2 new contents beside", "sync with 0 new contents beside")
    assert [ends[0], "rename", "rename", ends[1]] == steps
    assert [b"one", b"two"] == [path.read_bytes() for path in contents]


def test_a_directory_that_is_there_is_made_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creator may have been killed, or be a thread that has not synced the name yet."""
    path = tmp_path / "group" / "replica"
    (tmp_path / "group").mkdir()
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_directory", synced.append)

    durable.make_directories(path, below=tmp_path)

    assert path.is_dir()
    assert [tmp_path, tmp_path / "group"] == synced
