"""Objects through which the product uses the environment: writing files, the index, the C library.

Each object has the library's interface, limited to what the product uses, and notifies the kernel.
"""

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Protocol

from suture.runtime import durable
from tools.simulation.simulated_os.disk import Disk, Inode, Write
from tools.simulation.simulated_os.fibers import ProcessLifetime

PUNCH_HOLE: Final = 3


@dataclass(eq=False, slots=True)
class OpenFile:
    """An open descriptor of a process."""

    disk: Disk
    life: ProcessLifetime
    path: str
    number: int  # of its inode
    is_direct: bool = False  # reads bypass the page cache


class SystemCalls(Protocol):
    """The methods of the simulated kernel that these objects call."""

    def file(self, fd: int) -> OpenFile | None:
        """Return the simulated file of a descriptor, or None for a real one."""

    def step(self, what: str, path: str) -> None:
        """Record a call on a path. The process may die at this point."""

    def commit(self, environment: "Environment", transaction: Any) -> None:
        """Make a transaction of the index durable."""


class Writer:
    """A file object for writing. Its buffered bytes are written to the file by `flush`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._at = 0

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        """Append bytes to the buffer; return their number."""
        taken = bytes(data)
        self._buffer += taken
        return len(taken)

    def flush(self) -> None:
        """Write the buffered bytes."""
        data, self._buffer = bytes(self._buffer), bytearray()
        if data:
            durable.write_all(self._fd, data, self._at)
            self._at += len(data)

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._fd

    def close(self) -> None:
        """Write the buffered bytes, and close the file."""
        if self._fd < 0:
            return
        try:
            self.flush()
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)


class Environment:
    """An LMDB environment whose commits are recorded."""

    def __init__(self, kernel: SystemCalls, real: Any, disk: Disk, path: str) -> None:
        self._kernel = kernel
        self._real = real
        self.disk = disk
        self.path = path
        disk.adopt(path)
        disk.committed(path)

    def begin(self, *, write: bool = False, **options: Any) -> Any:
        """Begin a transaction."""
        transaction = self._real.begin(write=write, **options)
        return _Transaction(self._kernel, self, transaction) if write else transaction

    def open_db(self, *arguments: Any, **options: Any) -> Any:
        """Open or create a database of the environment."""
        inside = options.get("txn")
        if isinstance(inside, _Transaction):
            options["txn"] = inside.real
        database = self._real.open_db(*arguments, **options)
        self.disk.committed(self.path)
        return database

    def close(self) -> None:
        """Close the environment."""
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Transaction:
    """A writing transaction."""

    def __init__(self, kernel: SystemCalls, environment: Environment, real: Any) -> None:
        self._kernel = kernel
        self._environment = environment
        self.real = real

    def __enter__(self) -> "_Transaction":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            try:
                self.commit()
            except BaseException:
                self.real.abort()
                raise
        else:
            self.real.abort()

    def commit(self) -> None:
        """Commit the transaction, and make it durable."""
        self._kernel.commit(self._environment, self.real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Library:
    """`ctypes` with recorded calls into the C library."""

    def __init__(self, kernel: SystemCalls, real: Any) -> None:
        self._kernel = kernel
        self._ctypes = real

    def CDLL(self, *arguments: Any, **options: Any) -> Any:  # noqa: N802 - its name
        """Return the C library."""
        real = self._ctypes.CDLL(*arguments, **options)
        return SimpleNamespace(
            syncfs=lambda fd: self._syncfs(fd, real),
            fstatfs=real.fstatfs,
            fallocate=lambda fd, mode, start, length: self._fallocate(
                fd, mode, start, length, real
            ),
            sync_file_range=real.sync_file_range,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctypes, name)

    def _syncfs(self, fd: int, real: Any) -> int:
        file = self._kernel.file(fd)
        if file is None:
            return int(real.syncfs(fd))
        self._kernel.step("syncfs", file.path)
        file.disk.sync_all()
        return 0

    def _fallocate(self, fd: int, mode: int, start: Any, length: Any, real: Any) -> int:
        file = self._kernel.file(fd)
        code = int(real.fallocate(fd, mode, start, length))
        inode = None if file is None else file.disk.entry(fd)
        if code == 0 and isinstance(inode, Inode):
            if mode == PUNCH_HOLE:
                inode.pending.append(Write(start.value, bytes(length.value)))
            else:
                end = start.value + length.value
                inode.pending.append(Write(max(end, os.fstat(fd).st_size), None))
        return code
