"""Leases: a thread must hold the lease of a container to change the container's replica.

Only one thread at a time holds the lease of a container. `agent/store/` has no locks of its own, so
the callers of its functions must hold the lease. A scan holds the lease only while it begins and
while it commits. The change watch (`agent.scan.change_watch`) ignores file events while a lease
with `writes_chunks` is held, and shortly afterwards. A scan writes no chunks. Therefore a scan
takes its lease with `writes_chunks=False`, and the change watch continues to work.

Leases are not re-entrant. A thread that requests a lease that it already holds has a bug. The
request raises AssertionError at once instead of waiting for a timeout.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError
from suture.runtime.clock import Clock, SystemClock

WAITERS_MAX: Final = 1_000  # threads that may wait for leases; the pools are far smaller
RELEASES_REMEMBERED_MAX: Final = 10_000  # for `written_within`; a missing entry causes one scan
TIMEOUT_S_DEFAULT: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Holder:
    thread_id: int
    thread_name: str
    writes_chunks: bool


class ContainerLeases:
    """The leases of all containers of this agent."""

    def __init__(self, *, clock: Clock | None = None, waiters_max: int = WAITERS_MAX) -> None:
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._holders: dict[ContainerId, _Holder] = {}
        self._shares: dict[ContainerId, int] = {}
        self._written_at_s: OrderedDict[ContainerId, float] = OrderedDict()
        self._waiters_max = waiters_max
        self._waiter_count = 0

    @contextmanager
    def hold(
        self,
        container_id: ContainerId,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        *,
        writes_chunks: bool = True,
    ) -> Iterator[None]:
        """Hold the container's lease during the `with` block.

        Raise UnavailableError(BUSY) if another thread does not release the lease within
        `timeout_s`, or if too many threads are already waiting. `writes_chunks` is False if the
        caller changes no chunks.
        """
        self._acquire(container_id, timeout_s, writes_chunks)
        try:
            yield
        finally:
            self._release(container_id)

    @contextmanager
    def share(
        self, container_id: ContainerId, timeout_s: float = TIMEOUT_S_DEFAULT
    ) -> Iterator[None]:
        """Prevent writes to the container's chunks during the `with` block, for example during a
        copy.

        Many threads may share a container at the same time. A scan may begin and commit while a
        container is shared. Raise UnavailableError(BUSY) if another thread holds the container's
        lease for longer than `timeout_s`, or if too many threads are already waiting.
        """
        with self._changed:
            self._wait(container_id, timeout_s, lambda: container_id not in self._holders)
            self._shares[container_id] = self._shares.get(container_id, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._shares[container_id] -= 1
                if not self._shares[container_id]:
                    del self._shares[container_id]
                self._changed.notify_all()

    def is_shared(self, container_id: ContainerId) -> bool:
        """Return whether a thread shares the container (see `share`).

        Threads that write chunks of the container must wait until no thread shares it.
        """
        return container_id in self._shares

    def written_within(self, container_id: ContainerId, window_s: float) -> bool:
        """Return whether the agent is writing the container's chunks, or wrote them in the last
        `window_s` seconds."""
        with self._changed:
            holder = self._holders.get(container_id)
            if holder is not None and holder.writes_chunks:
                return True
            written_at_s = self._written_at_s.get(container_id)
            return written_at_s is not None and self._clock.monotonic_s() - written_at_s < window_s

    def _acquire(self, container_id: ContainerId, timeout_s: float, writes_chunks: bool) -> None:
        me = threading.current_thread()
        holder = _Holder(me.ident or 0, me.name, writes_chunks)
        with self._changed:
            current = self._holders.get(container_id)
            assert current is None or current.thread_id != holder.thread_id, (
                f"thread {me.name} already holds the lease of container {container_id}"
            )
            self._wait(
                container_id,
                timeout_s,
                lambda: (
                    container_id not in self._holders
                    and not (writes_chunks and container_id in self._shares)
                ),
            )
            self._holders[container_id] = holder

    def _wait(
        self, container_id: ContainerId, timeout_s: float, is_free: Callable[[], bool]
    ) -> None:
        if is_free():
            return
        if self._waiter_count >= self._waiters_max:
            raise UnavailableError(
                Code.BUSY,
                f"cannot wait for the container: {self._waiter_count} threads already wait",
                hint="try again later",
                container_id=container_id,
            )
        self._waiter_count += 1
        try:
            free = self._changed.wait_for(is_free, timeout=timeout_s)
        finally:
            self._waiter_count -= 1
        if not free:
            current = self._holders.get(container_id)
            holder = current.thread_name if current else "those who copy it"
            raise UnavailableError(
                Code.BUSY,
                f"cannot lock container {container_id}: {holder} has held the lock for more "
                f"than {timeout_s:g} s",
                hint="try again later",
                container_id=container_id,
            )

    def _release(self, container_id: ContainerId) -> None:
        with self._changed:
            holder = self._holders.pop(container_id)
            if holder.writes_chunks:
                self._written_at_s[container_id] = self._clock.monotonic_s()
                self._written_at_s.move_to_end(container_id)
                if len(self._written_at_s) > RELEASES_REMEMBERED_MAX:
                    self._written_at_s.popitem(last=False)
            self._changed.notify_all()
