"""Explains why a container is not healthy yet, for how long, and what delays its repair.

`explain`, the report, the web page and the metrics show the same reasons. A reason names the limit,
hold, pause or missing datanode that delays the repair. No reason contains an estimate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scm.cluster.container_context import needed_bytes, neighbours
from scm.cluster.decision_context import ControlComponent
from scm.cluster.run_time_settings import text_of
from scm.cluster.safemode import SafeMode
from scm.replication.processors.removals import OverReplicatedProcessor
from scm.replication.reconcile.auto_reconcile import AutoReconcile
from scm.replication.replication_manager import ReplicationManager
from scm.state.entities import CommandKind, Container, PendingCommand
from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.observe.terminal_escape import short_id

NAMED_MAX = 5  # datanodes in one reason


@dataclass(frozen=True, slots=True)
class ContainerWait:
    """The reasons why a container is not healthy yet, and the time since it is unhealthy."""

    container_id: int
    condition: str  # health state at the last check
    since_ms: int  # 0 = unknown, because the replicas only differ
    try_count: int
    reasons: tuple[str, ...]


@dataclass(eq=False)
class ContainerWaits(ControlComponent):
    """Determines why containers are not healthy yet. Callers must hold the control plane's lock."""

    _manager: ReplicationManager
    _removals: OverReplicatedProcessor
    _healing: AutoReconcile
    _safe_mode: SafeMode

    def of(self, container_id: int) -> ContainerWait | None:
        """Return why a container is not healthy yet.

        Return None if the container needs no repair.
        """
        condition = self._manager.health_of(container_id)
        reasons = tuple(self._reasons(container_id))
        if not condition and not reasons:
            return None
        _weight, tries = self._manager.under.get(container_id, (0, 1))
        return ContainerWait(
            container_id,
            condition or "HEALTHY",
            self._manager.unhealthy_since_ms(container_id),
            tries - 1,
            reasons or ("waits for a change: no known action would help",),
        )

    def counts(self) -> dict[str, int]:
        """Return the number of containers whose repair is delayed, by the kind of the reason."""
        return {
            "no_target": self._manager.resting_count,
            "sources_busy": self._manager.sleeping_count,
            "delete_limit": self._removals.sleeping_count,
            "held": len({hold.container_id for hold in self._state.holds.values()}),
        }

    def _reasons(self, container_id: int) -> Iterator[str]:
        for hold in self._state.holds.of(container_id):
            what = f"replica on {short_id(hold.datanode_id)}" if hold.datanode_id else "container"
            yield f"held: {what}, {hold.reason}"
        commands = [c for c in self._state.commands.of_container(container_id) if not c.is_answered]
        for command in commands:
            yield self._command(command)
        container = self._state.containers.get(container_id)
        has_work = container_id in self._manager.under or container_id in self._removals.over
        has_work = has_work or self._healing.is_due(container_id)
        if self._safe_mode.is_on and (has_work or self._manager.health_of(container_id)):
            yield f"held by safe mode: {self._safe_mode.reevaluate().reason}"
        if container is not None and container_id in self._manager.under:
            yield from self._missing(container)
        if container_id in self._removals.over and not commands:
            yield from self._surplus(container_id)
        if self._healing.is_due(container_id):
            yield "waits for a reconcile, until the replicas' reports have settled (heal_after_ms)"

    def _command(self, command: PendingCommand) -> str:
        """Return a text about a pending command and the reason why it has not ended yet."""
        target = f" to {short_id(command.target_id)}" if command.target_id else ""
        what = f"{command.kind.value} on {short_id(command.datanode_id)}{target}"
        if command.sent_at_s is not None:
            passed_s = max(0.0, self._clock.monotonic_s() - command.sent_at_s)
            return f"under way: {what}, sent {format_duration(passed_s)} ago"
        pause = self._commands.pause_of(command)
        if pause is not None:
            return f"held: {what}; {text_of(pause)}"
        if not self._nodes.is_reachable(command.datanode_id):
            return f"waits: {what}; the datanode does not answer"
        return f"limited: {what} waits for earlier commands of the datanode"

    def _missing(self, container: Container) -> Iterator[str]:
        """Yield each reason why no further copy or rebuild of a container is ordered."""
        number = container.container_id
        for kind in (CommandKind.REPLICATE, CommandKind.RECONSTRUCT):
            if self._commands.is_cooling(kind, number):
                yield f"waits before another {kind.value}, because the last one failed"
        limit, count = self._manager.in_flight_limit(), self._state.commands.add_count
        if limit and count >= limit:
            yield f"limited by inflight_factor_percent: {count} of {limit} replicas are in flight"
        busy = self._manager.busy_sources(number)
        if busy:
            yield f"limited by replication_limit: no room on {_names(busy)}"
        yield from self._without_target(container)

    def _without_target(self, container: Container) -> Iterator[str]:
        case = self._cases.case(container)
        if self._manager.targets(case, 1):
            if self._manager.is_resting(container.container_id):
                yield "no target: no datanode on another rack has room"
            return
        used, excluded = neighbours(case)
        able = self._cases.candidates()
        free = [c for c in able if c.datanode_id not in used | excluded]
        if free:
            space = size_text(needed_bytes(case))
            yield f"no target: none of {len(free)} other datanodes has room for {space}"
        else:
            needed = container.replication_factor
            yield f"no target: {len(able)} datanodes take replicas, {needed} needed"

    def _surplus(self, container_id: int) -> Iterator[str]:
        if self._commands.is_cooling(CommandKind.DELETE, container_id):
            yield "waits before another delete, because the last one failed or was refused"
        busy = self._removals.busy_datanodes(container_id)
        if busy:
            yield f"limited: {_names(busy)} has as many deletes as it may"


def _names(datanode_ids: Sequence[str]) -> str:
    names = ", ".join(map(short_id, datanode_ids[:NAMED_MAX]))
    return names + (", ..." if len(datanode_ids) > NAMED_MAX else "")
