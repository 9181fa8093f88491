"""Archives that wait for their turn: so many containers arrive at once, and Ozone sends more.

A push that is refused is lost for Ozone's storage container manager until its order is out of date,
which by default are twelve minutes. One that waits costs its sender one of ten streams, and us a
thread that sleeps: it gives its slot back, so that other calls are worked on meanwhile. So whoever
has a turn has to use it: one that sends next to nothing is ended.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final

from agent.errors import Code, Unavailable
from agent.rpc.serving.waits import WAIT_S_MAX, Slots
from agent.store.operations.arrival import ARRIVALS_MAX

WAIT_S: Final = 300.0  # below the twelve minutes; some full containers have arrived by then
POLL_S: Final = 1.0  # whether the sender is still there
BYTES_PER_S_MIN: Final = 16 * 1024  # a full container would take four days; also where it is packed


class Turns:
    """As many at once as the store takes. Others wait in no order."""

    def __init__(
        self,
        slots: Slots,
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
    def turn(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn, and have it for the body. The caller has a slot.

        Raises Unavailable: BUSY when none came in time; CANCELLED when nobody wants it any more.
        """
        try:
            self._free.get_nowait()
        except Empty:
            self._slots.give()
            try:
                self._wait(is_wanted)
            finally:
                self._slots.take()
        try:
            yield
        finally:
            self._free.put(None)

    def _wait(self, is_wanted: Callable[[], bool]) -> None:
        ends_at_s = self._monotonic_s() + self._wait_s
        while not self._is_free():
            if not is_wanted():
                raise Unavailable(Code.CANCELLED, "the sender has gone")
            if self._monotonic_s() >= ends_at_s:
                raise Unavailable(
                    Code.BUSY,
                    f"{ARRIVALS_MAX} containers are arriving, and none was whole within "
                    f"{self._wait_s:g} s",
                )

    def _is_free(self) -> bool:
        """Whether a turn came within a moment; then it is the caller's."""
        try:
            self._free.get(timeout=POLL_S)
        except Empty:
            return False
        return True


def in_time(pieces: Iterator[bytes], monotonic_s: Callable[[], float]) -> Iterator[bytes]:
    """Yield the bytes of an archive. Raise Unavailable once they come too slowly.

    Only the time counts for which its sender is waited for, and any pause that a call may make.
    """
    left_s = WAIT_S_MAX
    while True:
        asked_at_s = monotonic_s()
        piece = next(pieces, None)
        left_s -= monotonic_s() - asked_at_s
        if left_s < 0:
            raise Unavailable(
                Code.UNAVAILABLE, f"the sender is slower than {BYTES_PER_S_MIN} bytes/s"
            )
        if piece is None:
            return
        left_s = min(left_s + len(piece) / BYTES_PER_S_MIN, WAIT_S_MAX)
        yield piece
