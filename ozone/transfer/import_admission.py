"""Limits the number of concurrent imports of archives.

Ozone sends more containers than can be stored at once. If a push is rejected, Ozone's SCM repeats
it only after its command expires, by default after twelve minutes. Therefore, a push waits until it
may run. While it waits, it uses one of the sender's ten streams and a sleeping thread of the agent,
whose worker slot is free for other calls. An import that receives nearly no data is ended, because
it would block others.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

from agent.store.operations.replica_import import ARRIVALS_MAX
from suture.errors import Code, UnavailableError
from suture.wire.server.blocked_calls import WAIT_S_MAX, WorkerSlots

WAIT_S: Final = 300.0  # less than twelve minutes; some full containers arrive in this time
POLL_S: Final = 1.0  # interval at which a waiting import checks for its sender
BYTES_PER_S_MIN: Final = 16 * 1024  # at this rate, a full container takes four days


class ImportAdmission:
    """Limits the number of concurrent imports.

    Waiting imports are admitted in no particular order.
    """

    def __init__(
        self,
        slots: WorkerSlots,
        *,
        wait_s: float = WAIT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._wait_s = wait_s
        self._monotonic_s = monotonic_s
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(ARRIVALS_MAX):
            self._free.put(None)

    @contextmanager
    def admit(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait until an import may run, and count it as running during the `with` block.

        The caller must hold a worker slot, which is released during the wait. Raise
        UnavailableError(BUSY) if the wait was too long, and UnavailableError(CANCELLED) if
        `is_wanted` returns False during it.
        """
        try:
            self._free.get_nowait()
        except Empty:
            self._slots.release()
            try:
                self._wait(is_wanted)
            finally:
                self._slots.acquire()
        try:
            yield
        finally:
            self._free.put(None)

    def _wait(self, is_wanted: Callable[[], bool]) -> None:
        ends_at_s = self._monotonic_s() + self._wait_s
        while not self._is_free():
            if not is_wanted():
                raise UnavailableError(Code.CANCELLED, "the sender disconnected")
            if self._monotonic_s() >= ends_at_s:
                raise UnavailableError(
                    Code.BUSY,
                    f"cannot import the container: {ARRIVALS_MAX} imports are running, and "
                    f"none finished within {self._wait_s:g} s",
                )

    def _is_free(self) -> bool:
        """Wait at most `POLL_S` seconds until an import may run.

        Return False if it may not run yet.
        """
        try:
            self._free.get(timeout=POLL_S)
        except Empty:
            return False
        return True


def in_time(pieces: Iterator[bytes], monotonic_s: Callable[[], float]) -> Iterator[bytes]:
    """Yield the bytes of an archive.

    Raise UnavailableError if they arrive more slowly than BYTES_PER_S_MIN. Only the time spent
    waiting for the sender is counted. The sender may pause for up to `WAIT_S_MAX` seconds.
    """
    left_s = WAIT_S_MAX
    while True:
        asked_at_s = monotonic_s()
        piece = next(pieces, None)
        left_s -= monotonic_s() - asked_at_s
        if left_s < 0:
            raise UnavailableError(
                Code.UNAVAILABLE, f"the sender is slower than {BYTES_PER_S_MIN} bytes/s"
            )
        if piece is None:
            return
        left_s = min(left_s + len(piece) / BYTES_PER_S_MIN, WAIT_S_MAX)
        yield piece
