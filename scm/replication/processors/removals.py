"""Removes surplus replicas, and unhealthy replicas that occupy needed space.

An unhealthy replica is removed if no other datanode has space for an intact one. In each round, one
replica of each container is removed. The container is checked again when the replica is gone. The
health check decides which replica is removed. This module orders the deletes within the limits of
each datanode and of the cluster, and never deletes an excluded replica.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Final

import structlog

from health.words import Action
from merkle.replica import ReplicaState
from scm.cluster.commands.loads import DELETE_LIMIT
from scm.cluster.container_context import ContainerContext
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.health.live_judge import HealthRow, LiveHealthJudge
from scm.replication.processors.repair_queue import ReplicationQueue
from scm.state.database import StateChange
from scm.state.entities import CommandKind, Container, Replica

ATTEMPTS_PER_TURN: Final = 500
ATTEMPTS_AT_ONCE: Final = 100  # containers per portion, while the lock is held

_log = structlog.get_logger("suture.scm")


class OverReplicatedProcessor(ControlComponent):
    """Orders deletes of surplus replicas. Callers must hold the control plane's lock."""

    def __init__(self, basis: DecisionContext, judge: LiveHealthJudge) -> None:
        super().__init__(basis)
        self._judge = judge
        self._queue = ReplicationQueue(self._has_room)
        self._due: list[int] = []  # containers of this step that were not tried yet
        self._next: list[int] = []  # containers of this step with perhaps more to delete

    @property
    def over(self) -> Mapping[int, tuple[int, int]]:
        """Return the containers with too many replicas.

        Each has its weight (the smallest is the most urgent) and the number of tries to remove a
        replica.
        """
        return self._queue.found

    @property
    def sleeping_count(self) -> int:
        """Return the number of containers whose delete waits for a datanode at its limit."""
        return self._queue.sleeping_count

    def busy_datanodes(self, container_id: int) -> tuple[str, ...]:
        """Return the datanode at its limit for which a delete in this container waits.

        Return an empty tuple if no delete waits.
        """
        return self._queue.sleeps_for(container_id)

    def record_candidates(self, looked_at: Set[int], over: Set[int]) -> None:
        """Queue the containers in `over`, which have too many replicas.

        Remove the other containers in `looked_at` from the queue.
        """
        self._queue.discard((self.over.keys() & looked_at) - over)
        for container_id in over:
            self._queue.put(container_id, 0)

    def make_room(self, change: StateChange, case: ContainerContext) -> bool:
        """Remove an unhealthy or duplicate replica, to get space for a missing replica.

        Return True if a removal was ordered.
        """
        container = case.container
        if container.scheme:
            keep_count, why = container.data_count, "gives way to a shard that is lost"
        else:
            keep_count, why = 1, "is damaged and takes the place of a good replica"
        number = container.container_id
        able = self._judge.removals([number]).giving_way(number)
        held = {p.datanode_id: p.replica for p in case.placed}
        victim = next((node for node in able if not is_kept(container, held[node])), None)
        if victim is None or not self.delete(
            change, container, victim, why=why, keep_count=keep_count
        ):
            return False
        if container.scheme:
            change.on_commit(
                _log.warning,
                "shard_delete_ordered",
                container_id=number,
                datanode_id=victim,
                index=held[victim].replica_index,
            )
        else:
            change.on_commit(
                _log.warning,
                "unhealthy_replica_delete_ordered",
                container_id=number,
                datanode_id=victim,
            )
        return True

    def begin_turn(self) -> None:
        """Choose the containers with surplus replicas for which this step orders deletes."""
        self._due = self._queue.choose(ATTEMPTS_PER_TURN)
        self._next = []

    def order_next(self, change: StateChange) -> bool:
        """Order the delete of one replica for each of the next few chosen containers.

        Return False if no chosen container is left.
        """
        if not self._due:
            self._due, self._next = self._next, []
        portion = self._due[:ATTEMPTS_AT_ONCE]
        del self._due[:ATTEMPTS_AT_ONCE]
        needs = self._judge.rows(portion)
        self._next += [n for n in portion if self._remove_one(change, n, needs.get(n, ()))]
        return bool(portion)

    def _remove_one(
        self, change: StateChange, container_id: int, rows: Sequence[HealthRow]
    ) -> bool:
        """Order the delete of one replica of a container. Return True if it was ordered."""
        container = self._state.containers.get(container_id)
        row = next((r for r in rows if r.action is Action.DELETE and r.is_forced), None)
        if container is None or row is None or container_id not in self._queue:
            self._queue.discard([container_id])
            return False
        [datanode_id] = row.targets
        is_ordered = self.delete(
            change,
            container,
            datanode_id,
            why=row.reason,
            keep_count=container.replication_factor,
        )
        weight, tries = self.over[container_id]
        self._queue.put_back(
            container_id, weight=weight, tries=tries + 1
        )  # other containers come first; this one has more to delete
        if not is_ordered:
            self._queue.park_until_room(container_id, row.targets)
        return is_ordered

    def _has_room(self, datanode_id: str) -> bool:
        return self._commands.loads.delete_load(datanode_id) < DELETE_LIMIT

    def delete(
        self,
        change: StateChange,
        container: Container,
        datanode_id: str,
        *,
        why: str,
        keep_count: int,
    ) -> bool:
        """Order the delete of a replica. Return True if it was ordered.

        It is not ordered if the replica is excluded, if its datanode is at its limit of deletes, or
        if a delete of the container recently failed or was rejected.
        """
        if self._state.holds.get((container.container_id, datanode_id)) is not None:
            return False  # kept until the hold is released
        is_cooling = self._commands.is_cooling(CommandKind.DELETE, container.container_id)
        if is_cooling or not self._has_room(datanode_id):
            return False
        command_id = self._commands.queue(
            change,
            CommandKind.DELETE,
            container.container_id,
            datanode_id,
            why=why,
            force=True,
            keep_count=keep_count,
        )
        change.on_commit(
            _log.info,
            "delete_ordered",
            container_id=container.container_id,
            command_id=command_id,
            datanode_id=datanode_id,
        )
        return True


def is_kept(container: Container, replica: Replica) -> bool:
    """Return True if a replica must not be removed.

    That is the case if the replica is being created, or if it has all commits and may still be
    closed. The health check does not examine this for a replica that cannot be loaded, so the
    caller does.
    """
    may_close = replica.state is ReplicaState.QUASI_CLOSED and not container.scheme
    may_close &= replica.bcsid >= container.sequence_id
    return may_close or replica.state is ReplicaState.RECOVERING
