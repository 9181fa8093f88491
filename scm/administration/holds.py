"""Containers and replicas that are excluded from replication management, by an operator or after
repeated failures.

A suppressed container is not managed and not reported. A replica whose commands failed repeatedly
is excluded, so that it does not consume further attempts; after an hour it is tried again. Only an
operator releases a hold that an operator set. Both kinds are durable.

A leaving node still waits for a suppressed container, because a container that is not checked is
not known to be safe.
"""

from collections.abc import Sequence

import structlog

from scm.cluster.decision_context import ControlComponent
from scm.replication.reconcile.plan_check import ContainerDecision
from scm.state.database import StateChange
from scm.state.entities import ASKED, Hold
from scm.state.state_access import locked, state_change
from suture.errors import Code

_log = structlog.get_logger("suture.scm")


class HoldManager(ControlComponent):
    """Sets and releases holds. A hold stops all commands for a container, or for one of its
    replicas."""

    @locked
    def holds(self) -> list[Hold]:
        """Return the suppressed containers and excluded replicas."""
        return sorted(
            self._state.holds.values(), key=lambda hold: (hold.container_id, hold.datanode_id)
        )

    @state_change
    def hold(
        self, change: StateChange, container_ids: Sequence[int], datanode_id: str
    ) -> list[ContainerDecision]:
        """Suppress containers, that is, send no commands for them. If `datanode_id` is given, send
        no commands only for the replicas of these containers on this datanode."""
        decisions = []
        for number in container_ids:
            if self._state.containers.get(number) is None:
                decisions.append(
                    ContainerDecision(number, Code.CONTAINER_NOT_FOUND, "no such container")
                )
            elif datanode_id and self._state.replicas.get((number, datanode_id)) is None:
                message = f"{datanode_id} has no replica"
                decisions.append(ContainerDecision(number, Code.CONTAINER_NOT_FOUND, message))
            else:
                if self._state.holds.get((number, datanode_id)) is None:
                    hold = Hold(number, datanode_id, self._clock.wall_ms(), ASKED)
                    change.put(self._state.holds, hold)
                decisions.append(ContainerDecision(number, "OK"))
        return decisions

    @state_change
    def release(
        self, change: StateChange, container_ids: Sequence[int], datanode_id: str
    ) -> list[ContainerDecision]:
        """Resume the management of containers. With a datanode, release only the replicas of these
        containers on this datanode."""
        decisions = []
        for number in container_ids:
            held = [
                hold
                for hold in self._state.holds.of(number)
                if not datanode_id or hold.datanode_id == datanode_id
            ]
            for hold in held:
                change.remove(self._state.holds, (number, hold.datanode_id))
                change.on_commit(
                    _log.info, "hold_released", container_id=number, datanode_id=hold.datanode_id
                )
            message = "" if held else "nothing was held"
            decisions.append(ContainerDecision(number, "OK", message))
        return decisions
