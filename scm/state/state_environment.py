"""The LMDB environment of a state.

One process writes to it, and others may copy it at the same time. LMDB normally registers its
readers in a shared lock file. On a full btrfs, such a file would kill the writing process, so it
keeps the table of readers in its own memory (`lock_file_in_memory`). Other processes can therefore
not register as readers. Instead, file locks (flock) prevent LMDB from reusing the pages that they
copy:

- The copying process holds a shared lock on COPY_LOCK from before its snapshot until the end. While
  it takes the snapshot, it also holds an exclusive lock on the directory.
- The writing process holds an exclusive lock on the directory during each transaction. While
  COPY_LOCK is locked, it keeps a read transaction open that is at least as old as each snapshot.

The kernel releases the locks of a killed process. A process that opens the environment for writing
cannot protect the pages of earlier snapshots. Therefore, it first creates a new COPY_LOCK file. At
its end, a copying process discards the copy if COPY_LOCK is another file than before.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from suture.errors import Code, UnavailableError
from suture.runtime.lmdb_lock_file import lock_file_in_memory

DATA: Final = "data.mdb"
DATABASES_MAX: Final = 32  # tables and their predecessors, with room for more
MAP_BYTES: Final = 2**40  # above any state's size; only address space is reserved
LOCK_FILE: Final = "lock.mdb"
COPY_LOCK: Final = "copy.lock"
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o755  # as LMDB creates it; the directory above has the permissions
LOCK_WAIT_S: Final = 10.0  # the other process needs the lock for at most one commit
LOCK_POLL_S: Final = 0.001


class StateEnvironment:
    """The LMDB environment of a state, opened for writing.

    Only one process has it open, and only one thread may write at a time. Any thread may read.
    """

    def __init__(self, path: Path, map_bytes: int) -> None:
        """Open or create the files in `path`. Raise lmdb.Error or OSError if this fails."""
        self._path = path
        self._map_bytes = map_bytes
        self._reads = threading.Lock()  # prevents reads while the environment is replaced
        self._pin: lmdb.Transaction[bytes] | None = None
        self._copy_lock = -1
        self.databases: Final[dict[str, Any]] = {}
        self.number = 0
        """The number of the last durable transaction."""
        path.mkdir(DIRECTORY_MODE, exist_ok=True)
        self._directory = _descriptor(path)
        try:
            with _locked(self._directory):
                self._environment = self._opened()
        except BaseException:
            self._close_locks()
            raise
        self.number = _number_of(self._environment)

    def _opened(self) -> lmdb.Environment:
        copy_lock = _new_copy_lock(self._path)
        if self._copy_lock >= 0:
            os.close(self._copy_lock)
        self._copy_lock = copy_lock
        (self._path / LOCK_FILE).unlink(missing_ok=True)  # left by a killed process
        with lock_file_in_memory(self._path / LOCK_FILE):
            environment = lmdb.open(
                str(self._path),
                map_size=self._map_bytes,
                max_dbs=DATABASES_MAX,
                metasync=True,
                sync=True,
            )
        info, page_bytes = environment.info(), environment.stat()["psize"]
        if (self._path / DATA).stat().st_size < (info["last_pgno"] + 1) * page_bytes:
            environment.close()  # a read beyond the end of a mapped file kills the process
            raise lmdb.CorruptedError("data.mdb is truncated: restore a backup")
        return environment

    def open_databases(self, names: Iterable[str]) -> None:
        """Open the databases with these names. Create the missing ones."""
        with self.write() as transaction:
            for name in names:
                handle = self._environment.open_db(name.encode(), txn=transaction)
                self.databases[name] = handle

    @contextmanager
    def read(self) -> Iterator["lmdb.Transaction[bytes]"]:
        """Yield a read transaction, which must be short.

        Raise UnavailableError if LMDB cannot begin one. It may be possible again after the next
        change.
        """
        with self._reads:
            try:
                transaction = self._environment.begin()
            except lmdb.Error as error:
                why = f"the state cannot be read: {error}"
                raise UnavailableError(Code.UNAVAILABLE, why) from error
            with transaction:
                yield transaction

    @contextmanager
    def write(self) -> Iterator["lmdb.Transaction[bytes]"]:
        """Yield a write transaction.

        Commit it at the end, or abort it if the body raises an exception. Raise lmdb.Error or
        OSError if the commit fails. Raise UnavailableError(BUSY) if a copying process holds the
        lock for too long.
        """
        with _locked(self._directory):
            self._open_again_after_panic()
            self._pin_copied_pages()
            with self._environment.begin(write=True) as transaction:
                yield transaction
            self.number = _number_of(self._environment)

    def _pin_copied_pages(self) -> None:
        """Keep a read transaction open while another process copies the state.

        LMDB does not reuse pages that an open read transaction may need.
        """
        if _is_locked(self._copy_lock):
            self._pin = self._pin or self._environment.begin()
        elif self._pin is not None:
            self._pin.abort()
            self._pin = None

    def _open_again_after_panic(self) -> None:
        """Replace the environment if LMDB refuses to use it (MDB_PANIC).

        LMDB does so after a failed write of the page with the roots, for instance on a full btrfs.
        """
        try:
            self._environment.begin().abort()
        except lmdb.Error:  # also if it is closed, because the last attempt failed
            with self._reads:
                self._pin = None
                self._environment.close()
                self._environment = self._as_before(self._opened())

    def _as_before(self, environment: lmdb.Environment) -> lmdb.Environment:
        """Open the databases of a new environment, and return the environment.

        Raise lmdb.Error if the environment is not at the last durable transaction. Otherwise, a
        change that was reported as failed would become part of the state.
        """
        if _number_of(environment) != self.number:
            environment.close()
            raise lmdb.Error("a failed change is on the disk: restart suture-scm")
        try:
            for name in self.databases:
                self.databases[name] = environment.open_db(name.encode(), create=False)
        except BaseException:
            environment.close()
            raise
        return environment

    def close(self) -> None:
        """Close the files. No transaction may be open."""
        self._environment.close()
        self._close_locks()

    def _close_locks(self) -> None:
        for descriptor in (self._directory, self._copy_lock):
            if descriptor >= 0:
                os.close(descriptor)


@contextmanager
def snapshot_of(
    path: Path,
) -> Iterator[tuple[lmdb.Environment, "lmdb.Transaction[bytes]"]]:
    """Yield an LMDB environment and a read transaction of the state in `path`, without changing it.

    Another process may change the state at the same time. Raise lmdb.Error or OSError if the state
    cannot be read. Raise UnavailableError(BUSY) if the other process holds the lock for too long.
    Also raise it if an SCM was started while the body ran, because the body may then have read
    reused pages.
    """
    with ExitStack() as opened:
        directory = opened.enter_context(_held(path))
        copy_lock = None
        with suppress(FileNotFoundError):  # absent if the state was never opened since its restore
            copy_lock = opened.enter_context(_held(path / COPY_LOCK))
            _acquire_lock(copy_lock, fcntl.LOCK_SH)
        with _locked(directory):
            environment = lmdb.open(
                str(path),
                readonly=True,
                create=False,
                lock=False,
                max_dbs=DATABASES_MAX,
                map_size=MAP_BYTES,
            )
            transaction = environment.begin()
        try:
            with environment, transaction:
                yield environment, transaction
        finally:
            _check_copy_lock(path, copy_lock)


def _check_copy_lock(path: Path, descriptor: int | None) -> None:
    """Raise UnavailableError(BUSY) if COPY_LOCK is another file than before the copy."""
    inode = None if descriptor is None else os.fstat(descriptor).st_ino
    found = (path / COPY_LOCK).stat().st_ino if (path / COPY_LOCK).exists() else None
    if found != inode:
        raise UnavailableError(
            Code.BUSY, f"another control plane was started on {path.parent}", hint="try again"
        )


def _new_copy_lock(path: Path) -> int:
    """Create a new COPY_LOCK file, so that all copies in progress are discarded.

    Return its descriptor.
    """
    new = path / f"{COPY_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    new.replace(path / COPY_LOCK)
    return descriptor


def _number_of(environment: lmdb.Environment) -> int:
    return int(environment.info()["last_txnid"])


def _descriptor(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _held(path: Path) -> Iterator[int]:
    descriptor = _descriptor(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    _acquire_lock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _acquire_lock(descriptor: int, kind: int) -> None:
    """Acquire a file lock.

    Raise UnavailableError(BUSY) if another process holds it for too long.
    """
    until_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until_s:
                why = "another process keeps the state locked"
                raise UnavailableError(Code.BUSY, why) from error
            time.sleep(LOCK_POLL_S)
        else:
            return


def _is_locked(descriptor: int) -> bool:
    """Return True if another process has a lock on a file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
