"""Holds: containers and replicas that an operator or repeated failures exclude from all commands.

The control plane sends no commands for a suppressed container and does not report its health. If
the commands for a replica fail repeatedly, that replica is excluded for an hour and is then tried
again. Only an operator can release a hold that an operator set. Holds are stored on disk.

A leaving datanode still waits for its suppressed containers. A suppressed container is not checked,
so the control plane does not know that it is safe without the datanode.
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
    """Sets and releases holds.

    A hold stops all commands for a container, or for one of its replicas.
    """

    @locked
    def holds(self) -> list[Hold]:
        """Return all holds, sorted by container id and datanode id."""
        return sorted(
            self._state.holds.values(), key=lambda hold: (hold.container_id, hold.datanode_id)
        )

    @state_change
    def hold(
        self, change: StateChange, container_ids: Sequence[int], datanode_id: str
    ) -> list[ContainerDecision]:
        """Stop commands for these containers, and return one decision for each container.

        If `datanode_id` is not empty, stop only the commands for the replicas on this datanode.
        """
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
        """Release the holds of these containers, and return one decision for each container.

        If `datanode_id` is not empty, release only the holds of the replicas on this datanode.
        """
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
