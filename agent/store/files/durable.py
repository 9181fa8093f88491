"""Replacing, creating and removing files so that a crash leaves the old one or the new one.

    temporary file in the same directory ─ write ─ fsync ─ rename ─ fsync of the directory

The only module that replaces files. A rename without the last step may be undone by a power cut
(litestream's and Garage's persisters omit it). What `OSError` means to a caller is decided here,
too: a full disk, a busy host or a failing volume.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.errors import BlockFailed, Code, SutureError, Unavailable, VolumeFailed
from agent.store.files.kinds import no_file

TEMPORARY_SUFFIX: Final = ".tmp"
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
STATFS_WORDS: Final = 32  # more than the kernel fills
PUNCH_HOLE: Final = 0x03  # and keep the size (linux/falloc.h)
NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENOTDIR})  # a link, a socket, no place
HEAD_BYTES: Final = 128
SYNC_FILE_WRITE: Final = 2  # linux/fs.h
BTRFS: Final = 0x9123_683E  # linux/magic.h
IN_MEMORY: Final = frozenset({0x0102_1994, 0x8584_58F6})  # tmpfs, ramfs (linux/magic.h)

OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
CANNOT_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})
SHORT_OF_RESOURCES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}
)


def is_shortage(error: BaseException) -> bool:
    """Return whether the process or the machine is short of descriptors, memory or threads.

    It says nothing about the disk or about what is on it, and passes.
    """
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in SHORT_OF_RESOURCES


def is_out_of_space(error: Exception) -> bool:
    """Return whether a volume has no space, no inodes or no quota left for what failed."""
    if isinstance(error, SutureError):
        return error.code is Code.DISK_OUT_OF_SPACE
    return getattr(error, "errno", None) in OUT_OF_SPACE


def raise_shortage(error: BaseException, path: Path) -> None:
    """Raise `Unavailable(BUSY)` if `error` is a shortage: the caller takes any other error for what
    the disk holds."""
    if is_shortage(error):
        raise _busy(error, path) from error


def _busy(error: BaseException, path: Path) -> Unavailable:
    name = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
    message = f"{path}: {name}: {getattr(error, 'strerror', None) or error}"
    return Unavailable(Code.BUSY, message, hint="raise the limits of the agent's unit")


def error_of(error: OSError, path: Path) -> SutureError:
    """Return what `error` on `path` means to the caller: wait for space, retry, or fence."""
    if is_shortage(error):
        return _busy(error, path)
    name = errno.errorcode.get(error.errno or 0, "unknown")
    message = f"{path}: {name}: {error.strerror or error}"
    if error.errno in OUT_OF_SPACE:
        return Unavailable(
            Code.DISK_OUT_OF_SPACE, message, hint="free space on the volume or add a volume"
        )
    return VolumeFailed(Code.IO_EXCEPTION, message, hint="check the disk and the kernel's log")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn every `OSError` of the body into the store's own error, naming `path`."""
    try:
        yield
    except OSError as error:
        raise error_of(error, path) from error


@contextmanager
def block_errors(path: Path) -> Iterator[None]:
    """As `disk_errors`, of the files of one block: what fails with them alone is `BlockFailed`."""
    try:
        yield
    except OSError as error:
        known = error_of(error, path)
        if isinstance(known, VolumeFailed):
            raise BlockFailed(known.code, str(known), hint=known.hint) from error
        raise known from error


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write the whole of `data` at `offset`; a short write is continued, never ignored."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def open_file(path: Path) -> int:
    """Open a file of ours to be read; returns its descriptor. Raises OSError.

    What is no regular file is no file of ours: a link or a pipe that somebody put in its place is
    FileNotFoundError, and nothing of what it leads to is read.
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
    """A file claims to hold more than it ever can: nothing of it is read."""


def read_file(
    path: Path,
    *,
    bytes_max: int,
    expected_bytes: Callable[[bytes], int] | None = None,
    read: Callable[[Path, int, int], bytes] | None = None,
) -> bytes:
    """Return the content of a file of ours, see `open_file`.

    `expected_bytes` says from its first HEAD_BYTES how long it must be, `read` reads it otherwise
    than through the page cache. Raises OSError, `TooLarge` before more than that is in memory.
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
    """Return at most the first bytes of a file of ours that is small, or none of ours: a huge one
    costs no memory. Raises OSError, see `open_file`."""
    fd = open_file(path)
    try:
        return os.pread(fd, bytes_max, 0)
    finally:
        os.close(fd)


def open_new(path: Path, flags: int = 0, *, refused: Collection[int] = ()) -> int:
    """Open an empty file under a name that only we use; returns its descriptor. Raises OSError.

    What has the name is taken away, whatever it is: nothing is written to where a link leads.
    Where the file system refuses `flags` with one of the errors `refused`, they are left out.
    """
    remove(path)
    create = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, create | flags, FILE_MODE)
    except OSError as error:
        if error.errno not in refused:
            raise
    remove_file(path)  # some file systems create it before they refuse
    return os.open(path, create, FILE_MODE)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(fd: int) -> None:
    """Make all that was written to the file system of `fd` durable, names included (syncfs(2)).

    For many files at once: a journal commit for each of a hundred thousand would take an hour.
    Raises OSError.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_all(directory: Path) -> None:
    """Make all that was written to the file system of a directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file_system(fd)
    finally:
        os.close(fd)


def is_in_memory(fd: int) -> bool:
    """Return whether a file system has its files in the page cache alone (statfs(2)).

    Raises OSError.
    """
    return _file_system(fd) in IN_MEMORY


def is_on_btrfs(directory: Path) -> bool:
    """Return whether a directory is on btrfs, where what is there already needs space to be
    written again. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _file_system(fd) == BTRFS
    finally:
        os.close(fd)


def _file_system(fd: int) -> int:
    facts = (ctypes.c_ulong * STATFS_WORDS)()  # the type of the file system is the first
    library = ctypes.CDLL(None, use_errno=True)
    if library.fstatfs(fd, facts) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs failed")
    return facts[0]


def allocate(fd: int, size_bytes: int) -> bool:
    """Give a new file its size and its place on the disk (fallocate(2)), zeros until it is written;
    return whether the file system can. Raises OSError, as when there is no room.

    glibc's own posix_fallocate would write where the file system cannot.
    """
    return _fallocate(fd, 0, 0, size_bytes)


def punch(fd: int, *, offset: int, length_bytes: int) -> bool:
    """Give whole pages of a file back to the file system, which reads as zeros there then; return
    whether it took them: some cannot, and a full one may want room for that. Raises OSError."""
    try:
        return length_bytes == 0 or _fallocate(fd, PUNCH_HOLE, offset, length_bytes)
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            return False
        raise


def begin_writing(fd: int) -> None:
    """Have the kernel begin to write a file to the disk, and wait for nothing (sync_file_range(2)).

    Best effort: of many files that are synced one after the other then, the first sync finds the
    others on their way. It makes nothing durable.
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
    """Create `path` and its missing parents below `below`, each durable in its parent.

    Also one that is there: who made it may not have come to sync its name yet, or may have been
    killed before; a power cut would take all that is put into it.
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
class Staged:
    """A new file content that is durable under a temporary name and not yet visible.

    Exactly one of `publish` and `discard` ends it; both may be called again without effect,
    because a transaction that publishes may be run twice.
    """

    path: Path
    temporary: Path
    ended: bool = False

    def publish(self) -> None:
        """Put the content in the place of the old one, durably."""
        if not self.ended:
            self.temporary.replace(self.path)
            self.ended = True
            sync_directory(self.path.parent)

    def discard(self) -> None:
        """Forget the content; the old one stays."""
        if not self.ended:
            self.ended = True
            with suppress(OSError):  # the next stage of the same file overwrites it anyway
                self.temporary.unlink()


def stage(path: Path, data: bytes) -> Staged:
    """Write `data` durably beside `path`. Raises OSError; nothing is left then."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    staged = Staged(path, temporary)
    try:
        fd = open_new(temporary)
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        staged.discard()
        raise
    return staged


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of `path`, or create it: afterwards it is durable, or unchanged. Raises
    the store's errors, `BlockFailed` where this file fails: the volume's others may not."""
    with block_errors(path):
        staged = stage(path, data)
        try:
            staged.publish()
        finally:
            staged.discard()


def move(source: Path, target: Path) -> None:
    """Rename within one volume; the new name is durable before the old one is gone for good."""
    source.rename(target)
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def remove_file(path: Path) -> bool:
    """Unlink a file; returns whether it was there. The caller syncs the directory."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it; never follows a symbolic link, nor is one kept."""
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
    """Remove what has a name, a directory with all that is in it. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        remove_file(path)
