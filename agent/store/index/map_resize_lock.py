"""A lock that excludes transactions while the memory map of an index is replaced."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from suture.errors import Code, UnavailableError

MAP_WAIT_S: Final = 5.0  # a transaction that takes longer is a bug


class MapResizeLock:
    """Excludes transactions while the memory map is replaced.

    LMDB unmaps the file when the map grows. An open transaction would then read freed memory.

    A transaction first registers, and then checks the flag of the thread that replaces the map.
    This thread first sets its flag, and then checks the registrations. Therefore, at least one of
    the two threads sees the other. Both use single dictionary operations, which are atomic, so that
    a read takes no lock. A waiting thread uses a condition, which is notified only if a thread may
    be waiting.
    """

    def __init__(self) -> None:
        self._inside: dict[object, None] = {}
        self._closer: dict[str, object] = {}
        self._changed = threading.Condition()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Register a transaction for a `with` block.

        First wait until no thread replaces the map.
        """
        token = object()
        self.enter(token)
        try:
            yield
        finally:
            self.leave(token)

    def enter(self, token: object) -> None:
        """Register a transaction under `token`, after waiting until no thread replaces the map.

        The registration ends with `leave`.
        """
        self._inside[token] = None
        while self._closer:
            self.leave(token)
            self._wait(lambda: not self._closer)
            self._inside[token] = None

    def leave(self, token: object) -> None:
        """Remove the registration of a transaction under `token`."""
        del self._inside[token]
        if self._closer:
            self._tell()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Exclude all transactions for a `with` block.

        Raise `UnavailableError(BUSY)` if this takes longer than `MAP_WAIT_S`.
        """
        token = object()
        self._wait(lambda: self._closer.setdefault("by", token) is token)
        try:
            self._wait(lambda: not self._inside)
            yield
        finally:
            del self._closer["by"]
            self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, MAP_WAIT_S):
                raise UnavailableError(Code.BUSY, "the index is growing its memory map")
