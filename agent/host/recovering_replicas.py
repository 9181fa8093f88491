"""Manages the replicas in state RECOVERING, which reconstructions create and write.

All data of such a replica can be computed from other datanodes, so the replica may be deleted at
any time. Only one reconstruction may write to it. If no write arrives for `timeout_s` seconds, the
reconstruction counts as abandoned. The replica then becomes UNHEALTHY permanently, and the next
reconstruction of the shard replaces it. After a restart, every RECOVERING replica counts as
abandoned (`agent.store.recovery.startup_recovery`).
"""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

import structlog

from agent.leases import ContainerLeases
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId, ReplicaState
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.clock import Clock
from suture.runtime.loop import RetryAfter, Step

CHECK_S: Final = 60.0  # ozone: hdds.datanode.recovering.container.scrubbing.service.interval
TIMEOUT_S: Final = 300.0  # time after the last write until a reconstruction counts as abandoned
REASON: Final = "reconstructed"

log = structlog.get_logger()


@dataclass(eq=False)
class RecoveringReplicas:
    """The replicas of this datanode in state RECOVERING, each with the time of its last write.

    When such a replica is closed, `scan` is called to request a scan of it.
    """

    name = "recoveries"

    store: ReplicaStore
    leases: ContainerLeases
    clock: Clock
    _: KW_ONLY
    timeout_s: float
    scan: Callable[[ContainerId], object]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._written_at_s: dict[int, float] = {}

    def create(self, container_id: ContainerId, replica_index: int) -> None:
        """Create a replica in state RECOVERING. The caller must hold the container's lease.

        If an earlier reconstruction of this shard has abandoned a replica, that replica is deleted
        first. Raise UnavailableError(BUSY) if another reconstruction of the container is running.
        Raise RefusedError(CONTAINER_EXISTS) if this datanode has any other replica of the
        container.
        """
        with self._lock:
            is_fresh = not self._is_stale(container_id)
        if is_fresh and self._is_recovering(container_id):
            raise UnavailableError(
                Code.BUSY,
                f"cannot reconstruct container {container_id}: another reconstruction of it is "
                "running here",
                hint=f"it times out {self.timeout_s:g} s after its last write",
                container_id=container_id,
            )
        if container_id in self.store.replica_ids():
            self._remove_unfinished(container_id, replica_index)
        self.store.create_container(
            container_id, replica_index=replica_index, state=ReplicaState.RECOVERING
        )
        with self._lock:
            self._written_at_s[container_id] = self.clock.monotonic_s()

    def record_write(self, container_id: int) -> None:
        """Record the time of a write. If the container is not being reconstructed, do nothing."""
        with self._lock:
            if container_id in self._written_at_s:
                self._written_at_s[container_id] = self.clock.monotonic_s()

    def closed(self, container_id: int) -> None:
        """Record that a replica was closed. If its state was RECOVERING, request a scan of it."""
        with self._lock:
            was_recovering = self._written_at_s.pop(container_id, None) is not None
        if was_recovering:
            self.scan(ContainerId(container_id))

    def step(self) -> Step:
        """Set the state of abandoned replicas to UNHEALTHY.

        A replica is abandoned if it is RECOVERING and had no write for `timeout_s` seconds.
        """
        with self._lock:
            known = [ContainerId(container_id) for container_id in self._written_at_s]
        for container_id in known:
            with self.leases.hold(container_id):
                self._give_up_if_stale(container_id)
        return RetryAfter(min(CHECK_S, self.timeout_s))

    def _give_up_if_stale(self, container_id: ContainerId) -> None:
        is_recovering = self._is_recovering(container_id)
        with self._lock:
            if is_recovering and not self._is_stale(container_id):
                return
            self._written_at_s.pop(container_id, None)
        if is_recovering:
            self.store.expire_recovery(container_id)
            log.warning("reconstruction_expired", container_id=container_id, quiet_s=self.timeout_s)

    def _remove_unfinished(self, container_id: ContainerId, replica_index: int) -> None:
        """Delete the replica if an earlier reconstruction of this shard has abandoned it.

        The state of an abandoned replica is RECOVERING, or UNHEALTHY without a former state.
        """
        facts = self.store.replica(container_id)
        is_expired = facts.state is ReplicaState.UNHEALTHY and facts.former_state is None
        is_unfinished = is_expired or facts.state is ReplicaState.RECOVERING
        if is_unfinished and facts.replica_index == replica_index:
            log.info("reconstruction_replaced", container_id=container_id, index=replica_index)
            self.store.delete_container(container_id, force=True)

    def _is_recovering(self, container_id: ContainerId) -> bool:
        try:
            return self.store.replica(container_id).state is ReplicaState.RECOVERING
        except SutureError:
            return False  # the replica was removed in the meantime

    def _is_stale(self, container_id: int) -> bool:
        written_at_s = self._written_at_s.get(container_id)
        if written_at_s is None:
            return True
        return self.clock.monotonic_s() - written_at_s >= self.timeout_s
