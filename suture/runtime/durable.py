"""Durable replacement, creation and removal of files. After a crash, either the old or the new file
exists.

A replacement has five steps: create a temporary file in the same directory, write, fsync, rename,
and fsync the directory. Without the last step, a power cut may undo the rename; litestream and
Garage omit this step.

This is the only module that replaces files. It also classifies every `OSError` as a full disk, a
busy host or a failing volume.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suture.errors import BlockFailed, Code, SutureError, UnavailableError, VolumeFailed
from suture.runtime.file_kinds import no_file

TEMPORARY_SUFFIX: Final = ".tmp"
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
PUNCH_HOLE: Final = 0x03  # punch a hole, keep the size (linux/falloc.h)
NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENOTDIR})  # link, socket, no directory
HEAD_BYTES: Final = 128
SYNC_FILE_WRITE: Final = 2  # linux/fs.h

OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
CANNOT_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})
SHORT_OF_RESOURCES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}
)


def is_shortage(error: BaseException) -> bool:
    """Return True if an error means that the process or the machine lacks descriptors, memory or
    threads. Such an error is temporary and says nothing about the disk or its contents."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in SHORT_OF_RESOURCES


def is_out_of_space(error: Exception) -> bool:
    """Return True if an operation failed because the volume has no space, inodes or quota left."""
    if isinstance(error, SutureError):
        return error.code is Code.DISK_OUT_OF_SPACE
    return getattr(error, "errno", None) in OUT_OF_SPACE


def raise_shortage(error: BaseException, path: Path) -> None:
    """Raise `UnavailableError(BUSY)` if `error` means that the host lacks a resource. If the
    function returns, the cause of the error is the disk."""
    if is_shortage(error):
        raise _busy(error, path) from error


def _busy(error: BaseException, path: Path) -> UnavailableError:
    name = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
    message = f"{path}: {name}: {getattr(error, 'strerror', None) or error}"
    return UnavailableError(Code.BUSY, message, hint="raise the limits of the agent's unit")


def error_of(error: OSError, path: Path) -> SutureError:
    """Convert an `OSError` about `path` to a SutureError: no space, a busy host, or a failed
    volume."""
    if is_shortage(error):
        return _busy(error, path)
    name = errno.errorcode.get(error.errno or 0, "unknown")
    message = f"{path}: {name}: {error.strerror or error}"
    if error.errno in OUT_OF_SPACE:
        return UnavailableError(
            Code.DISK_OUT_OF_SPACE, message, hint="free space on the volume or add a volume"
        )
    return VolumeFailed(Code.IO_EXCEPTION, message, hint="check the disk and the kernel log")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert every `OSError` of the `with` block to a SutureError that names `path`; see
    `error_of`."""
    try:
        yield
    except OSError as error:
        raise error_of(error, path) from error


@contextmanager
def block_errors(path: Path) -> Iterator[None]:
    """Convert every `OSError` of the `with` block as `disk_errors` does, but raise `BlockFailed`
    instead of `VolumeFailed`. Used for the files of one block."""
    try:
        yield
    except OSError as error:
        known = error_of(error, path)
        if isinstance(known, VolumeFailed):
            raise BlockFailed(known.code, str(known), hint=known.hint) from error
        raise known from error


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`. Short writes are continued."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def open_file(path: Path) -> int:
    """Open a regular file for reading, and return its descriptor.

    Raise FileNotFoundError if there is no regular file at the path, and OSError for other errors. A
    symbolic link is not followed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise no_file(path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise no_file(path)
    return fd


class TooLarge(OSError):
    """Raised if a file is longer than its maximum, or longer than the length in its header. The
    file is not read."""


def read_file(
    path: Path,
    *,
    bytes_max: int,
    expected_bytes: Callable[[bytes], int] | None = None,
    read: Callable[[Path, int, int], bytes] | None = None,
) -> bytes:
    """Return the content of a regular file, which is opened with `open_file`.

    `expected_bytes` computes the length of the file from its first HEAD_BYTES bytes. `read`, if
    given, reads the file instead of a read through the page cache. Raise `TooLarge`, before the
    content is read, if the file is longer than `bytes_max` or than the expected length. Raise
    OSError if it cannot be read.
    """
    fd = open_file(path)
    try:
        size = os.fstat(fd).st_size
        limit = bytes_max
        if expected_bytes is not None:
            limit = min(limit, expected_bytes(os.pread(fd, HEAD_BYTES, 0)))
        if size > limit:
            raise TooLarge(errno.EBADMSG, f"{size} bytes, {limit} are possible", str(path))
        if read is not None:
            return read(path, 0, size)
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(size)
    finally:
        os.close(fd)


def read_head(path: Path, bytes_max: int) -> bytes:
    """Return the first bytes of a file, at most `bytes_max`, however long the file is. Raise
    OSError as `open_file` does."""
    fd = open_file(path)
    try:
        return os.pread(fd, bytes_max, 0)
    finally:
        os.close(fd)


def open_new(path: Path, flags: int = 0, *, refused: Collection[int] = ()) -> int:
    """Create an empty file for reading and writing, and return its descriptor.

    Only the store uses the name of the file, so any object at the path is removed first, and no
    link is followed. If the file system rejects `flags` with one of the errors `refused`, the file
    is opened without them. Raise OSError if the file cannot be created.
    """
    remove(path)
    create = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, create | flags, FILE_MODE)
    except OSError as error:
        if error.errno not in refused:
            raise
    remove_file(path)  # some file systems create the file although they refuse the flags
    return os.open(path, create, FILE_MODE)


def sync_directory(path: Path) -> None:
    """Sync a directory, which makes the names in it durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_path(path: Path) -> None:
    """Sync a file or a directory, which makes its content or its names durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(fd: int) -> None:
    """Make everything durable that was written to the file system of `fd`, including names
    (syncfs(2)).

    Used for many files at once, because an fsync of each of 100,000 files would take an hour. Raise
    OSError if it fails.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_all(directory: Path) -> None:
    """Make everything durable that was written to the file system of a directory. Raise OSError if
    it fails."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)


def allocate(fd: int, size_bytes: int) -> bool:
    """Set the size of a new file and allocate its space (fallocate(2)). The file then has only
    zeros.

    Return False if the file system does not support this. Raise OSError for other errors, for
    instance if there is no space. glibc's posix_fallocate is not used, because it writes zeros if
    the file system does not support the call.
    """
    return _fallocate(fd, 0, 0, size_bytes)


def punch(fd: int, *, offset: int, length_bytes: int) -> bool:
    """Free the space of a range of a file (hole punching). The range then has only zeros. Return
    False if the file system does not support this, or is too full for it. Raise OSError for other
    errors."""
    try:
        return length_bytes == 0 or _fallocate(fd, PUNCH_HOLE, offset, length_bytes)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            return False
        raise


def begin_writing(fd: int) -> None:
    """Start writing the data of a file to the disk, without waiting (sync_file_range(2)).

    The call makes nothing durable, and its errors are ignored. If a caller starts the writes of
    many files and then syncs each file, the writes overlap.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), SYNC_FILE_WRITE)


def _fallocate(fd: int, mode: int, offset: int, length_bytes: int) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    start, length = ctypes.c_long(offset), ctypes.c_long(length_bytes)
    while library.fallocate(fd, mode, start, length) != 0:
        code = ctypes.get_errno()
        if code in CANNOT_ALLOCATE:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def make_directories(path: Path, *, below: Path) -> None:
    """Create `path` and its missing parents below `below`. Each name is made durable in its parent
    directory.

    The parent of an existing directory is synced, too. The process that created the directory may
    have been killed before the sync, and a power cut would then remove the directory with its
    contents.
    """
    chain = []
    while path != below:
        chain.append(path)
        path = path.parent
    for directory in reversed(chain):
        with suppress(FileExistsError):
            directory.mkdir(DIRECTORY_MODE)
        sync_directory(directory.parent)


@dataclass(slots=True)
class StagedFile:
    """New content of a file, which has a temporary name and is not visible yet.

    The caller must call either `publish` or `discard`. A second call of the same method has no
    effect, because a transaction that publishes may run twice.
    """

    path: Path
    temporary: Path
    ended: bool = False

    def publish(self, *, syncs: bool = True) -> None:
        """Replace the old content of the file by the new content, durably if `syncs`."""
        if not self.ended:
            self.temporary.replace(self.path)
            self.ended = True
            if syncs:
                sync_directory(self.path.parent)

    def discard(self) -> None:
        """Delete the new content. The old file is unchanged."""
        if not self.ended:
            self.ended = True
            with suppress(OSError):  # the next stage of the same file overwrites it
                self.temporary.unlink()


def stage(path: Path, data: bytes, *, syncs: bool = True) -> StagedFile:
    """Write `data` to a temporary file next to `path`, durably if `syncs`. Raise OSError; the
    temporary file is then removed."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    staged = StagedFile(path, temporary)
    try:
        fd = open_new(temporary)
        try:
            write_all(fd, data, 0)
            if syncs:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        staged.discard()
        raise
    return staged


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of the file `path`, or create the file.

    Raise a SutureError if this fails (`BlockFailed` if the cause is the disk). The old file is then
    unchanged, unless only the final sync of the directory failed.
    """
    with block_errors(path):
        staged = stage(path, data)
        try:
            staged.publish()
        finally:
            staged.discard()


def replace_files(contents: Mapping[Path, bytes], *, below: Path) -> None:
    """Replace the content of many files, as `replace_file` does for one. All are below one
    directory of one file system, which is synced before and after the renames."""
    staged: list[StagedFile] = []
    try:
        for path, data in contents.items():
            with block_errors(path):
                staged.append(stage(path, data, syncs=False))
        with disk_errors(below):
            sync_all(below)
        for one in staged:
            with block_errors(one.path):
                one.publish(syncs=False)
        with disk_errors(below):
            sync_all(below)
    finally:
        for one in staged:
            one.discard()


def move(source: Path, target: Path) -> None:
    """Rename an object within one volume. The new name is durable before the old name is removed
    durably."""
    source.rename(target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def remove_file(path: Path) -> bool:
    """Remove a file. Return True if it existed. The caller must sync the directory."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory with its contents. Symbolic links are removed, not followed."""
    with suppress(FileNotFoundError):
        if path.is_symlink():
            path.unlink()
            return
        with os.scandir(path) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(Path(entry.path))
                else:
                    Path(entry.path).unlink()
        path.rmdir()


def remove(path: Path) -> None:
    """Remove an object of any kind; a directory with its contents. Raise OSError if this fails."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        remove_file(path)
