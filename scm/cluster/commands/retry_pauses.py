"""Pauses before the SCM retries a failed command.

Each consecutive failure makes the pause longer.
"""

from typing import Final

from scm.state.clock import ScmClock
from scm.state.entities import CommandKind, CommandOutcome, OutcomeState, PendingCommand
from suture.runtime.backoff import FACTOR_MAX, backoff_s

RECONSTRUCT_FIRST_S: Final = 10.0  # a reconstruction may have read several shards before it failed


class RetryPauses:
    """The number of consecutive failed commands, and the time of the last failure.

    Failures are counted per kind of command and container. Callers must hold the control plane's
    lock.
    """

    def __init__(self, clock: ScmClock, *, first_s: float) -> None:
        self._clock = clock
        self._first_s = first_s  # the pause after one failure
        self._failures: dict[tuple[CommandKind, int, str], tuple[int, float]] = {}

    def is_cooling(self, kind: CommandKind, container_id: int, datanode_id: str) -> bool:
        """Return True if commands of this kind for this container and datanode are paused."""
        count, at_s = self._failures.get((kind, container_id, datanode_id), (0, 0.0))
        if not count:
            return False
        return self._clock.monotonic_s() - at_s < backoff_s(count, first_s=self._first_s_of(kind))

    def _first_s_of(self, kind: CommandKind) -> float:
        if kind is CommandKind.RECONSTRUCT:
            return max(self._first_s, RECONSTRUCT_FIRST_S)
        return self._first_s

    def record_outcome(self, command: PendingCommand, outcome: CommandOutcome) -> None:
        """Count a failed command. A successful command resets the count.

        If the command concerns a container, the failure counts for the container, otherwise for the
        datanode. A delete_blocks command has transactions of many containers, which fail because of
        the datanode's disk. It counts as failed for each container with a transaction that the
        datanode did not acknowledge, and only on this datanode.
        """
        if command.kind is CommandKind.DELETE_BLOCKS:
            if outcome.state is not OutcomeState.SKIPPED:
                self._note_deletes(command, outcome)
        elif outcome.state is OutcomeState.EXECUTED:
            self._failures.pop(_key(command), None)
        elif outcome.state is OutcomeState.FAILED:
            self.count(command)

    def _note_deletes(self, command: PendingCommand, outcome: CommandOutcome) -> None:
        failed = {
            transaction.container_id
            for transaction in command.transactions
            if (transaction.container_id, transaction.transaction_id) not in outcome.acknowledged
        }
        for container_id in {transaction.container_id for transaction in command.transactions}:
            key = (command.kind, container_id, command.datanode_id)
            if container_id in failed:
                self._count(key)
            else:
                self._failures.pop(key, None)

    def count(self, command: PendingCommand) -> None:
        """Count a command without effect as a failure, so that the next such command is delayed."""
        self._count(_key(command))

    def _count(self, key: tuple[CommandKind, int, str]) -> None:
        count, _at_s = self._failures.get(key, (0, 0.0))
        self._failures[key] = (count + 1, self._clock.monotonic_s())

    def forget_old(self) -> None:
        """Delete the failures that are older than twice the longest pause.

        Many commands are ordered again only some seconds after their pause. If failures were
        deleted earlier, each failure would count as the first.
        """
        now_s = self._clock.monotonic_s()
        self._failures = {
            key: (count, at_s)
            for key, (count, at_s) in self._failures.items()
            if now_s - at_s < 2 * FACTOR_MAX * self._first_s_of(key[0])
        }


def _key(command: PendingCommand) -> tuple[CommandKind, int, str]:
    datanode_id = "" if command.container_id else command.datanode_id
    return command.kind, command.container_id, datanode_id
