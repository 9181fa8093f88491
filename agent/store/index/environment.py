"""The LMDB environment that stores a volume's metadata: check, open, read, write.

`agent.store.index.transactions` lists the databases in the environment. Every commit is synced.
Each read is one short transaction, because LMDB cannot reuse pages while a long transaction is
open.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from agent.store.index.check.indexcheck import check_index
from agent.store.index.databases import DATABASES, Databases
from agent.store.index.group_commit import GroupCommit
from agent.store.index.lmdb_errors import DATA_FILE, LOCK_FILE, index_errors
from agent.store.index.map_resize_lock import MapResizeLock
from agent.store.index.read_transaction import ReadTransaction
from agent.store.index.rows import KEY_BYTES
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.options import wall_clock_ms
from suture.errors import Code, UnavailableError
from suture.runtime.durable import disk_errors, remove
from suture.runtime.lmdb_lock_file import lock_file_in_memory

MAP_BYTES_MAX: Final = 16 * 1024**4  # a larger map would mean a bug
READERS_MAX: Final = 1024
SPARE_READERS: Final = 8

T = TypeVar("T")


@contextmanager
def _lock_in_memory(path: Path) -> Iterator[None]:
    """Make LMDB keep its reader table in memory instead of in a file (`lock_file_in_memory`).

    With a file, a full volume could end the process, which may have other, healthy volumes. No
    other process needs the table: `in_use.lock` excludes other agents, and read-only access does
    not use it.
    """
    name = path / LOCK_FILE
    with disk_errors(path):
        remove(name)  # the file of a dead process, or a foreign object
        with lock_file_in_memory(name):
            yield


class Index:
    """An open LMDB environment.

    Any thread may use transactions. LMDB allows one writer at a time.
    """

    def __init__(
        self,
        path: Path,
        *,
        map_bytes: int,
        readonly: bool = False,
        check_whole: bool = True,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Check the index file, then open it. Raise `VolumeFailed` if the file is damaged.

        A large file is checked completely only with `check_whole`.
        """
        check_index(path, key_bytes=KEY_BYTES, whole=check_whole)
        self._path = path
        self._file = path / DATA_FILE
        self._now_ms = now_ms
        self._gate = MapResizeLock()
        self._commits = GroupCommit(self._attempt, self._grow)
        with index_errors(path), nullcontext() if readonly else _lock_in_memory(path):
            self._env = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_dbs=len(DATABASES),
                max_readers=READERS_MAX,
                max_spare_txns=SPARE_READERS,
                readahead=False,  # the index exceeds memory, and reads are random
                readonly=readonly,
                lock=not readonly,
                mode=0o640,
            )
            handles = {
                name: self._env.open_db(name.encode(), create=not readonly) for name in DATABASES
            }
            if not readonly:
                self._env.reader_check()  # a killed process's slots would keep old pages in use
        self._databases = Databases(**handles)
        self._snapshot = partial(IndexView, databases=self._databases, file=self._file)

    def now_ms(self) -> int:
        """Return the current time in milliseconds, for timestamps in rows."""
        return self._now_ms()

    def close(self) -> None:
        """Close the environment. No transaction may be open."""
        self._env.close()

    def read(self) -> ReadTransaction[IndexView]:
        """Return a snapshot of the index for a `with` block.

        Keep the block short, and do not use the snapshot or parts of it after the block.
        """
        return ReadTransaction(self._env, self._gate, self._path, self._snapshot)

    def write(self, change: Callable[[IndexChange], T]) -> T:
        """Run `change` in a transaction, commit it durably, and return its result.

        If `change` raises an error, nothing changes. `change` may run twice, and in another thread
        (`GroupCommit`), so it must be repeatable.
        """
        result: T = self._commits.write(change)
        return result

    def _attempt(self, changes: Sequence[Callable[[IndexChange], Any]]) -> list[Any]:
        with index_errors(self._path), self._gate.entered():
            transaction = self._env.begin(write=True)
            try:
                rows = IndexChange(transaction, self._databases, self._file, self._now_ms)
                results = [change(rows) for change in changes]
                transaction.commit()
            except BaseException:
                transaction.abort()
                raise
            return results

    def _grow(self) -> None:
        map_bytes = 2 * self._env.info()["map_size"]
        if map_bytes > MAP_BYTES_MAX:
            raise UnavailableError(Code.DISK_OUT_OF_SPACE, f"{self._path}: index exceeds its limit")
        with self._gate.closed():
            if self._env.info()["map_size"] < map_bytes:
                self._env.set_mapsize(map_bytes)
