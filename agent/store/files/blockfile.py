"""Block files: one file per block, each chunk at its own offset.

A write that was interrupted before its acknowledgement leaves bytes after the last recorded chunk.
These bytes are never read. The next write overwrites or truncates them.
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
    """Return the size of a block file in bytes.

    Return `ABSENT` if there is no regular file at `path`.
    """
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return ABSENT
    return facts.st_size if stat.S_ISREG(facts.st_mode) else ABSENT


def _open(path: Path, flags: int) -> int:
    """Open a block file. Do not follow a symbolic link at the path of the file or of its directory.

    Raise FileNotFoundError if there is no regular file, and OSError if it cannot be opened.
    """
    return _open_in(path.parent, path.name, flags)


def _open_in(directory: Path, name: str, flags: int) -> int:
    """Open a file in `directory`. Return its descriptor.

    The directory and the file are opened separately, because opening one long path takes twice the
    time.
    """
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
    """Open a file of a replica for a `with` block, which receives its descriptor.

    Raise OSError if the file cannot be opened.
    """
    fd = _open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def read(path: Path, offset: int, length_bytes: int) -> bytes:
    """Return `length_bytes` bytes at `offset`, or fewer if the file ends before that.

    Raise OSError if the read fails.
    """
    return read_in(path.parent, path.name, offset, length_bytes)


def read_in(directory: Path, name: str, offset: int, length_bytes: int) -> bytes:
    """Return `length_bytes` bytes at `offset` of the file `name` in `directory`.

    Return fewer bytes if the file ends before that. Raise OSError if the read fails.
    """
    fd = _open_in(directory, name, os.O_RDONLY)
    try:
        data = os.pread(fd, length_bytes, offset)
        return data if len(data) == length_bytes else _read(fd, offset, length_bytes)
    finally:
        os.close(fd)


def read_past_cache(path: Path, offset: int, length_bytes: int) -> bytes:
    """Return the bytes of a range from the disk, bypassing the page cache.

    If the file system refuses O_DIRECT, or the direct read fails, drop the file's cached pages and
    repeat the read without O_DIRECT. Raise OSError if this read fails, too.
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
    """Return the bytes of several ranges of one file from the disk, in the order of `spans`.

    Each span is (offset, length in bytes). An item is None if its range cannot be read.
    """
    return of_each_past_cache(path, spans, bytes)


def of_each_past_cache(
    path: Path, spans: Sequence[tuple[int, int]], use: Callable[[bytes | memoryview], T]
) -> list[T | None]:
    """Read each span from the disk, call `use` with its bytes, and return the results of the calls.

    Each span is (offset, length in bytes). A result is None if its range cannot be read. `use` must
    not keep the bytes, because their memory is reused for the next range.
    """
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
    """Return a checksum of `data`, with which two reads of the same range are compared."""
    return xxhash.xxh3_128_digest(data)


def read_agreed(read: Callable[[], bytes], before: bytes, seen: bytes = b"") -> bytes:
    """Repeat a read until two consecutive reads return the same bytes. Return these bytes.

    Return b"" if the reads still differ after REREADS_MAX attempts. `before` has the bytes of the
    first read. `seen` is the checksum of an earlier read, or b"". If `before` matches `seen`,
    return `before` without another read. Raise OSError if a read fails.

    A single read may have been altered in memory, and must not be written over intact bytes.
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
    """Read a range into aligned memory. Return a view of the part that contains the range."""
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
    """Return `offset`, rounded up to a multiple of ALIGNMENT_BYTES."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _aligned(length_bytes: int) -> memoryview:
    """Return `length_bytes` of memory from the heap, aligned for O_DIRECT.

    A memory map per read would be slower: the kernel needs more time for its new pages than for the
    read.
    """
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
    """Write `data` durably at `offset`, which is the end of the recorded part of the block.

    Truncate the bytes after `offset` first. Raise SutureError if the truncation or the write fails.
    The recorded part is then unchanged.
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
    """Create the file of a new block. Return its descriptor, or None if the name exists already.

    Raise OSError if the file cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE_FLAGS
    try:
        return os.open(name, flags, FILE_MODE, dir_fd=directory_fd)
    except FileExistsError:
        return None


def check_single(fd: int) -> None:
    """Raise OSError if the file has more than one hard link.

    A write would also change the file under its other names. After this error, the caller can use
    `agent.store.replica.path_conflicts` to replace the file by a copy with one hard link.
    """
    names = os.fstat(fd).st_nlink
    if names > 1:
        raise OSError(errno.EMLINK, f"the file has {names} names and is not written in place")


def forget_tail(path: Path, offset: int) -> None:
    """Remove the bytes that `append` wrote at `offset`, after their chunk could not be recorded.

    Ignore errors, because bytes after the recorded part are never read.
    """
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
    """Write `data` durably at `offset`, over existing bytes or at the end of the file.

    Raise OSError if the write fails. Raise `RefusedError(CHUNK_GAP)` if `offset` is beyond the end.
    """
    overwrite_pieces(path, [(offset, data)])
    sync_directory(path.parent)


def overwrite_pieces(
    path: Path, pieces: Iterable[tuple[int, bytes]], *, is_synced: bool = True
) -> None:
    """Write each (offset, bytes) piece over existing bytes, or at the end of the file.

    Sync the file if `is_synced`. If the file is new, its name is not durable yet. Raise the same
    errors as `overwrite`.
    """
    with opened(path, os.O_RDWR | os.O_CREAT) as fd:
        check_single(fd)
        for offset, data in pieces:
            check_reached(path, os.fstat(fd).st_size, offset)
            _write_piece(fd, data, offset)
        if is_synced:
            os.fdatasync(fd)


def write_new(path: Path, pieces: Iterable[bytes]) -> None:
    """Create a file that consists of these pieces in order, and sync its content.

    The name of the file is not durable yet. Raise OSError if a write or the sync fails.
    """
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
    """Write a long piece with O_DIRECT. Return True if this wrote the piece.

    Return False if the piece is short or not aligned, or if the file system refuses O_DIRECT. Raise
    OSError if the write fails. O_DIRECT is faster for long pieces, because the allocation of new
    cache pages takes more time than the disk.
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
    """Truncate a file to `length_bytes`, durably. Raise OSError if this fails."""
    with opened(path, os.O_RDWR) as fd:
        check_single(fd)
        os.ftruncate(fd, length_bytes)
        os.fdatasync(fd)


def check_reached(path: Path, size_bytes: int, offset: int) -> None:
    """Raise `RefusedError(CHUNK_GAP)` if `offset` is beyond the end of a file of `size_bytes`.

    A write at this offset would leave a hole, which reads as zeros.
    """
    if size_bytes < offset:
        raise RefusedError(
            Code.CHUNK_GAP,
            f"{path}: file ends at byte {max(size_bytes, 0)}, "
            f"a chunk at {offset} would leave a hole",
        )
