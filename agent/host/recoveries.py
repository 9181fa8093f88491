"""Replicas that reconstructions make here: who is at it, and what becomes of those left behind.

A RECOVERING replica holds nothing that is not elsewhere, so nothing is lost with it. Nobody counts
on it, and no second run may write into it. When no write came for a while, its run is over: it
becomes UNHEALTHY, which it can never leave, and the next run puts its own in its place. (After a
restart every RECOVERING replica is one of those: `agent.store.recovery.startup_recovery`.)
"""

import threading
from collections.abc import Callable
from typing import Final

import structlog

from agent.errors import Code, SutureError, Unavailable
from agent.runtime.clock import Clock
from agent.runtime.lease import Leases
from agent.runtime.loop import Step, Throttled
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId, ReplicaState

CHECK_S: Final = 60.0  # ozone: hdds.datanode.recovering.container.scrubbing.service.interval
TIMEOUT_S: Final = 300.0  # after the last write: then an unfinished reconstruction is given up
REASON: Final = "reconstructed"

log = structlog.get_logger()


class Recoveries:
    """The RECOVERING replicas of this datanode, each with the moment of its last write."""

    name = "recoveries"

    def __init__(
        self,
        store: ReplicaStore,
        leases: Leases,
        clock: Clock,
        *,
        timeout_s: float,
        scan: Callable[[ContainerId], object],
    ) -> None:
        """`scan` asks for a scan of a replica that was completed."""
        self._store = store
        self._leases = leases
        self._clock = clock
        self._timeout_s = timeout_s
        self._scan = scan
        self._lock = threading.Lock()
        self._written_at_s: dict[int, float] = {}

    def create(self, container_id: ContainerId, replica_index: int) -> None:
        """Create a RECOVERING replica; the caller holds the lease.

        Puts it in the place of one that an earlier run left behind. Raises Unavailable(BUSY) while
        another run is at it, Refused(CONTAINER_EXISTS) when there is any other replica.
        """
        with self._lock:
            is_fresh = not self._is_stale(container_id)
        if is_fresh and self._is_recovering(container_id):
            raise Unavailable(
                Code.BUSY,
                f"container {container_id} is being reconstructed here by another run",
                hint=f"it is given up {self._timeout_s:g} s after its last write",
                container_id=container_id,
            )
        if container_id in self._store.replica_ids():
            self._remove_unfinished(container_id, replica_index)
        self._store.create_container(
            container_id, replica_index=replica_index, state=ReplicaState.RECOVERING
        )
        with self._lock:
            self._written_at_s[container_id] = self._clock.monotonic_s()

    def wrote(self, container_id: int) -> None:
        """Note a write: its run lives."""
        with self._lock:
            if container_id in self._written_at_s:
                self._written_at_s[container_id] = self._clock.monotonic_s()

    def closed(self, container_id: int) -> None:
        """Note a close: what was RECOVERING is read again soon."""
        with self._lock:
            was_recovering = self._written_at_s.pop(container_id, None) is not None
        if was_recovering:
            self._scan(ContainerId(container_id))

    def step(self) -> Step:
        """Give up the replicas that nobody writes to any more."""
        with self._lock:
            known = [ContainerId(container_id) for container_id in self._written_at_s]
        for container_id in known:
            with self._leases.hold(container_id):
                self._give_up_if_stale(container_id)
        return Throttled(min(CHECK_S, self._timeout_s))

    def _give_up_if_stale(self, container_id: ContainerId) -> None:
        is_recovering = self._is_recovering(container_id)
        with self._lock:
            if is_recovering and not self._is_stale(container_id):
                return
            self._written_at_s.pop(container_id, None)
        if is_recovering:
            self._store.expire_recovery(container_id)
            log.warning(
                "reconstruction_expired", container_id=container_id, quiet_s=self._timeout_s
            )

    def _remove_unfinished(self, container_id: ContainerId, replica_index: int) -> None:
        """Remove what an earlier run of this shard left behind, and nothing else.

        Only a replica that never was anything but RECOVERING has no former state.
        """
        facts = self._store.replica(container_id)
        is_expired = facts.state is ReplicaState.UNHEALTHY and facts.former_state is None
        is_unfinished = is_expired or facts.state is ReplicaState.RECOVERING
        if is_unfinished and facts.replica_index == replica_index:
            log.info("reconstruction_replaced", container_id=container_id, index=replica_index)
            self._store.delete_container(container_id, force=True)

    def _is_recovering(self, container_id: ContainerId) -> bool:
        try:
            return self._store.replica(container_id).state is ReplicaState.RECOVERING
        except SutureError:
            return False  # removed meanwhile

    def _is_stale(self, container_id: int) -> bool:
        written_at_s = self._written_at_s.get(container_id)
        if written_at_s is None:
            return True
        return self._clock.monotonic_s() - written_at_s >= self._timeout_s
