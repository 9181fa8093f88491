"""Output files of a salvage: each file gets its final name only when it is complete.

A file is written under a temporary name (suffix `%!`). It is renamed when all its bytes are
verified. If a path contains a symbolic link in place of a folder, writing is refused, so that no
file is written outside the output directory.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from suture.errors import Code, RefusedError
from suture.runtime.durable import sync_file_system

GROWING: Final = "%!"  # suffix of temporary names; no key's path has it
MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750


@contextmanager
def atomic_output(root: Path, relative: str) -> Iterator[IO[bytes]]:
    """Open a new file with a temporary name for a `with` block, and rename it to `relative`
    afterwards.

    If the block raises an exception, the file is removed. Raise RefusedError if a part of the path
    is not a directory, or if `relative` exists and is not a regular file.
    """
    path = root / relative
    _make_folders(root, path.parent)
    _refuse_other(path)
    draft = path.with_name(path.name + GROWING)
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, MODE), "wb") as file:
            yield file
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync(root: Path) -> None:
    """Sync the file system of the output directory.

    If the host crashes before the sync, files may be truncated. The next run detects this, because
    it compares all bytes of the files that exist.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def existing(root: Path, relative: str, size_bytes: int) -> Iterator[IO[bytes] | None]:
    """Open a file that an earlier run has written, so that the caller can compare its bytes.

    Yield None if there is no regular file with this name and size.
    """
    try:
        descriptor = os.open(root / relative, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        is_it = stat.S_ISREG(facts.st_mode) and facts.st_size == size_bytes
        yield file if is_it else None


def _make_folders(root: Path, folder: Path) -> None:
    at = root
    for name in folder.relative_to(root).parts:
        at = at / name
        try:
            at.mkdir(DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(at.lstat().st_mode):
                raise RefusedError(
                    Code.INVALID_CONFIG,
                    f"cannot write below {at}: it is not a directory",
                    hint="name an empty directory",
                ) from None


def _refuse_other(path: Path) -> None:
    """Raise RefusedError if the path exists and is not a regular file."""
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot write {path}: it is not a regular file",
            hint="name an empty directory",
        )
