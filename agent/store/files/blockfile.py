"""Block files: one file per block, each chunk at its own offset.

Bytes after the last recorded chunk are garbage of a write that was interrupted before it was
acknowledged. They are never read. The next write overwrites or truncates them.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import xxhash

from suture.errors import Code, RefusedError
from suture.runtime.durable import FILE_MODE, disk_errors, raise_shortage, sync_directory, write_all
from suture.runtime.file_kinds import no_file

T = TypeVar("T")

ALIGNMENT_BYTES: Final = 4096  # for O_DIRECT (offset, length, memory); a multiple of any sector
DIRECT_BYTES_MIN: Final = 512 * 1024  # shorter writes, one by one, are slower with O_DIRECT
REREADS_MAX: Final = 3  # attempts to get two equal reads of bytes that may be restored
ABSENT: Final = -1
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
FILE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
NO_BLOCK_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})


def size_bytes(path: Path) -> int:
    """Return the size of a block file in bytes; `ABSENT` if there is no regular file."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return ABSENT
    return facts.st_size if stat.S_ISREG(facts.st_mode) else ABSENT


def _open(path: Path, flags: int) -> int:
    """Open a block file. Follow no symbolic link in the place of the file or of its directory.

    Raise FileNotFoundError if there is no regular file, and OSError if it cannot be opened.
    """
    return _open_in(path.parent, path.name, flags)


def _open_in(directory: Path, name: str, flags: int) -> int:
    """Open a file by its directory and name. Opening by one long path would take twice the time."""
    try:
        directory_fd = os.open(directory, DIRECTORY_FLAGS)
    except NotADirectoryError as error:  # also raised for a symbolic link to a directory
        raise FileNotFoundError(errno.ENOENT, "no directory", str(directory)) from error
    try:
        fd = os.open(name, flags | FILE_FLAGS, FILE_MODE, dir_fd=directory_fd)
    except OSError as error:
        if error.errno not in NO_BLOCK_FILE:
            raise
        raise no_file(directory / name) from error
    finally:
        os.close(directory_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise no_file(directory / name)
    return fd


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file of a replica for a `with` block. Raise OSError if it cannot be opened."""
    fd = _open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def read(path: Path, offset: int, length_bytes: int) -> bytes:
    """Return the bytes in the range, fewer at the end of the file. Raise OSError if the read
    fails."""
    return read_in(path.parent, path.name, offset, length_bytes)


def read_in(directory: Path, name: str, offset: int, length_bytes: int) -> bytes:
    """Return the bytes in the range of a file given by its directory and name, fewer at the end of
    the file."""
    fd = _open_in(directory, name, os.O_RDONLY)
    try:
        data = os.pread(fd, length_bytes, offset)
        return data if len(data) == length_bytes else _read(fd, offset, length_bytes)
    finally:
        os.close(fd)


def read_past_cache(path: Path, offset: int, length_bytes: int) -> bytes:
    """Return the bytes on the disk, not those in the page cache. Raise OSError if the read fails.

    If the file system has no O_DIRECT, the file's cached pages are dropped before the read.
    """
    try:
        fd = _open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return _read_after_drop(path, offset, length_bytes)
    try:
        memory = _aligned(_end(length_bytes) + ALIGNMENT_BYTES)
        return bytes(_read_aligned(fd, memory, offset, length_bytes))
    except OSError:
        return _read_after_drop(path, offset, length_bytes)
    finally:
        os.close(fd)


def read_each_past_cache(path: Path, spans: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """Return the bytes on disk in several ranges (offset, length in bytes) of one file, which is
    opened once. An item is None if its range is unreadable."""
    return of_each_past_cache(path, spans, bytes)


def of_each_past_cache(
    path: Path, spans: Sequence[tuple[int, int]], use: Callable[[bytes | memoryview], T]
) -> list[T | None]:
    """Read each range from the disk, as `read_each_past_cache` does, and call `use` with its bytes.
    Return the results; the result is None for an unreadable range. The memory of the bytes is
    reused for the next range."""
    if len(spans) > 1:
        # If a range fails, each range is read alone, so that a failure affects no other range.
        with suppress(OSError), opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
            longest_bytes = max(length_bytes for _, length_bytes in spans)
            memory = _aligned(_end(longest_bytes) + ALIGNMENT_BYTES)
            return [use(_read_aligned(fd, memory, *span)) for span in spans]
    found: list[T | None] = []
    for offset, length_bytes in spans:
        try:
            found.append(use(read_past_cache(path, offset, length_bytes)))
        except OSError as error:
            raise_shortage(error, path)
            found.append(None)
    return found


def checksum_of(data: bytes) -> bytes:
    """Return a checksum to compare two reads of the same range."""
    return xxhash.xxh3_128_digest(data)


def read_agreed(read: Callable[[], bytes], before: bytes, seen: bytes = b"") -> bytes:
    """Repeat a read until two consecutive reads return the same bytes; return these, or b"" if all
    reads differ. `before` is the first read.

    A single read may have been altered in memory, and must not be written back over intact bytes.
    `seen` is the checksum of an earlier read, or b""; if `before` matches it, nothing is read
    again. Raise OSError if a read fails.
    """
    if seen and checksum_of(before) == seen:
        return before
    for _ in range(REREADS_MAX):
        again = read()
        if again == before:
            return again
        before = again
    return b""


def _read_aligned(fd: int, memory: memoryview, offset: int, length_bytes: int) -> memoryview:
    """Read a range into aligned memory; return the part of the memory that has the range."""
    start = offset - offset % ALIGNMENT_BYTES
    view = memory[: _end(offset + length_bytes) - start]
    filled = 0
    while filled < len(view):
        count = os.preadv(fd, [view[filled:]], start + filled)
        filled += count
        if count % ALIGNMENT_BYTES or not count:  # end of file
            break
    return view[offset - start : min(filled, offset - start + length_bytes)]


def _end(offset: int) -> int:
    """Return `offset`, rounded up to the alignment of O_DIRECT."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _aligned(length_bytes: int) -> memoryview:
    """Return aligned memory for O_DIRECT, from the heap. A new mapping for each read would need new
    pages from the kernel, which take longer than the read."""
    memory = np.empty(length_bytes + ALIGNMENT_BYTES, np.uint8)
    skipped_bytes = -memory.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return memory.data[skipped_bytes : skipped_bytes + length_bytes]


def _read_after_drop(path: Path, offset: int, length_bytes: int) -> bytes:
    with opened(path, os.O_RDONLY) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return _read(fd, offset, length_bytes)


def _read(fd: int, offset: int, length_bytes: int) -> bytes:
    piece = os.pread(fd, length_bytes, offset)
    if len(piece) == length_bytes:
        return piece
    pieces = [piece]
    while piece and length_bytes > len(piece):
        offset += len(piece)
        length_bytes -= len(piece)
        piece = os.pread(fd, length_bytes, offset)
        pieces.append(piece)
    return b"".join(pieces)


def append(path: Path, data: bytes, offset: int) -> None:
    """Write `data` durably at `offset`, the end of the recorded part of the block.

    Bytes after `offset` are truncated first. Raise SutureError if the truncation or the write
    fails; the recorded part is then unchanged.
    """
    created = False
    with disk_errors(path):
        try:
            fd = _open(path, os.O_RDWR)
        except FileNotFoundError:
            fd = _open(path, os.O_RDWR | os.O_CREAT)
            created = True
        try:
            check_single(fd)
            size = os.fstat(fd).st_size
            check_reached(path, size, offset)
            if size > offset:
                os.ftruncate(fd, offset)
            write_all(fd, data, offset)
            os.fdatasync(fd)
            if offset == 0:  # the name may be unsynced, even if an earlier process created it
                sync_directory(path.parent)
        except BaseException:
            _truncate_append(fd, path, offset, created=created)
            raise
        finally:
            os.close(fd)


def create(name: str, directory_fd: int) -> int | None:
    """Create the file of a new block; return its descriptor, or None if the name exists. Raise
    OSError if it cannot be created."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE_FLAGS
    try:
        return os.open(name, flags, FILE_MODE, dir_fd=directory_fd)
    except FileExistsError:
        return None


def check_single(fd: int) -> None:
    """Raise OSError if the file has more than one hard link, because a write would also change the
    file under its other names. The caller then needs `agent.store.replica.path_conflicts`, which
    replaces the file by a copy with one hard link."""
    names = os.fstat(fd).st_nlink
    if names > 1:
        raise OSError(errno.EMLINK, f"the file has {names} names and is not written in place")


def forget_tail(path: Path, offset: int) -> None:
    """Remove the bytes that `append` wrote at `offset` and that could not be recorded. Ignore
    errors, because bytes after the recorded part are never read."""
    with suppress(OSError):
        if offset == 0:
            path.unlink()
        else:
            truncate(path, offset)


def _truncate_append(fd: int, path: Path, offset: int, *, created: bool) -> None:
    with suppress(OSError):
        if created:
            path.unlink()
        elif os.fstat(fd).st_size > offset:
            os.ftruncate(fd, offset)


def overwrite(path: Path, data: bytes, offset: int) -> None:
    """Write `data` durably over existing bytes, or at the end of the file. Raise OSError if the
    write fails, or `RefusedError(CHUNK_GAP)` if the write would leave a hole."""
    overwrite_pieces(path, [(offset, data)])
    sync_directory(path.parent)


def overwrite_pieces(
    path: Path, pieces: Iterable[tuple[int, bytes]], *, is_synced: bool = True
) -> None:
    """Write each piece at its offset, over existing bytes or at the end. Sync the file if
    `is_synced`. The name of a new file is not durable yet. Raise the errors of `overwrite`."""
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        check_single(fd)
        for offset, data in pieces:
            check_reached(path, os.fstat(fd).st_size, offset)
            _write_piece(fd, data, offset)
        if is_synced:
            os.fdatasync(fd)


def write_new(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a new file that consists of these pieces in order, and sync it. Its name is not durable
    yet. Raise OSError if a write or the sync fails."""
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        offset = 0
        for data in pieces:
            _write_piece(fd, data, offset)
            offset += len(data)
        os.fdatasync(fd)


def _write_piece(fd: int, data: bytes, offset: int) -> None:
    if not _write_direct(fd, data, offset):
        write_all(fd, data, offset)


def _write_direct(fd: int, data: bytes, offset: int) -> bool:
    """Write a long piece past the page cache, because new cache pages cost more time than the disk.

    Return True if the piece was written. Return False if it is short or not aligned, or if the file
    system does not support O_DIRECT. Raise OSError if the write fails.
    """
    if len(data) < DIRECT_BYTES_MIN or (offset | len(data)) % ALIGNMENT_BYTES:
        return False
    memory = _aligned(len(data))
    memory[:] = data
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        return os.pwrite(fd, memory, offset) == len(data)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def truncate(path: Path, length_bytes: int) -> None:
    """Truncate a file durably. Raise OSError if this fails."""
    with opened(path, os.O_RDWR) as fd:
        check_single(fd)
        os.ftruncate(fd, length_bytes)
        os.fdatasync(fd)


def check_reached(path: Path, size_bytes: int, offset: int) -> None:
    """Raise RefusedError if `offset` is beyond the end of the file. A write there would leave a
    hole, which reads as zeros."""
    if size_bytes < offset:
        raise RefusedError(
            Code.CHUNK_GAP,
            f"{path}: file ends at byte {max(size_bytes, 0)}, "
            f"a chunk at {offset} would leave a hole",
        )
