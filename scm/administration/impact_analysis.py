"""Predicts which containers would be unreadable or lack replicas without some targets. No I/O.

The targets are datanodes or volumes that would be off. The module evaluates a batch of containers
twice. First, it determines which replicas serve reads now, in the worst case and in the best case.
Then `health.judge` computes the health of the containers and their missing replicas without the
targets.

Pending copies are assumed to fail. In the worst case, a replica serves reads only if all of these
conditions hold: its datanode is reachable and has reported all its replicas, the replica has no
fault and every acknowledged commit, and no delete of it is pending. In the best case, every replica
serves reads unless its datanode is dead. If the two cases give different results, the answer is
"unknown".
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

import numpy as np

from health.batch import ContainerBatch, Nodes, Ops, view
from health.departure import missing_replicas
from health.judge import Diagnosis, diagnose
from health.remaining import is_readable, spare_count, without
from health.rules import Rules
from health.segmented_rows import Bools, Ints
from health.source_issues import SourceIssue
from health.words import (
    CONTAINER_STATES,
    ContainerOnlyState,
    HealthState,
    NodeHealth,
    PendingOpKind,
    ServiceState,
    SharedState,
)

IDS_MAX: Final = 1_000  # containers of each kind that an answer names


class StopAnswer(StrEnum):
    """The answer to the question whether the given datanodes and volumes may be stopped."""

    YES = "YES"
    NO = "NO"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class StopTargets:
    """The datanodes and volumes that would be off.

    `nodes` are complete datanodes. For each other datanode, `parts` has the containers on the
    volumes that would be off. `is_for_good` is True if the targets would never return.
    """

    nodes: frozenset[str]
    parts: Mapping[str, Ints]  # datanode -> container ids
    is_for_good: bool = False
    keep_count: int = 1  # copies that must remain readable


@dataclass(slots=True)
class ImpactTotals:
    """Predicted numbers of unreadable, lost and under-replicated containers without some targets.

    The targets are datanodes and volumes that would be off. `add` sums up the numbers page by page.
    Each list of ids has at most IDS_MAX ids.
    """

    container_count: int = 0
    already_count: int = 0
    """Number of containers on the targets that are unreadable even before the targets are off."""
    unreadable_count: int = 0
    unreadable_ids: list[int] = field(default_factory=list)
    doubtful_count: int = 0
    doubtful_ids: list[int] = field(default_factory=list)
    last_copy_count: int = 0
    few_count: int = 0
    """Number of containers that remain readable, but with fewer copies than requested."""
    lost_count: int = 0
    """Number of containers whose data would be lost if the datanodes and volumes never returned."""
    lost_ids: list[int] = field(default_factory=list)
    lost_states: Counter[str] = field(default_factory=Counter)
    healths: Counter[str] = field(default_factory=Counter)
    """Number of containers for each health state other than HEALTHY."""
    missing_replicas: Counter[int] = field(default_factory=Counter)
    """Number of containers for each number of replicas that a container would lack."""
    open_ids: list[int] = field(default_factory=list)
    rebuild_bytes: int = 0
    width_max: int = 0
    """The highest replication factor of all containers that would lack replicas."""

    @property
    def missing_replica_count(self) -> int:
        """Return the number of replicas that all containers together would lack."""
        return sum(short * count for short, count in self.missing_replicas.items())

    def add(self, batch: ContainerBatch, rules: Rules, targets: StopTargets) -> None:
        """Predict the effect on a batch of containers if the targets were off.

        Add it to the totals.
        """
        at_stake = _at_stake(batch, rules, targets)
        self._count_serving(at_stake)
        self._count_lacking(at_stake, rules)
        if targets.is_for_good:
            self._count_lost(at_stake)

    def _count_serving(self, stake: "_ImpactBatch") -> None:
        seen, hit = stake.found.view, stake.is_hit
        at_best, certain = serving(stake.found)
        is_asked = stake.holds & seen.rows.some(at_best & hit)
        now, left = is_readable(seen, at_best), is_readable(seen, at_best & ~hit)
        left_for_certain = is_readable(seen, certain & ~hit)
        spare = spare_count(seen, certain & ~hit)
        unreadable = is_asked & now & ~left
        doubtful = is_asked & now & left & ~left_for_certain
        self.container_count += int(np.count_nonzero(seen.rows.some(hit)))
        self.already_count += int(np.count_nonzero(stake.holds & seen.rows.some(hit) & ~now))
        self.unreadable_count += stake.name(unreadable, self.unreadable_ids)
        self.doubtful_count += stake.name(doubtful, self.doubtful_ids)
        self.last_copy_count += int(np.count_nonzero(is_asked & left_for_certain & (spare == 1)))
        is_few = is_asked & left_for_certain & (spare < stake.targets.keep_count)
        self.few_count += int(np.count_nonzero(is_few))
        is_open = seen.batch.containers.state == SharedState.OPEN
        self.open_ids += stake.ids[is_open & seen.rows.some(hit)].tolist()

    def _count_lacking(self, stake: "_ImpactBatch", rules: Rules) -> None:
        after = diagnose(stopped(stake.batch, stake.is_hit, stake.targets), rules)
        short = missing_replicas(after.view, after.counts)
        if not stake.targets.is_for_good:  # those missing already are not caused by the targets
            short = np.maximum(0, short - missing_replicas(stake.found.view, stake.found.counts))
        short = np.where(stake.found.view.rows.some(stake.is_hit), short, 0)
        self.missing_replicas.update(short[short > 0].tolist())
        containers = stake.batch.containers
        can_be_made = is_readable(after.view, after.view.is_present)
        made = np.where(can_be_made, short, 0)
        self.rebuild_bytes += int((made * containers.used_bytes).sum())
        self.width_max = max(self.width_max, int(containers.factor[short > 0].max(initial=0)))
        states = after.verdicts.state[after.verdicts.state != HealthState.HEALTHY]
        self.healths.update(HealthState(code).name for code in states.tolist())

    def _count_lost(self, stake: "_ImpactBatch") -> None:
        nodes = stake.batch.nodes
        all_up = np.full(len(nodes.names), int(NodeHealth.HEALTHY))
        seen = view(replace(stake.batch, nodes=replace(nodes, health=all_up)))
        there, left = (
            is_readable(seen, mask) for mask in (seen.is_present, seen.is_present & ~stake.is_hit)
        )
        is_lost = stake.holds & there & ~left
        self.lost_count += stake.name(is_lost, self.lost_ids)
        states = stake.batch.containers.state[is_lost].tolist()
        self.lost_states.update(CONTAINER_STATES[code] if code >= 0 else "" for code in states)


def serving(found: Diagnosis) -> tuple[Bools, Bools]:
    """Return which replicas serve reads in the best case, and which in the worst case.

    Both results have one boolean per replica of the batch. In the best case, every replica serves
    reads unless its datanode is dead. In the worst case, only replicas that are certainly usable
    serve reads.
    """
    seen = found.view
    replicas, containers = seen.batch.replicas, seen.batch.containers
    is_silent = seen.batch.nodes.health[replicas.node] == NodeHealth.STALE
    at_best = seen.is_present & (seen.is_reachable | is_silent)
    is_settled = seen.of_container(containers.state == SharedState.CLOSED)
    has_all = is_settled | (replicas.bcsid >= seen.of_container(containers.acknowledged_id))
    certain = at_best & seen.is_reachable & ~seen.is_bad & seen.is_confirmed & ~seen.is_leaving
    return at_best, certain & has_all & (found.source_issues == SourceIssue.NONE)


def stopped(batch: ContainerBatch, is_hit: Bools, targets: StopTargets) -> ContainerBatch:
    """Return a copy of the batch in which the targets are off.

    The targeted datanodes are dead, and the replicas on the targeted volumes are removed.
    """
    nodes = batch.nodes
    is_off = nodes.among(targets.nodes)
    service, is_returning = nodes.service, nodes.is_returning
    if targets.is_for_good:  # not expected back, even if maintenance was announced
        service = np.where(is_off, int(ServiceState.IN_SERVICE), service)
        is_returning = is_returning & ~is_off
    after: Nodes = replace(
        nodes,
        health=np.where(is_off, int(NodeHealth.DEAD), nodes.health),
        service=service,
        is_returning=is_returning,
    )
    return replace(without(batch, is_hit & ~is_off[batch.replicas.node]), nodes=after)


@dataclass(frozen=True, slots=True)
class _ImpactBatch:
    """A batch of containers without its pending copies, and the health of these containers.

    `is_hit` marks the replicas on the datanodes and volumes that would be off. `holds` marks the
    containers that may contain needed data.
    """

    batch: ContainerBatch
    found: Diagnosis
    is_hit: Bools
    holds: Bools  # containers with data that may be needed
    targets: StopTargets

    @property
    def ids(self) -> Ints:
        """Return the ids of the containers in the batch."""
        return self.batch.containers.container_id

    def name(self, mask: Bools, ids: list[int]) -> int:
        """Append the ids of the marked containers to `ids`, and return their number.

        `mask` has one boolean per container. `ids` never gets more than IDS_MAX ids.
        """
        ids += self.ids[mask][: IDS_MAX - len(ids)].tolist()
        return int(np.count_nonzero(mask))


def _at_stake(batch: ContainerBatch, rules: Rules, targets: StopTargets) -> _ImpactBatch:
    ops = batch.ops
    is_kept = ops.kind != PendingOpKind.ADD
    batch = replace(batch, ops=Ops(**{f.name: getattr(ops, f.name)[is_kept] for f in fields(Ops)}))
    found = diagnose(batch, rules)
    replicas, containers, names = batch.replicas, batch.containers, batch.nodes.names
    is_hit = batch.nodes.among(targets.nodes)[replicas.node]
    for name, ids in targets.parts.items():
        if name in names:
            own = replicas.node == names.index(name)
            is_hit |= own & np.isin(containers.container_id[replicas.container], ids)
    is_over = (containers.state >= ContainerOnlyState.DELETING) | found.counts.is_empty
    is_unwritten = (containers.state == SharedState.OPEN) & (containers.key_count == 0)
    return _ImpactBatch(batch, found, is_hit, ~is_over & ~is_unwritten, targets)
