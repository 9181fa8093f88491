"""The metadata of one volume: an LMDB environment, checked, opened, read and written.

What is in it, `transactions` says. Every commit is synced. A read is one short transaction: long
ones keep LMDB from reusing pages.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from agent.errors import Code, Unavailable
from agent.store.files.durable import disk_errors, remove
from agent.store.index.check.indexcheck import check_index
from agent.store.index.databases import DATABASES, Databases
from agent.store.index.indexerrors import DATA_FILE, LOCK_FILE, index_errors
from agent.store.index.mapgate import MapGate
from agent.store.index.read_transaction import Reading
from agent.store.index.rows import KEY_BYTES
from agent.store.index.sharedcommits import SharedCommits
from agent.store.index.transactions import Change, Snapshot
from agent.store.options import wall_clock_ms

MAP_BYTES_MAX: Final = 16 * 1024**4  # a map beyond it would be a fault, not a need
READERS_MAX: Final = 1024
SPARE_READERS: Final = 8

T = TypeVar("T")


@contextmanager
def _lock_in_memory(path: Path) -> Iterator[None]:
    """Have LMDB keep its table of readers in memory while it opens an environment in the body.

    It writes to that table through a map of LOCK_FILE. Where a file system copies on write (btrfs),
    or the file is new, each such write needs space, and on a full disk the process ends by SIGBUS,
    the sound volumes with it. Nobody else reads the table: `in_use.lock` keeps other agents out,
    and what only reads takes no part in it.
    """
    name = path / LOCK_FILE
    with disk_errors(path):
        remove(name)  # of a dead process, or whatever has its name
        fd = os.memfd_create(LOCK_FILE, os.MFD_CLOEXEC)
        try:
            name.symlink_to(f"/proc/self/fd/{fd}")
            yield
        finally:
            os.close(fd)
            remove(name)


class Index:
    """One open environment. Transactions of all threads; LMDB admits one writer at a time."""

    def __init__(
        self,
        path: Path,
        *,
        map_bytes: int,
        readonly: bool = False,
        check_whole: bool = True,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Check the file, then map it. `check_whole`: see `check_index`. Raises `VolumeFailed`."""
        check_index(path, key_bytes=KEY_BYTES, whole=check_whole)
        self._path = path
        self._file = path / DATA_FILE
        self._now_ms = now_ms
        self._gate = MapGate()
        self._commits = SharedCommits(self._attempt, self._grow)
        with index_errors(path), nullcontext() if readonly else _lock_in_memory(path):
            self._env = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=len(DATABASES),
                max_readers=READERS_MAX,
                max_spare_txns=SPARE_READERS,
                readahead=False,  # the index is larger than memory, and its reads are points
                readonly=readonly,
                lock=not readonly,
                mode=0o640,
            )
            handles = {
                name: self._env.open_db(name.encode(), create=not readonly) for name in DATABASES
            }
            if not readonly:
                self._env.reader_check()  # slots of a killed process would keep old pages alive
        self._databases = Databases(**handles)
        self._snapshot = partial(Snapshot, databases=self._databases, file=self._file)

    def now_ms(self) -> int:
        """Return the time by the clock that dates what is kept of replicas."""
        return self._now_ms()

    def close(self) -> None:
        """Close the environment. No transaction may be open."""
        self._env.close()

    def read(self) -> Reading[Snapshot]:
        """Return a snapshot for the length of a `with`. Keep it short, and keep nothing of it."""
        return Reading(self._env, self._gate, self._path, self._snapshot)

    def write(self, change: Callable[[Change], T]) -> T:
        """Run `change` in a transaction and commit it durably; an exception changes nothing.

        `change` may run again, and in another thread (`SharedCommits`): it gives the same result.
        """
        result: T = self._commits.write(change)
        return result

    def _attempt(self, changes: Sequence[Callable[[Change], Any]]) -> list[Any]:
        with index_errors(self._path), self._gate.entered():
            transaction = self._env.begin(write=True)
            try:
                rows = Change(transaction, self._databases, self._file, self._now_ms)
                results = [change(rows) for change in changes]
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
            return results

    def _grow(self) -> None:
        map_bytes = 2 * self._env.info()["map_size"]
        if map_bytes > MAP_BYTES_MAX:
            raise Unavailable(Code.DISK_OUT_OF_SPACE, f"{self._path}: index exceeds its limit")
        with self._gate.closed():
            if self._env.info()["map_size"] < map_bytes:
                self._env.set_mapsize(map_bytes)
