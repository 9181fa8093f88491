"""Excludes a replica from commands if its commands fail repeatedly."""

from typing import Final

import structlog

from scm.state.clock import ScmClock
from scm.state.database import StateChange, StateDatabase
from scm.state.entities import (
    ASKED,
    CommandKind,
    CommandOutcome,
    Hold,
    OutcomeState,
    PendingCommand,
)
from scm.state.options import ScmOptions
from suture.errors import Code

_OF_A_REPLICA: Final = frozenset({CommandKind.REPLICATE, CommandKind.DELETE, CommandKind.RECONCILE})
_OF_OTHERS: Final = frozenset({Code.NOT_PROVEN})
"""Codes of failures that do not count against a replica.

With these codes, other datanodes failed to prove that they have the data of the replica. If such
failures excluded the replica, the last intact replica might not be copied.
"""

HOLD_REST_MS: Final = 3_600_000
"""Time in ms after which an excluded replica gets commands again.

The network may have caused the failures, and the replica may be the last intact one.
"""

_log = structlog.get_logger("suture.scm")


class FailingReplicas:
    """Counts the consecutive failed commands of each replica.

    Callers must hold the control plane's lock.
    """

    def __init__(self, state: StateDatabase, clock: ScmClock, options: ScmOptions) -> None:
        self._state = state
        self._clock = clock
        self._options = options
        self._failed_in_a_row: dict[tuple[int, str], int] = {}
        self._last_target: dict[tuple[int, str], str] = {}

    def record_outcome(
        self, change: StateChange, command: PendingCommand, outcome: CommandOutcome
    ) -> None:
        """Count the outcome of a command. Exclude its replica after too many consecutive failures.

        If consecutive copies to the same target fail, only the first failure counts, because the
        target may be the cause and the source may be the last intact replica.
        """
        key = (command.container_id, command.datanode_id)
        if outcome.state is OutcomeState.EXECUTED:
            self._forget(key)
        if outcome.state is not OutcomeState.FAILED or command.kind not in _OF_A_REPLICA:
            return
        if outcome.code in _OF_OTHERS:
            return
        if command.kind is CommandKind.REPLICATE:
            if self._last_target.get(key) == command.target_id:
                return
            self._last_target[key] = command.target_id
        count = self._failed_in_a_row[key] = self._failed_in_a_row.get(key, 0) + 1
        if not 0 < self._options.exclude_failure_count <= count:
            return
        reason = f"{count} failures in a row, the last: {outcome.code} {outcome.message}".strip()
        change.put(self._state.holds, Hold(*key, self._clock.wall_ms(), reason))
        self._forget(key)
        change.on_commit(
            lambda: _log.warning(
                "replica_excluded", container_id=key[0], datanode_id=key[1], reason=reason
            )
        )

    def release_old(self, change: StateChange) -> list[int]:
        """Release the replicas that were excluded longer than HOLD_REST_MS ago.

        Replicas that an operator excluded are not released. Return the ids of the containers.
        """
        now_ms = self._clock.wall_ms()
        old = [
            hold
            for hold in self._state.holds.values()
            if hold.reason != ASKED and not 0 <= now_ms - hold.since_ms < HOLD_REST_MS
        ]
        for hold in old:
            change.remove(self._state.holds, (hold.container_id, hold.datanode_id))
            change.on_commit(
                _log.info,
                "hold_released",
                container_id=hold.container_id,
                datanode_id=hold.datanode_id,
            )
        return [hold.container_id for hold in old]

    def _forget(self, key: tuple[int, str]) -> None:
        self._failed_in_a_row.pop(key, None)
        self._last_target.pop(key, None)
