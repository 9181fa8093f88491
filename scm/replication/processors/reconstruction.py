"""Orders the rebuild of lost shards of erasure-coded containers.

The health check lists the lost shards of a container. The module chooses a target datanode for each
lost shard. One command, sent to the least loaded target, rebuilds all of them. It reads as many
shards as the code has data shards, whatever the number of targets.

The health check also decides which shards are read. It decides again when the command is sent.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from health.words import Action
from merkle.replica import ReplicaState
from scm.cluster.container_context import ContainerContext, needed_bytes, present
from scm.cluster.copy_targets import choose_targets
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.health.live_judge import HealthRow, LiveHealthJudge
from scm.state.database import StateChange
from scm.state.entities import CommandKind, PendingCommand

QUIET_S: Final = 10.0  # pause after an order, until reports show the rebuilt shards

_ABOUT_SHARDS: Final = frozenset({CommandKind.REPLICATE, CommandKind.RECONSTRUCT})

_log = structlog.get_logger("suture.scm")


class Reconstructor(ControlComponent):
    """Orders reconstructions of shards, and checks them before they are sent.

    Callers must hold the control plane's lock.
    """

    def __init__(self, basis: DecisionContext, judge: LiveHealthJudge) -> None:
        super().__init__(basis)
        self._judge = judge
        self._ordered_at_s: dict[int, float] = {}
        self._sources: dict[int, tuple[tuple[int, str], ...]] = {}  # of commands being sent

    def rebuild(
        self,
        change: StateChange,
        case: ContainerContext,
        lost: HealthRow,
        *,
        count_max: int,
        is_in_place: bool = False,
    ) -> bool:
        """Order a reconstruction of lost shards, for at most `count_max` shards.

        Return True if nothing remains to be ordered. A pending reconstruction counts as done; if it
        fails, the container is queued again. `is_in_place` allows targets that have an unfinished
        shard of an earlier reconstruction.
        """
        if self._is_under_way(case):
            return True
        if self._is_quiet(case.container.container_id):
            return False
        return self._rebuild(change, case, lost, count_max, is_in_place=is_in_place)

    def needed(self, commands: Sequence[PendingCommand]) -> set[int]:
        """Return the ids of the commands for shards that are still needed.

        A command is needed if the health check would request the same action without the command.
        Also record the sources of these commands for `addressed`.
        """
        mine = [c for c in commands if c.kind in _ABOUT_SHARDS and self.is_coded(c)]
        rows = self._judge.rows(
            {c.container_id for c in mine}, without={c.command_id for c in mine}
        )
        self._sources.clear()
        return {c.command_id for c in mine if self._is_needed(c, rows.get(c.container_id, ()))}

    def _is_needed(self, command: PendingCommand, rows: Sequence[HealthRow]) -> bool:
        if command.kind is CommandKind.REPLICATE:
            return any(
                row.action is Action.REPLICATE and command.datanode_id in row.sources
                for row in rows
            )
        targets = dict(command.shards)
        lost = next((row for row in rows if row.action is Action.RECONSTRUCT), None)
        if lost is None or not set(targets) <= set(lost.indexes):
            return False
        held = self._state.replicas.of(command.container_id)
        index_of = {replica.datanode_id: replica.replica_index for replica in held}
        self._sources[command.command_id] = tuple((index_of[n], n) for n in lost.sources)
        return all(map(self._nodes.takes_replicas, targets.values()))

    def is_coded(self, command: PendingCommand) -> bool:
        """Return True if a command is for an erasure-coded container."""
        container = self._state.containers.get(command.container_id)
        return container is not None and bool(container.scheme)

    def addressed(self, command: PendingCommand) -> PendingCommand:
        """Return a command with the details that are added when it is sent.

        These are the erasure code, and for a reconstruction, the sources that `needed` recorded.
        """
        container = self._state.containers.get(command.container_id)
        if container is None or not container.scheme:
            return command
        sources = self._sources.get(command.command_id, ())
        return replace(command, sources=sources, scheme=container.scheme)

    def _is_under_way(self, case: ContainerContext) -> bool:
        return any(
            command.kind is CommandKind.RECONSTRUCT
            for command in self._state.commands.of_container(case.container.container_id)
        )

    def _is_quiet(self, container_id: int) -> bool:
        """Return True if a rebuild of the container was just ordered, or has recently failed."""
        ordered_at_s = self._ordered_at_s.get(container_id)
        if ordered_at_s is not None:
            if self._clock.monotonic_s() - ordered_at_s < QUIET_S:
                return True
            del self._ordered_at_s[container_id]
        return self._commands.is_cooling(CommandKind.RECONSTRUCT, container_id)

    def _rebuild(
        self,
        change: StateChange,
        case: ContainerContext,
        lost: HealthRow,
        count_max: int,
        *,
        is_in_place: bool,
    ) -> bool:
        container = case.container
        size_bytes = needed_bytes(case)
        excluded = {p.datanode_id for p in case.placed}
        if is_in_place:
            excluded -= _unfinished(case, lost.indexes)
        targets = self._targets(case, lost.indexes, size_bytes, excluded)[:count_max]
        if not targets:
            return False
        shards = tuple(zip(lost.indexes, targets, strict=False))
        command_id = self._commands.queue(
            change,
            CommandKind.RECONSTRUCT,
            container.container_id,
            min(targets, key=self._commands.loads.replication_load),
            why=lost.reason + lost.objection_text(*lost.sources),
            shards=shards,
            size_bytes=size_bytes,
        )
        for node in targets:
            self._cases.reserve_space(node, size_bytes)
        self._ordered_at_s[container.container_id] = self._clock.monotonic_s()
        change.on_commit(
            _log.info,
            "reconstruct_ordered",
            container_id=container.container_id,
            command_id=command_id,
            targets=dict(shards),
        )
        return len(targets) == len(lost.indexes)

    def _targets(
        self, case: ContainerContext, lost: tuple[int, ...], size_bytes: int, excluded: set[str]
    ) -> list[str]:
        """Choose one datanode for each lost shard.

        Return fewer if there are not enough datanodes.
        """
        candidates = [
            candidate
            for candidate in self._cases.candidates()
            if self._commands.loads.replication_load(candidate.datanode_id)
            < self._commands.loads.replication_limit(candidate.datanode_id)
        ]
        return choose_targets(
            candidates,
            count=len(lost),
            needed_bytes=size_bytes,
            used_racks=[p.rack for p in present(case.placed)],
            excluded=excluded,
            failed_at_s=self._commands.failing_targets.of(case.container.container_id),
            container_id=case.container.container_id,
        )


def _unfinished(case: ContainerContext, lost: tuple[int, ...]) -> set[str]:
    """Return the datanodes that may rebuild their unhealthy shard in place.

    They reject the command unless an earlier reconstruction left the shard unfinished.
    """
    return {
        p.datanode_id
        for p in case.placed
        if p.replica.state is ReplicaState.UNHEALTHY and (p.replica.replica_index,) == lost
    }
