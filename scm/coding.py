"""Erasure-coded containers: which shards are lost, and who rebuilds them from the others.

    index sets ──► lost ──► targets, one a shard ──► one command to the first target

One command rebuilds all shards that are lost (S1.66): it reads as many as there are data shards,
whatever the number of targets. An UNHEALTHY shard is no source and counts as lost once a repair in
place had its time. The rules on index sets are Ozone's (S1.32-S1.38); the Spark job has them too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.ec.scheme import parse_scheme
from merkle.replica import ReplicaState
from scm.cases import Cases
from scm.clock import Clock
from scm.commands import Commands
from scm.counting import Placed, is_bad, present
from scm.facts import Container, ContainerState, Kind, OpState, Pending
from scm.loads import RECONSTRUCT_WEIGHT
from scm.nodes import Nodes
from scm.options import ScmOptions
from scm.placement import choose_targets
from scm.replication import Case
from scm.shards import gives_way
from scm.state import Change, State
from scm.upkeep import Upkeep

QUIET_S: Final = 10.0  # after an order: reports of what it made are on their way
IMPORT_SPACE_FACTOR: Final = 2

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class Shortage:
    """What an erasure-coded container lacks: indexes that nobody has whole, and what is left."""

    lost: tuple[int, ...]
    sources: tuple[tuple[int, str], ...]  # index and datanode, one a shard that is left
    data_count: int

    @property
    def is_repairable(self) -> bool:
        """Whether enough is left to compute from."""
        return len(self.sources) >= self.data_count


def shortage(case: Case) -> Shortage:
    """Return what a container lacks. Pure.

    A replica counts unless its node is dead; a bad one counts while it may be healed in place, and
    one on a node that leaves is a source but no replica that stays.
    """
    scheme = parse_scheme(case.container.scheme)
    there = [p for p in present(case.placed) if p.datanode_id not in case.deletes]
    good = [p for p in there if not is_bad(case.container, p.replica)]
    closed = [p for p in good if p.replica.state is ReplicaState.CLOSED]
    staying = {p.replica.replica_index for p in good}
    staying |= {p.replica.replica_index for p in there if p.datanode_id in case.hopeful}
    sources: dict[int, str] = {}
    for p in sorted(closed, key=_by_readiness):
        sources.setdefault(p.replica.replica_index, p.datanode_id)
    return Shortage(
        tuple(index for index in scheme.indexes if index not in staying),
        tuple(sorted((i, node) for i, node in sources.items() if i in scheme.indexes)),
        scheme.data_count,
    )


def _by_readiness(placed: Placed) -> tuple[object, ...]:
    return placed.op_state is not OpState.IN_SERVICE, not placed.is_confirmed, placed.datanode_id


class Coding:
    """Keeps erasure-coded containers whole. Callers hold the control's lock."""

    def __init__(
        self,
        state: State,
        nodes: Nodes,
        commands: Commands,
        cases: Cases,
        upkeep: Upkeep,
        clock: Clock,
        options: ScmOptions,
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._commands = commands
        self._cases = cases
        self._upkeep = upkeep
        self._clock = clock
        self._options = options
        self._ordered_at_s: dict[int, float] = {}

    def look_at(self, change: Change, container_ids: Iterable[int]) -> None:
        """Order what containers lack, as far as they are erasure-coded and it can be had now."""
        for container_id in container_ids:
            container = self._state.containers.get(container_id)
            if container is None or not container.scheme:
                continue
            if container.state is ContainerState.CLOSED and not self._is_quiet(container_id):
                self._rebuild(change, container)

    def shards(self, command: Pending) -> tuple[tuple[int, str], ...]:
        """Return the sources of a command as they are now; none when it must not be sent."""
        container = self._state.containers.get(command.container_id)
        if container is None or not container.scheme:
            return ()
        found = shortage(self._cases.case(container))
        targets = dict(command.shards)
        if not found.is_repairable or not set(targets) <= set(found.lost):
            return ()
        reachable = [(i, node) for i, node in found.sources if self._nodes.is_reachable(node)]
        return tuple(reachable) if len(reachable) >= found.data_count else ()

    def addressed(self, command: Pending) -> Pending:
        """Return a command as it is sent: with the code, and a reconstruction's sources of now."""
        container = self._state.containers.get(command.container_id)
        if container is None or not container.scheme:
            return command
        sources = self.shards(command) if command.kind is Kind.RECONSTRUCT else ()
        return replace(command, sources=sources, scheme=container.scheme)

    def _is_quiet(self, container_id: int) -> bool:
        """Whether something is under way, was just ordered, or failed lately."""
        if any(
            command.kind is Kind.RECONSTRUCT
            for command in self._state.commands.of_container(container_id)
        ):
            return True
        ordered_at_s = self._ordered_at_s.get(container_id)
        if ordered_at_s is not None:
            if self._clock.monotonic_s() - ordered_at_s < QUIET_S:
                return True
            del self._ordered_at_s[container_id]
        return self._commands.is_cooling(Kind.RECONSTRUCT, container_id)

    def _rebuild(self, change: Change, container: Container) -> None:
        case = self._cases.case(container)
        found = shortage(case)
        if not found.lost or not found.is_repairable:
            return
        holders = {p.datanode_id for p in case.placed}
        targets = self._targets(case, found.lost, holders)
        if not targets:
            if case.deletes or self._make_room(change, case, found.lost):
                return
            targets = self._targets(case, found.lost, holders - _unfinished(case, found.lost))
        if not targets:
            return
        shards = tuple(zip(found.lost, targets, strict=False))
        command_id = self._commands.queue(
            change,
            Kind.RECONSTRUCT,
            container.container_id,
            targets[0],
            is_kept=False,  # a restarted control plane looks again
            shards=shards,
        )
        self._ordered_at_s[container.container_id] = self._clock.monotonic_s()
        _log.info(
            "reconstruct_ordered",
            container_id=container.container_id,
            command_id=command_id,
            targets=dict(shards),
        )

    def _make_room(self, change: Change, case: Case, lost: tuple[int, ...]) -> bool:
        """Remove a bad replica where its shard can then be rebuilt, when there is no other node.

        Returns whether one is removed.
        """
        victim = gives_way(case)
        holders = {p.datanode_id for p in case.placed}
        if victim is None or self._targets(case, lost, holders, is_load_counted=False):
            return False
        is_ordered = self._upkeep.delete(
            change, case.container, victim.datanode_id, keep_count=case.container.data_count
        )
        if is_ordered:
            _log.warning(
                "unhealthy_shard_gives_way",
                container_id=case.container.container_id,
                datanode_id=victim.datanode_id,
                index=victim.replica.replica_index,
            )
        return is_ordered

    def _targets(
        self,
        case: Case,
        lost: tuple[int, ...],
        excluded: set[str],
        *,
        is_load_counted: bool = True,
    ) -> list[str]:
        """Choose a node for each lost shard, as many as there are; the first one coordinates."""
        sizes = [p.replica.bytes_used for p in case.placed]
        candidates = [
            candidate
            for candidate in self._cases.candidates()
            if not is_load_counted
            or self._commands.replication_load(candidate.datanode_id) + RECONSTRUCT_WEIGHT
            <= self._commands.replication_limit(candidate.datanode_id)
        ]
        return choose_targets(
            candidates,
            count=len(lost),
            needed_bytes=IMPORT_SPACE_FACTOR * max(sizes, default=0),
            used_racks=[p.rack for p in case.placed],
            excluded=excluded,
            container_id=case.container.container_id,
            seed=self._options.seed,
        )


def _unfinished(case: Case, lost: tuple[int, ...]) -> set[str]:
    """Return the nodes that may get a bad shard anew in its place.

    They refuse, unless what they have is what an earlier reconstruction left unfinished.
    """
    return {
        p.datanode_id
        for p in case.placed
        if p.replica.state is ReplicaState.UNHEALTHY and (p.replica.replica_index,) == lost
    }
