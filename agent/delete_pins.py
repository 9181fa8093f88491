"""Delete pins: they keep a replica on this datanode while a peer deletes its own replica.

The peer may delete its replica only because this datanode has proved that it has the same data.
While a replica is pinned (`pin`), no command deletes it. While a replica is being deleted
(`deleting`), it cannot be pinned. If two datanodes delete their replicas of one container at the
same time, and each relies on the replica of the other, then both deletes fail.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError
from suture.runtime.clock import Clock

PINS_MAX: Final = 100_000
"""Maximum number of pinned replicas."""


class DeletePins:
    """The delete pins of one datanode, stored in memory only.

    All pins are lost when the process ends. docs/PROOFS.md explains why this is safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s: dict[ContainerId, float] = {}
        self._deleting: set[ContainerId] = set()

    def pin(self, container_id: ContainerId, keep_s: float) -> None:
        """Pin the replica of a container for `keep_s` seconds.

        Raise UnavailableError(BUSY) if this datanode is deleting the replica, or if PINS_MAX
        replicas are already pinned.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if container_id in self._deleting:
                raise UnavailableError(
                    Code.BUSY,
                    f"cannot keep container {container_id} for another datanode: it is being "
                    "deleted here",
                    container_id=container_id,
                )
            if len(self._until_s) >= PINS_MAX:
                self._forget_old(now_s)
            if len(self._until_s) >= PINS_MAX:
                raise UnavailableError(
                    Code.BUSY,
                    f"cannot keep another replica: {PINS_MAX} are already kept for other datanodes",
                )
            until_s = max(self._until_s.get(container_id, 0.0), now_s + keep_s)
            self._until_s[container_id] = until_s

    @contextmanager
    def deleting(self, container_id: ContainerId) -> Iterator[None]:
        """Mark a replica as being deleted during the `with` block, so that it cannot be pinned.

        Raise UnavailableError(BUSY) if the replica is pinned.
        """
        with self._lock:
            left_s = self._until_s.get(container_id, 0.0) - self._clock.monotonic_s()
            if left_s > 0:
                raise UnavailableError(
                    Code.BUSY,
                    f"cannot change container {container_id}: another datanode deletes its own "
                    f"replica and relies on this one for {left_s:.0f} s",
                    container_id=container_id,
                )
            self._until_s.pop(container_id, None)
            self._deleting.add(container_id)
        try:
            yield
        finally:
            with self._lock:
                self._deleting.discard(container_id)

    def _forget_old(self, now_s: float) -> None:
        for container_id in [one for one, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[container_id]
