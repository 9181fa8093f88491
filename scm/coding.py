"""Erasure-coded containers: which shards are lost, and who rebuilds them from the others.

    index sets ──► lost ──► targets, one a shard ──► one command to the first target

One command rebuilds all shards that are lost: it reads as many as there are data shards,
whatever the number of targets. An UNHEALTHY shard is no source and counts as lost once a repair in
place had its time. The rules on index sets are Ozone's; the Spark job has them too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.ec.scheme import parse_scheme
from merkle.replica import ReplicaState
from scm.basis import Basis
from scm.counting import Placed, is_bad, present
from scm.doubts import doubts
from scm.facts import Health, Kind, OpState, Pending
from scm.placement import choose_targets
from scm.replication import Case
from scm.state import Change

QUIET_S: Final = 10.0  # after an order: reports of what it made are on their way
IMPORT_SPACE_FACTOR: Final = 2

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class Shortage:
    """What an erasure-coded container lacks: indexes that nobody has whole, and what is left."""

    lost: tuple[int, ...]
    sources: tuple[tuple[int, str], ...]  # index and datanode, one a shard; those in doubt last
    data_count: int
    doubtful: frozenset[str] = frozenset()  # datanodes

    @property
    def is_repairable(self) -> bool:
        """Whether enough is left to compute from."""
        return len(self.sources) >= self.data_count

    def readable(self, is_reachable: Callable[[str], bool]) -> tuple[tuple[int, str], ...]:
        """Return the sources to read from now, those in doubt only if they are needed, and last.

        None when too few are left.
        """
        there = [(index, node) for index, node in self.sources if is_reachable(node)]
        sound = [(index, node) for index, node in there if node not in self.doubtful]
        chosen = sound if len(sound) >= self.data_count else there
        return tuple(chosen) if len(chosen) >= self.data_count else ()


def shortage(case: Case) -> Shortage:
    """Return what a container lacks. Pure.

    A replica counts unless its node is dead; a bad one counts while it may be healed in place, and
    one on a node that leaves is a source but no replica that stays. One that is excluded counts,
    and is read from by no order of ours.
    """
    scheme = parse_scheme(case.container.scheme)
    there = [p for p in present(case.placed) if p.datanode_id not in case.deletes]
    good = [p for p in there if not is_bad(case.container, p.replica)]
    closed = [p for p in good if p.replica.state is ReplicaState.CLOSED]
    staying = {p.replica.replica_index for p in good}
    staying |= {p.replica.replica_index for p in there if p.datanode_id in case.hopeful}
    doubtful = doubts(case.placed)
    sources: dict[int, str] = {}
    for p in sorted(closed, key=lambda p: (p.datanode_id in doubtful, *_by_readiness(p))):
        if p.datanode_id in case.excluded:
            continue
        sources.setdefault(p.replica.replica_index, p.datanode_id)
    return Shortage(
        tuple(index for index in scheme.indexes if index not in staying),
        tuple(
            sorted(
                ((i, node) for i, node in sources.items() if i in scheme.indexes),
                key=lambda source: (source[1] in doubtful, source[0]),
            )
        ),
        scheme.data_count,
        frozenset(sources.values()) & doubtful.keys(),
    )


def _by_readiness(placed: Placed) -> tuple[object, ...]:
    return (
        placed.health is not Health.HEALTHY,
        placed.op_state is not OpState.IN_SERVICE,
        not placed.is_confirmed,
        placed.datanode_id,
    )


class Coding:
    """Keeps erasure-coded containers whole. Callers hold the control's lock."""

    def __init__(self, basis: Basis) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._commands = basis.commands
        self._cases = basis.cases
        self._clock = basis.clock
        self._options = basis.options
        self._ordered_at_s: dict[int, float] = {}

    def needed_weight(self, case: Case) -> int | None:
        """Return how urgent it is to rebuild shards; None if there are none to rebuild now.

        The smallest is the most urgent: it is how many more shards may be lost.
        """
        found = shortage(case)
        if not found.lost or not found.is_repairable:
            return None
        return len(found.sources) - found.data_count

    def rebuild(
        self, change: Change, case: Case, *, count_max: int, is_in_place: bool = False
    ) -> bool:
        """Order what a container lacks, as far as it can be had now; whether that was all.

        What was ordered before counts as done: it comes back here if it fails. `is_in_place` lets
        a shard be made anew where a reconstruction left it unfinished.
        """
        found = shortage(case)
        if not found.lost or not found.is_repairable or self._is_under_way(case):
            return True
        if self._is_quiet(case.container.container_id):
            return False
        return self._rebuild(change, case, found, count_max, is_in_place=is_in_place)

    def shards(self, command: Pending) -> tuple[tuple[int, str], ...]:
        """Return the sources of a command as they are now; none when it must not be sent."""
        container = self._state.containers.get(command.container_id)
        if container is None or not container.scheme:
            return ()
        found = shortage(self._cases.case(container))
        targets = dict(command.shards)
        if not found.is_repairable or not set(targets) <= set(found.lost):
            return ()
        if not all(map(self._nodes.takes_replicas, targets.values())):
            return ()
        return found.readable(self._nodes.is_reachable)

    def addressed(self, command: Pending) -> Pending:
        """Return a command as it is sent: with the code, and a reconstruction's sources of now."""
        container = self._state.containers.get(command.container_id)
        if container is None or not container.scheme:
            return command
        sources = self.shards(command) if command.kind is Kind.RECONSTRUCT else ()
        return replace(command, sources=sources, scheme=container.scheme)

    def _is_under_way(self, case: Case) -> bool:
        return any(
            command.kind is Kind.RECONSTRUCT
            for command in self._state.commands.of_container(case.container.container_id)
        )

    def _is_quiet(self, container_id: int) -> bool:
        """Whether something was just ordered, or failed lately."""
        ordered_at_s = self._ordered_at_s.get(container_id)
        if ordered_at_s is not None:
            if self._clock.monotonic_s() - ordered_at_s < QUIET_S:
                return True
            del self._ordered_at_s[container_id]
        return self._commands.is_cooling(Kind.RECONSTRUCT, container_id)

    def _rebuild(
        self, change: Change, case: Case, found: Shortage, count_max: int, *, is_in_place: bool
    ) -> bool:
        container = case.container
        size_bytes = _needed_bytes(case)
        excluded = {p.datanode_id for p in case.placed}
        if is_in_place:
            excluded -= _unfinished(case, found.lost)
        targets = self._targets(case, found.lost, size_bytes, excluded)[:count_max]
        if not targets:
            return False
        shards = tuple(zip(found.lost, targets, strict=False))
        command_id = self._commands.queue(
            change,
            Kind.RECONSTRUCT,
            container.container_id,
            min(targets, key=self._commands.replication_load),
            why=f"shards {', '.join(map(str, found.lost))} are lost" + _doubted(found),
            shards=shards,
            size_bytes=size_bytes,
        )
        for node in targets:
            self._cases.promise(node, size_bytes)
        self._ordered_at_s[container.container_id] = self._clock.monotonic_s()
        _log.info(
            "reconstruct_ordered",
            container_id=container.container_id,
            command_id=command_id,
            targets=dict(shards),
        )
        return len(targets) == len(found.lost)

    def _targets(
        self, case: Case, lost: tuple[int, ...], size_bytes: int, excluded: set[str]
    ) -> list[str]:
        """Choose a node for each lost shard, as many as there are."""
        candidates = [
            candidate
            for candidate in self._cases.candidates()
            if self._commands.replication_load(candidate.datanode_id)
            < self._commands.replication_limit(candidate.datanode_id)
        ]
        return choose_targets(
            candidates,
            count=len(lost),
            needed_bytes=size_bytes,
            used_racks=[p.rack for p in present(case.placed)],
            excluded=excluded,
            container_id=case.container.container_id,
            seed=self._options.seed,
        )


def _doubted(found: Shortage) -> str:
    sound = [node for _index, node in found.sources if node not in found.doubtful]
    if len(sound) >= found.data_count:
        return ""
    return f"; no better sources than those in doubt on {', '.join(sorted(found.doubtful))}"


def _unfinished(case: Case, lost: tuple[int, ...]) -> set[str]:
    """Return the nodes that may get a bad shard anew in its place.

    They refuse, unless what they have is what an earlier reconstruction left unfinished.
    """
    return {
        p.datanode_id
        for p in case.placed
        if p.replica.state is ReplicaState.UNHEALTHY and (p.replica.replica_index,) == lost
    }


def _needed_bytes(case: Case) -> int:
    return IMPORT_SPACE_FACTOR * max((p.replica.bytes_used for p in case.placed), default=0)
