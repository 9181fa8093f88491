"""Replaces the system calls on simulated volumes while a simulation runs.

Product code calls `os.pwrite`, `os.rename`, `lmdb.open` as usual. On a simulated disk, each call is
a step of the scheduler and may fail like a disk operation. It is executed on the real file and
recorded in the model of the disk. Calls of other threads, and on other paths, are not changed.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import lmdb

from suture.runtime import durable
from tools.simulation.simulated_os.disk import Directory, Disk, Inode, Write
from tools.simulation.simulated_os.fibers import ProcessDied, ProcessLifetime, Scheduler
from tools.simulation.simulated_os.handles import Environment, Library, OpenFile, Writer

Bytes = int

BLOCKS_FREE: Final = 2**28  # of 4 KiB

SYSCALLS: Final = (
    *("open", "close", "read", "pread", "preadv", "write", "pwrite", "pwritev", "ftruncate"),
    *(
        "fsync",
        "fdatasync",
        "posix_fadvise",
        "unlink",
        "remove",
        "rename",
        "replace",
        "mkdir",
        "rmdir",
        "link",
    ),
)


class Faults:
    """Faults of single operations; this base class causes none."""

    def before(self, what: str, path: str, life: ProcessLifetime) -> None:
        """Raise OSError if the operation must fail, or `ProcessDied` if the process must die before
        the operation."""

    def read(self, path: str, data: bytes) -> bytes:
        """Return the bytes that a read of `data` returns."""
        del path
        return data

    def write(self, path: str, offset: int, data: bytes) -> bytes | None:
        """Return the bytes that reach the disk; None if no bytes reach it."""
        del path, offset
        return data


class Kernel:
    """All simulated disks of one schedule."""

    def __init__(self, scheduler: Scheduler, faults: Faults) -> None:
        self._scheduler = scheduler
        self.faults = faults
        self.disks: list[Disk] = []
        self.opened: dict[int, OpenFile] = {}
        self.released: set[int] = set()  # descriptors of dead processes
        self.environments: dict[ProcessLifetime, list[Any]] = {}
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in SYSCALLS}
        self._real_lmdb, self._real_statvfs = lmdb.open, os.statvfs
        self._real_open, self._real_fdopen = io.open, os.fdopen

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the system calls during the body."""
        real_ctypes = vars(durable)["ctypes"]
        for name in SYSCALLS:
            setattr(os, name, getattr(self, f"_{name}"))
        real_open, real_fdopen = io.open, os.fdopen
        vars(io)["open"] = self._io_open
        vars(os)["fdopen"] = self._fdopen
        vars(lmdb)["open"] = self._lmdb_open
        vars(os)["statvfs"] = self._statvfs
        vars(durable)["ctypes"] = Library(self, real_ctypes)
        try:
            yield
        finally:
            for name, function in self._real.items():
                setattr(os, name, function)
            vars(io)["open"], vars(os)["fdopen"] = real_open, real_fdopen
            vars(lmdb)["open"] = self._real_lmdb
            vars(os)["statvfs"] = self._real_statvfs
            vars(durable)["ctypes"] = real_ctypes

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let this fiber access disks without steps and without faults during the body. Operations
        of other fibers remain part of the schedule."""
        fiber = self._scheduler.current
        was, fiber.is_quiet = fiber.is_quiet, True
        try:
            yield
        finally:
            fiber.is_quiet = was

    def died(self, life: ProcessLifetime) -> None:
        """Close the descriptors of a dead process, whose fibers have ended."""
        for environment in self.environments.pop(life, ()):
            environment.close()
        for fd in [fd for fd, one in self.opened.items() if one.life is life]:
            one = self.opened.pop(fd)
            with suppress(OSError):  # closed by a file object, bypassing this module
                if os.fstat(fd).st_ino == one.number:
                    self._real["close"](fd)
                    self.released.add(fd)

    # Finding the caller.

    def _is_watched(self) -> bool:
        return self._scheduler.is_inside() and not self._scheduler.current.is_quiet

    def _life(self) -> ProcessLifetime | None:
        lives = self._scheduler.current.lives
        return lives[-1] if lives else None

    def _disk(self, path: Any, dir_fd: int | None = None) -> tuple[Disk, str] | None:
        if not self._is_watched() or self._life() is None:
            return None
        text = os.fspath(path) if not isinstance(path, int) else ""
        if dir_fd is not None and not text.startswith("/"):
            holder = self.opened.get(dir_fd)
            if holder is None:
                return None
            return holder.disk, f"{holder.path}/{text}"
        for disk in self.disks:
            if text.startswith(disk.prefix) or text == disk.name:
                return disk, text
        return None

    def file(self, fd: Any) -> OpenFile | None:
        if not isinstance(fd, int) or not self._is_watched():
            return None
        return self.opened.get(fd)

    def step(self, what: str, path: str) -> None:
        life = self._life()
        assert life is not None, "no process is running"
        if life.is_dead:
            raise ProcessDied(life)
        self._scheduler.point(f"{what} {path}")
        self.faults.before(what, path, life)
        if life.is_dead:
            raise ProcessDied(life)

    # Names.

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._disk(path, dir_fd)
        if place is None:
            fd = int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
            self.released.discard(fd)
            return fd
        disk, name = place
        self.step("create" if flags & os.O_CREAT else "open", name)
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(name)
        fd = int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        life = self._life()
        assert life is not None, "checked before"
        self.released.discard(fd)
        is_direct = bool(flags & os.O_DIRECT)
        self.opened[fd] = OpenFile(disk, life, name, os.fstat(fd).st_ino, is_direct)
        if is_new:
            parent, base = self._parent(disk, name)
            disk.appeared(parent, base, fd, is_file=True)
        return fd

    def _close(self, fd: int) -> None:
        if self._scheduler.is_inside() and not self._forget(fd) and fd in self.released:
            raise OSError(errno.EBADF, "its process is dead")  # an abandoned generator
        self._real["close"](fd)

    def _forget(self, fd: int) -> bool:
        return self.opened.pop(fd, None) is not None

    def _parent(self, disk: Disk, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        parent = disk.directory(above)
        assert parent is not None, f"{above} is no directory of this disk"
        return parent, name

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove_name("unlink", path, dir_fd)

    def _remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove_name("unlink", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove_name("rmdir", path, dir_fd)

    def _remove_name(self, what: str, path: Any, dir_fd: int | None) -> None:
        place = self._disk(path, dir_fd)
        if place is not None:
            self.step(what, place[1])
        self._real[what](path, dir_fd=dir_fd)
        if place is not None:
            disk, name = place
            parent, base = self._parent(disk, name)
            disk.renamed((parent, base, None))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._disk(path, dir_fd)
        if place is not None:
            self.step("mkdir", place[1])
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if place is not None:
            disk, name = place
            parent, base = self._parent(disk, name)
            disk.appeared(parent, base, name, is_file=False)

    def _rename(
        self,
        source: Any,
        target: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        self._move("rename", source, target, src_dir_fd, dst_dir_fd)

    def _replace(
        self,
        source: Any,
        target: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        self._move("replace", source, target, src_dir_fd, dst_dir_fd)

    def _move(
        self, what: str, source: Any, target: Any, src_dir_fd: int | None, dst_dir_fd: int | None
    ) -> None:
        here, there = self._disk(source, src_dir_fd), self._disk(target, dst_dir_fd)
        entry = None
        if here is not None and there is not None:
            self.step("rename", f"{here[1]} {there[1].rpartition('/')[2]}")
            entry = here[0].entry(here[1])
        self._real[what](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if here is not None and there is not None:
            disk = here[0]
            old, new = self._parent(disk, here[1]), self._parent(disk, there[1])
            disk.renamed((*old, None), (*new, entry))

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        place = self._disk(target)
        if place is not None:
            self.step("link", place[1])
        self._real["link"](source, target, **more)
        if place is not None:
            disk, name = place
            disk.renamed((*self._parent(disk, name), disk.entry(name)))

    # Bytes.

    def _write_at(self, fd: int, offset: int, data: bytes, do: Callable[[bytes], int]) -> int:
        file = self.file(fd)
        if file is None:
            return do(data)
        self.step("write", file.path)
        reached = self.faults.write(file.path, offset, data)
        if reached is None:
            return len(data)
        do(reached)
        inode = file.disk.entry(fd)
        if isinstance(inode, Inode):
            inode.is_dead = False  # a disk remaps a bad sector that is written
            inode.pending.append(Write(offset, reached))
        return len(data)

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self._write_at(
            fd, offset, bytes(data), lambda reached: int(self._real["pwrite"](fd, reached, offset))
        )

    def _pwritev(self, fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if self.file(fd) is None:
            return int(self._real["pwritev"](fd, buffers, offset, flags))
        return self._pwrite(fd, b"".join(bytes(one) for one in buffers), offset)

    def _write(self, fd: int, data: Any) -> int:
        if self.file(fd) is None:
            return int(self._real["write"](fd, data))
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        count = self._pwrite(fd, data, offset)
        os.lseek(fd, offset + count, os.SEEK_SET)
        return count

    def _ftruncate(self, fd: int, length: Bytes) -> None:
        file = self.file(fd)
        if file is not None:
            self.step("truncate", file.path)
        self._real["ftruncate"](fd, length)
        self._note_size(fd, file, length)

    def _note_size(self, fd: int, file: OpenFile | None, length: Bytes) -> None:
        inode = None if file is None else file.disk.entry(fd)
        if isinstance(inode, Inode):
            inode.pending.append(Write(length, None))

    def _fsync(self, fd: int) -> None:
        file = self.file(fd)
        if file is None:
            self._real["fsync"](fd)
            return
        self.step("fsync", file.path)
        entry = file.disk.entry(fd)
        if isinstance(entry, Inode):
            file.disk.sync_file(entry)
        elif isinstance(entry, Directory):
            file.disk.sync_directory(entry)

    def _fdatasync(self, fd: int) -> None:
        self._fsync(fd)

    def _read(self, fd: int, length: Bytes) -> bytes:
        return bytes(self._real["read"](fd, length))

    def _pread(self, fd: int, length: Bytes, offset: int) -> bytes:
        file = self.file(fd)
        if file is not None:
            self.step("read", file.path)
        data = bytes(self._real["pread"](fd, length, offset))
        if file is not None and (medium := self._medium(fd, file)) is not None:
            data = medium[offset : offset + length]
        return data if file is None else self.faults.read(file.path, data)

    def _preadv(self, fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        file, medium = self.file(fd), None
        if file is not None:
            try:
                self.step("read", file.path)
                medium = self._medium(fd, file)
            except BaseException:
                buffers = ()  # the traceback has this frame, which must not keep the memory alive
                raise
        count = int(self._real["preadv"](fd, buffers, offset, flags))
        if medium is not None:
            count = _filled(buffers, medium[offset:])
        if file is not None and count and len(buffers) == 1:
            view = memoryview(buffers[0]).cast("B")
            seen = bytes(view[:count])
            given = self.faults.read(file.path, seen)
            if given != seen:
                view[:count] = given
        return count

    def _medium(self, fd: int, file: OpenFile) -> bytes | None:
        """Return the bytes on the disk if a read bypasses the page cache and the two differ; None
        otherwise. Raise OSError(EIO) if the bytes are unreadable."""
        inode = file.disk.entry(fd) if file.is_direct else None
        if not isinstance(inode, Inode) or not inode.is_hidden:
            return None
        if inode.is_dead:
            raise failure(EIO, file.path)
        return inode.medium()

    def _posix_fadvise(self, fd: int, offset: int, length: Bytes, advice: int) -> None:
        self._real["posix_fadvise"](fd, offset, length, advice)
        file = self.file(fd)
        if file is not None and advice == os.POSIX_FADV_DONTNEED:
            file.is_direct = True  # later reads come from the medium

    def _io_open(self, path: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if "w" not in mode or isinstance(path, int) or self._disk(path) is None:
            return self._real_open(path, mode, *more, **options)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return Writer(self._open(path, flags, 0o640))

    def _fdopen(self, fd: int, mode: str = "r", *more: Any, **options: Any) -> Any:
        if "w" not in mode or self.file(fd) is None:
            return self._real_fdopen(fd, mode, *more, **options)
        return Writer(fd)

    def _statvfs(self, path: Any) -> os.statvfs_result:
        """Return the statistics of a file system. On a simulated disk, the free space is constant,
        so that other processes have no effect."""
        if self._disk(path) is None:
            return self._real_statvfs(path)
        free = BLOCKS_FREE
        return os.statvfs_result((4096, 4096, 2 * free, free, free, 10**6, 10**6, 10**6, 0, 255))

    # The index.

    def _lmdb_open(self, path: str, **options: Any) -> Any:
        place = self._disk(path)
        if place is None:
            return self._real_lmdb(path, **options)
        life = self._life()
        assert life is not None, "checked before"
        self.step("open index", path)
        environment = self._real_lmdb(path, **options)
        self.environments.setdefault(life, []).append(environment)
        return Environment(self, environment, place[0], path)

    def commit(self, environment: "Environment", transaction: Any) -> None:
        """Commit a transaction; the process may die before or after it."""
        self.step("commit", environment.path)
        transaction.commit()
        environment.disk.committed(environment.path)
        self.step("committed", environment.path)


def _filled(buffers: Any, data: bytes) -> int:
    """Copy bytes into consecutive buffers; return the number of copied bytes."""
    at = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        part = data[at : at + len(view)]
        view[: len(part)] = part
        at += len(part)
        view.release()
    return at


def failure(code: int, path: str) -> OSError:
    """Return the error of a disk."""
    return OSError(code, os.strerror(code), path)


EIO: Final = errno.EIO
EMFILE: Final = errno.EMFILE
ENOSPC: Final = errno.ENOSPC
