"""Records the datanodes that failed as targets of copies. The SCM chooses them last.

A copy command is sent to the source, and the source reports the failure. The cause may be the
target: a firewall, a wrong address, or a disk with less space than reported. Such a target has the
lowest load, so without this record, the SCM would choose it again each time.
"""

from collections.abc import Mapping
from typing import Final

from scm.state.clock import ScmClock
from scm.state.entities import CommandOutcome, OutcomeState, PendingCommand

REST_S: Final = 3_600.0
"""Time in seconds for which a datanode that failed as a target is chosen only after all others."""


class FailingTargets:
    """Times of the last failed copies and rebuilds, by container and datanode.

    Callers must hold the control plane's lock.
    """

    def __init__(self, clock: ScmClock) -> None:
        self._clock = clock
        self._failed_at_s: dict[int, dict[str, float]] = {}

    def record_outcome(self, command: PendingCommand, outcome: CommandOutcome) -> None:
        """Record the time of a failure for the target datanodes of a command.

        If the command succeeded, delete the recorded failures of these datanodes for the container.
        """
        targets = {command.target_id, *(datanode_id for _, datanode_id in command.shards)} - {""}
        if outcome.state is OutcomeState.FAILED and targets:
            failed = self._failed_at_s.setdefault(command.container_id, {})
            failed.update(dict.fromkeys(targets, self._clock.monotonic_s()))
        elif outcome.state is OutcomeState.EXECUTED:
            for datanode_id in targets:
                self._failed_at_s.get(command.container_id, {}).pop(datanode_id, None)

    def of(self, container_id: int) -> Mapping[str, float]:
        """Return the datanodes that failed as targets for this container.

        Each has the time of its last failure, in seconds of the monotonic clock.
        """
        return self._failed_at_s.get(container_id, {})

    def forget_old(self) -> None:
        """Delete the failures older than REST_S seconds.

        The datanodes are then chosen as targets normally again.
        """
        oldest_s = self._clock.monotonic_s() - REST_S
        kept = {
            container_id: {node: at_s for node, at_s in failed.items() if at_s > oldest_s}
            for container_id, failed in self._failed_at_s.items()
        }
        self._failed_at_s = {number: failed for number, failed in kept.items() if failed}
