"""A read transaction of an index, as a context manager.

Each read of a block uses a read transaction. `ReadTransaction` is a class because the three nested
generators that it replaced took half of the time that a small read spends in the index.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import lmdb

from agent.store.index.lmdb_errors import store_error
from agent.store.index.map_resize_lock import MapResizeLock

T = TypeVar("T")


class ReadTransaction(Generic[T]):
    """Context manager of a read transaction. The `with` block receives `made(transaction)`.

    LMDB errors in the `with` block are converted to SutureError.
    """

    __slots__ = ("_env", "_gate", "_made", "_path", "_txn")

    def __init__(
        self,
        env: lmdb.Environment,
        gate: MapResizeLock,
        path: Path,
        made: "Callable[[lmdb.Transaction[bytes]], T]",
    ) -> None:
        self._env = env
        self._gate = gate
        self._path = path
        self._made = made

    def __enter__(self) -> T:
        """Wait until no thread replaces the memory map, then begin the transaction.

        Raise SutureError if the transaction cannot begin.
        """
        self._gate.enter(self)
        try:
            self._txn = self._env.begin()
        except BaseException as error:
            self._gate.leave(self)
            if isinstance(error, lmdb.Error):
                raise store_error(error, self._path) from error
            raise
        return self._made(self._txn)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the transaction."""
        try:
            self._txn.abort()
        finally:
            self._gate.leave(self)
        if isinstance(error, lmdb.Error):
            raise store_error(error, self._path) from error
