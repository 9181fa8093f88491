"""Background writes of files past the page cache, through a few aligned buffers.

A copied replica is not read again soon. In the page cache, it would displace data that clients
read. Large files are written with O_DIRECT, and medium ones with RWF_DONTCACHE if the file system
supports it.

The space of a large file is allocated first, because file systems write to a growing file at one
offset at a time. A large file is synced in the background.

A small file would need a disk request of its own. Therefore, some thousands of small files are
written to the page cache, synced together while the next ones are written, and then dropped from
the cache. The caller syncs all other files (`unsynced_count`).
"""

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from agent.store.files.blockfile import ALIGNMENT_BYTES
from suture.runtime.durable import FILE_MODE, allocate, sync_file_system, write_all
from suture.runtime.file_system_type import is_in_memory

BUFFER_BYTES: Final = 2 * 1024**2  # size of one write; enough to keep a disk's queue busy
BUFFERS_COUNT: Final = 8  # one is filled while the others are written at an uneven speed
WRITES_MAX: Final = BUFFERS_COUNT - 1
SYNCS_MAX: Final = 2
LARGE_BYTES_MIN: Final = 16 * 1024**2  # larger files are allocated and synced one by one
JOBS_MAX: Final = 2  # batches of small files: one runs and one waits
SMALL_BYTES_MAX: Final = 64 * 1024  # smaller files are synced together
CACHED_COUNT_MAX: Final = 4_096  # small files in the page cache before they are synced
CACHED_BYTES_MAX: Final = 16 * 1024**2
RWF_DONTCACHE: Final = 0x80  # Linux 6.14: pages are dropped once they are written
CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
REFUSED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})

assert BUFFER_BYTES % ALIGNMENT_BYTES == 0


class PendingWrite(Protocol):
    """A job that was submitted to an executor."""

    def result(self) -> object:
        """Wait until the job ends. Raise the exception that it raised."""
        ...


Submit = Callable[[Callable[[], None]], PendingWrite]


class WriteBehind:
    """Runs a bounded number of jobs in an executor.

    Without `submit`, each job runs in the caller's thread.
    """

    def __init__(self, submit: Submit | None) -> None:
        self._submit = submit
        self._pending: deque[PendingWrite] = deque()

    def run(self, job: Callable[[], None], *, others_max: int) -> PendingWrite | None:
        """Wait until at most `others_max` jobs are running, then start `job`.

        Return the started job if it may still be running, and None if it has ended. Raise the
        errors of earlier jobs.
        """
        self.make_room(others_max)
        if self._submit is None:
            job()
            return None
        self._pending.append(self._submit(job))
        return self._pending[-1]

    def make_room(self, others_max: int) -> None:
        """Wait until at most `others_max` jobs are running. Raise the errors of earlier jobs."""
        while len(self._pending) > others_max:
            self._pending.popleft().result()

    def under_way(self) -> list[PendingWrite]:
        """Return the submitted jobs that may still be running."""
        return list(self._pending)

    def wait_all(self) -> None:
        """Wait for all running jobs. Raise the first error."""
        self.make_room(0)

    def abandon(self) -> None:
        """Wait for all running jobs. Ignore their failures."""
        while self._pending:
            with suppress(Exception):  # the caller abandons the writes anyway
                self._pending.popleft().result()


class FileWriter:
    """Creates files in one directory, one after the other."""

    def __init__(self, directory_fd: int, submit: Submit | None) -> None:
        self._directory_fd = directory_fd
        self._behind = WriteBehind(submit)
        self._syncs = WriteBehind(submit)
        self.unsynced_count = 0
        self._cached: list[str] = []  # names of small files that may be unsynced
        self._cached_bytes = 0
        self._is_in_memory = is_in_memory(directory_fd)
        memory = memoryview(huge_pages(BUFFERS_COUNT * BUFFER_BYTES))
        self._buffers = deque(
            memory[start : start + BUFFER_BYTES] for start in range(0, len(memory), BUFFER_BYTES)
        )
        self._filled = 0
        self._fd = -1
        self._written = 0
        self._flags = RWF_DONTCACHE

    def write_whole(self, files: Sequence[tuple[str, memoryview]]) -> None:
        """Create these files, given as (name, content).

        The caller must not change the contents afterwards.
        """
        self.unsynced_count += len(files)
        self._behind.make_room(JOBS_MAX - 1)
        before = self._behind.under_way()

        def write() -> None:
            for job in before:  # two jobs would compete for the directory's lock
                job.result()
            self._write_each(files)

        self._behind.run(write, others_max=JOBS_MAX - 1)
        for name, data in files:
            if len(data) <= SMALL_BYTES_MAX:
                self._cached.append(name)
                self._cached_bytes += len(data)
        if len(self._cached) >= CACHED_COUNT_MAX or self._cached_bytes >= CACHED_BYTES_MAX:
            self._sync_cached()

    def _sync_cached(self) -> None:
        """Start a job that syncs the small files and then drops them from the page cache."""
        names, self._cached, self._cached_bytes = self._cached, [], 0
        before = self._behind.under_way()

        def sync() -> None:
            for job in before:  # no deadlock: all were submitted before this job
                job.result()
            sync_file_system(self._directory_fd)
            self._drop_pages(names)

        self._syncs.run(sync, others_max=SYNCS_MAX - 1)

    def drop_cached(self) -> None:
        """Drop the small files from the page cache. The caller must have synced them before."""
        self._drop_pages(self._cached)
        self._cached, self._cached_bytes = [], 0

    def _drop_pages(self, names: Sequence[str]) -> None:
        if self._is_in_memory:  # the pages cannot be dropped, and trying is expensive
            return
        for name in names:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory_fd)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def begin(self, name: str, size_bytes: int) -> int:
        """Create a file to which `size_bytes` will be appended.

        Return `size_bytes` if this space was allocated on the disk, otherwise 0. Raise OSError if
        the file cannot be created.
        """
        assert self._fd < 0, "one file at a time"
        self._fd = _open_direct(name, self._directory_fd)
        self._written = self._filled = 0
        is_worth_it = size_bytes >= LARGE_BYTES_MIN and not self._is_in_memory
        return size_bytes if is_worth_it and allocate(self._fd, size_bytes) else 0

    def append(self, data: memoryview) -> None:
        """Append bytes to the file that `begin` created.

        Raise OSError if this or an earlier write failed.
        """
        while data:
            buffer = self._buffers[0]
            count = min(len(data), BUFFER_BYTES - self._filled)
            buffer[self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == BUFFER_BYTES:
                self._flush()

    def end(self) -> None:
        """Write the remaining bytes and close the file, both in the background.

        A large file is synced before it is closed.
        """
        self._behind.make_room(WRITES_MAX - 1)  # if this raises, `abandon` closes the file
        self._syncs.make_room(SYNCS_MAX - 1)
        before = self._behind.under_way()
        fd, buffer, filled, offset = self._fd, self._buffers[0], self._filled, self._written
        is_synced = offset + filled >= LARGE_BYTES_MIN
        self.unsynced_count += not is_synced
        self._fd = -1

        def finish() -> None:
            is_open = is_synced
            try:
                for write in before:  # writes of this file; all were submitted before this job
                    write.result()
                if filled:
                    padded = -(-filled // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                    buffer[filled:padded] = bytes(padded - filled)
                    write_direct(fd, buffer[:padded], offset)
                    os.ftruncate(fd, offset + filled)
            except BaseException:
                is_open = False
                raise
            finally:
                if not is_open:
                    os.close(fd)

        written = self._behind.run(finish, others_max=WRITES_MAX - 1)
        self._buffers.rotate(-1)
        if is_synced:
            self._sync_behind(fd, written)

    def _sync_behind(self, fd: int, written: PendingWrite | None) -> None:
        """Start a job that syncs and closes a file after its last write.

        The job waits only for a write that was submitted before it. Therefore, two jobs never wait
        for each other.
        """

        def sync() -> None:
            if written is not None:
                written.result()  # if this raises, the write has closed the file
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

        self._syncs.run(sync, others_max=SYNCS_MAX - 1)

    def wait_written(self) -> None:
        """Wait until all data is written. Raise OSError if a write failed.

        Afterwards, `unsynced_count` of the files are not durable yet.
        """
        self._behind.wait_all()
        self._syncs.wait_all()

    def abandon(self) -> None:
        """Stop writing, and wait until no job is running. Ignore the failures of the jobs."""
        self._behind.abandon()
        self._syncs.abandon()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _flush(self) -> None:
        fd, buffer, offset = self._fd, self._buffers[0], self._written
        self._behind.run(lambda: write_direct(fd, buffer, offset), others_max=WRITES_MAX - 1)
        self._buffers.rotate(-1)
        self._written += self._filled
        self._filled = 0

    def _write_each(self, files: Sequence[tuple[str, memoryview]]) -> None:
        for name, data in files:
            fd = os.open(name, CREATE_FLAGS, FILE_MODE, dir_fd=self._directory_fd)
            try:
                if len(data) > SMALL_BYTES_MAX:
                    self._write_uncached(fd, data)
                elif (written := os.write(fd, data)) < len(data):
                    write_all(fd, data[written:], written)
            finally:
                os.close(fd)

    def _write_uncached(self, fd: int, data: memoryview) -> None:
        written = 0
        if self._flags:
            try:
                written = os.pwritev(fd, [data], 0, self._flags)
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                self._flags = 0
        write_all(fd, data[written:], written)


def huge_pages(size_bytes: int) -> mmap.mmap:
    """Return zeroed, page-aligned memory, in huge pages if the kernel has any.

    The kernel pins every page of the memory for a direct read or write. Fewer pages cost less time.
    """
    memory = mmap.mmap(-1, size_bytes)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _open_direct(name: str, directory_fd: int) -> int:
    try:
        return os.open(name, CREATE_FLAGS | os.O_DIRECT, FILE_MODE, dir_fd=directory_fd)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
    with suppress(FileNotFoundError):  # some file systems create the file before they refuse
        os.unlink(name, dir_fd=directory_fd)
    return os.open(name, CREATE_FLAGS, FILE_MODE, dir_fd=directory_fd)


def write_direct(fd: int, data: memoryview, offset: int) -> None:
    """Write full aligned pages at `offset`, with O_DIRECT if the file is open with it.

    If the file system accepted O_DIRECT at the open but refuses the write, write through the page
    cache.
    """
    try:
        write_all(fd, data, offset)
    except OSError as error:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if error.errno not in REFUSED or not flags & os.O_DIRECT:
            raise
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        write_all(fd, data, offset)
