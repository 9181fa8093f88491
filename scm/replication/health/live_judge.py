"""Computes the health of containers from the current state, and the actions that they need.

`health_batches` converts containers to a batch, `health.judge` computes their health, and
`health.plan` computes the actions. Each call takes some milliseconds even for one container, so
callers should pass many containers at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from health.batch import NO_BCSID, BatchView, ContainerBatch, view
from health.departure import FREE, HELD_BY, locked_out, missing_replicas, obstacles
from health.judge import Diagnosis, diagnose, scene_of
from health.plan.copies import ratis_sources
from health.plan.plan_rows import PlanRows, RaggedArray
from health.plan.planner import plan
from health.remaining import whole, without
from health.removal import Removals
from health.rules import Rules
from health.segmented_rows import Bools
from health.source_issues import DOUBTS, SourceIssue
from health.words import SERVICE_OF, Action, HealthState, SharedState
from scm.replication.health.health_batches import HealthBatchBuilder
from scm.state.entities import OpState

MADE: Final = (Action.REPLICATE, Action.RECONSTRUCT)
UNNEEDED: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class HealthRow:
    """An action that a container needs according to the health rules.

    Limits on commands are not applied yet, and the targets of copies are not chosen yet.
    """

    action: Action
    priority: int  # the smallest is the most urgent
    reason: str
    sources: tuple[str, ...]  # datanodes to copy or compute from, best first
    targets: tuple[str, ...]  # datanodes that must close or delete their replica
    indexes: tuple[int, ...]
    copies: int
    is_forced: bool
    doubts: Mapping[str, str] = field(default_factory=dict)  # objections to sources

    def objection_text(self, *source_ids: str) -> str:
        """Return a text with the objections to these datanodes as sources.

        It is empty if there are none.
        """
        found = [f"{node}: {self.doubts[node]}" for node in source_ids if node in self.doubts]
        return f"; no better source than {'; '.join(found)}" if found else ""


@dataclass(frozen=True, slots=True)
class ReplicationGaps:
    """The checked containers that need attention of the replication manager.

    These are containers with too few or too many replicas, erasure-coded containers whose shards
    have different numbers of blocks, and closed containers without their last commit.
    """

    under: Mapping[int, int]  # id -> priority of its most urgent need, smallest first
    over: frozenset[int]
    uneven: frozenset[int] = frozenset()  # closed shards have different block counts
    short: frozenset[int] = frozenset()  # closed, and the last commit is on no present datanode


@dataclass(frozen=True, slots=True)
class DepartureImpact:
    """The effect on one container if some datanodes leave or go into maintenance."""

    container_id: int
    made_count: int  # replicas to make on other nodes
    is_stuck: bool  # there is no source for them
    is_locked: bool  # readable now, but not if the nodes were off now


def losses_without(
    batch: ContainerBatch, rules: Rules, datanode_ids: Collection[str], op_state: OpState
) -> list[DepartureImpact]:
    """Return the effect on each container if these datanodes leave or go into maintenance. No I/O.

    The results are in the order of the batch.
    """
    after = diagnose(as_if_told(batch, datanode_ids, op_state), rules)
    return losses(after, locked_out(view(batch), batch.nodes.among(datanode_ids)))


def as_if_told(
    batch: ContainerBatch, datanode_ids: Collection[str], op_state: OpState
) -> ContainerBatch:
    """Return a copy of the batch in which these datanodes have another operational state.

    No I/O.
    """
    nodes, is_named = batch.nodes, batch.nodes.among(datanode_ids)
    is_resting = op_state is OpState.IN_MAINTENANCE
    told = replace(
        nodes,
        service=np.where(is_named, int(SERVICE_OF[op_state]), nodes.service),
        is_returning=np.where(is_named, is_resting, nodes.is_returning),
    )
    return replace(batch, nodes=told)


def losses(after: Diagnosis, is_locked: Bools) -> list[DepartureImpact]:
    """Return the effect of a departure of datanodes on each container. No I/O.

    `after` is the health of the containers, computed as if the datanodes had left. `is_locked` has
    one boolean per container: True if it would be unreadable if the datanodes were off.
    """
    actions = plan(scene_of(after))
    copied, rebuilt = (
        np.isin(np.arange(after.view.rows.count), actions.container[actions.action == action])
        for action in (Action.REPLICATE, Action.RECONSTRUCT)
    )
    is_lost = after.view.is_ec & (after.counts.erasure.unavailable != 0)
    can_be_made = np.where(is_lost, rebuilt, copied)
    return [
        DepartureImpact(number, short, short > 0 and not able, locked)
        for number, short, able, locked in zip(
            after.view.batch.containers.container_id.tolist(),
            missing_replicas(after.view, after.counts).tolist(),
            can_be_made.tolist(),
            is_locked.tolist(),
            strict=True,
        )
    ]


class LiveHealthJudge:
    """Computes the health of containers in the current state, by the rules of `health/`.

    Callers must hold the control plane's lock.
    """

    def __init__(self, batches: HealthBatchBuilder) -> None:
        self._batches = batches

    def rules(self) -> Rules:
        """Return the current parameters of the health rules.

        They are the number of racks, and the minimum numbers of replicas if datanodes are in
        maintenance or leave.
        """
        return self._batches.rules()

    def diagnose(self, container_ids: Collection[int]) -> Diagnosis:
        """Return the health of these containers as columns, sorted by container id."""
        return diagnose(self._batches.of(container_ids), self._batches.rules())

    def rows(
        self, container_ids: Collection[int], *, without: Collection[int] = ()
    ) -> dict[int, list[HealthRow]]:
        """Return the actions that these containers need, most urgent first.

        The pending commands whose ids are in `without` are ignored. Containers that need no action
        are not in the result.
        """
        if not container_ids:
            return {}
        batch = self._batches.of(container_ids, without=without)
        return _planned(diagnose(batch, self._batches.rules()))

    def summarize_health(self, container_ids: Collection[int]) -> tuple[Diagnosis, ReplicationGaps]:
        """Return the health of these containers as columns, and those that need attention."""
        found = self.diagnose(container_ids)
        lacks = _lacks(found) if found.flags.any() else ReplicationGaps({}, frozenset())
        return found, replace(lacks, uneven=_uneven(found.view), short=_short(found.view))

    def health_without(self, container_id: int, datanode_id: str) -> HealthState:
        """Return the health that a container would have without the replica on one datanode."""
        batch = self._batches.of([container_id])
        left = without(batch, batch.nodes.among([datanode_id])[batch.replicas.node])
        return HealthState(int(diagnose(left, self._batches.rules()).verdicts.state[0]))

    def removals(self, container_ids: Collection[int]) -> Removals:
        """Return an object that decides which replicas of these containers may be removed."""
        return Removals(view(self._batches.of(container_ids)), self._batches.rules())

    def copy_count(self, container_id: int, *, without: Collection[str] = ()) -> int:
        """Return the number of intact and equal replicas of a container.

        For an erasure-coded container, return the number of indexes that have an intact shard.
        Replicas on the datanodes in `without` do not count.
        """
        return self.removals([container_id]).copy_count(container_id, without=without)

    def healthy(self, container_ids: Iterable[int]) -> dict[int, frozenset[str]]:
        """Return those of the containers that are HEALTHY, each with the datanodes to copy from.

        The replicas on these datanodes are intact and not excluded, and there is no objection to
        them as sources.
        """
        found = self.diagnose(list(container_ids))
        batch = found.view.batch
        is_well = (found.verdicts.state == HealthState.HEALTHY)[found.view.rows.owner]
        is_well &= whole(found.view) & ~batch.replicas.is_barred
        sound = (is_well & (found.source_issues == SourceIssue.NONE)).nonzero()[0].tolist()
        ids = batch.containers.container_id.tolist()
        well: dict[int, set[str]] = {}
        for row, name in zip(sound, _names(found, sound), strict=True):
            well.setdefault(ids[batch.replicas.container[row]], set()).add(name)
        return {number: frozenset(names) for number, names in well.items()}

    def obstacles(self, container_ids: Collection[int]) -> dict[int, str]:
        """Return the containers that still need a datanode that leaves or is in maintenance.

        The value for each container is the reason, a text of `health.departure.HELD_BY`.
        """
        if not container_ids:
            return {}
        found = self.diagnose(container_ids)
        held = obstacles(found.view, found.counts, found.flags).tolist()
        ids = found.view.batch.containers.container_id.tolist()
        pairs = zip(ids, held, strict=True)
        return {number: HELD_BY[why] for number, why in pairs if why != FREE}

    def locked_out(self, container_ids: Collection[int], datanode_ids: Collection[str]) -> int:
        """Return how many of these containers would be unreadable without these datanodes.

        Containers that are unreadable now are not counted.
        """
        if not container_ids:
            return 0
        batch = self._batches.of(container_ids)
        found = locked_out(view(batch), batch.nodes.among(datanode_ids))
        return int(np.count_nonzero(found & batch.containers.is_known))

    def sources(
        self, container_ids: Collection[int], *, without: Collection[int] = ()
    ) -> dict[int, HealthRow]:
        """Return the datanodes from which each of these containers can be copied.

        If a container needs a copy, these are the sources of the needed copy. Otherwise, these are
        all possible sources.
        """
        if not container_ids:
            return {}
        batch = self._batches.of(container_ids, without=without)
        found = diagnose(batch, self._batches.rules())
        scene = scene_of(found)
        able, order = ratis_sources(scene, np.ones_like(scene.view.is_ec))
        own: dict[int, list[int]] = {}
        for row in sorted(able.nonzero()[0].tolist(), key=lambda row: int(order[row])):
            own.setdefault(int(batch.replicas.container[row]), []).append(row)
        needed: dict[int, list[int]] = {}
        actions = plan(scene)
        is_copy = (actions.action == Action.REPLICATE).tolist()
        places = zip(is_copy, actions.container.tolist(), strict=True)
        for (is_wanted, place), rows in zip(places, _lists(actions.sources), strict=True):
            if is_wanted:
                needed.setdefault(place, []).extend(rows)
        return {
            number: _copy(found, needed.get(place) or own.get(place, []))
            for place, number in enumerate(batch.containers.container_id.tolist())
        }


def _copy(found: Diagnosis, rows: Sequence[int]) -> HealthRow:
    return HealthRow(
        Action.REPLICATE,
        priority=0,
        reason="",
        sources=_names(found, rows),
        targets=(),
        indexes=(),
        copies=1,
        is_forced=False,
        doubts=_issue_texts(found, rows),
    )


def _lacks(found: Diagnosis) -> ReplicationGaps:
    """Return the containers with missing or surplus replicas.

    The method reads the columns of the plan, because to create its rows would take longer.
    """
    actions = plan(scene_of(found))
    ids = found.view.batch.containers.container_id
    is_made = np.isin(actions.action, MADE)
    urgency = np.full(len(ids), UNNEEDED)
    np.minimum.at(urgency, actions.container[is_made], actions.priority[is_made])
    under = (urgency != UNNEEDED).nonzero()[0]
    over = actions.container[(actions.action == Action.DELETE) & actions.is_forced]
    return ReplicationGaps(
        dict(zip(ids[under].tolist(), urgency[under].tolist(), strict=True)),
        frozenset(ids[over].tolist()),
    )


def _uneven(view: BatchView) -> frozenset[int]:
    """Return the erasure-coded containers whose closed shards have different numbers of blocks.

    Containers with a pending delete are left out. A shard with more blocks than the others may have
    missed a delete. The roots of shards do not show this, because they always differ.
    """
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    shards = (
        view.is_shard & view.is_present & (replicas.state == SharedState.CLOSED) & replicas.has_root
    )
    if not shards.any():
        return frozenset()
    most = rows.highest(replicas.block_count, 0, shards)
    missing_max = rows.highest(most[rows.owner] - replicas.block_count, 0, shards)
    is_asked = view.is_ec & (containers.state == SharedState.CLOSED) & ~containers.owes_deletes
    return frozenset(containers.container_id[is_asked & (missing_max > 0)].tolist())


def _short(view: BatchView) -> frozenset[int]:
    """Return the closed containers of which no replica has the last commit.

    The datanode with that commit died or lost its disk. Containers without any replica are left
    out.
    """
    containers, replicas = view.batch.containers, view.batch.replicas
    last = view.rows.highest(replicas.bcsid, NO_BCSID, view.is_present)
    is_short = (containers.state == SharedState.CLOSED) & (last < containers.sequence_id)
    return frozenset(containers.container_id[is_short & (view.present > 0)].tolist())


def _planned(found: Diagnosis) -> dict[int, list[HealthRow]]:
    """Return the actions that each container needs, most urgent first.

    Containers that need no action are not in the result.
    """
    ids = found.view.batch.containers.container_id.tolist()
    needs: dict[int, list[HealthRow]] = {}
    for place, row in _rows(plan(scene_of(found)), found):
        needs.setdefault(ids[place], []).append(row)
    for rows in needs.values():
        rows.sort(key=lambda row: row.priority)
    return needs


def _rows(actions: PlanRows, found: Diagnosis) -> list[tuple[int, HealthRow]]:
    columns = zip(
        actions.container.tolist(),
        actions.action.tolist(),
        actions.priority.tolist(),
        actions.reason.tolist(),
        _lists(actions.sources),
        _lists(actions.targets),
        _lists(actions.indexes),
        actions.copies.tolist(),
        actions.is_forced.tolist(),
        strict=True,
    )
    return [
        (
            place,
            HealthRow(
                Action(action),
                priority=priority,
                reason=reason,
                sources=_names(found, sources),
                targets=_names(found, targets),
                indexes=tuple(indexes),
                copies=copies,
                is_forced=is_forced,
                doubts=_issue_texts(found, sources),
            ),
        )
        for place, action, priority, reason, sources, targets, indexes, copies, is_forced in columns
    ]


def _lists(lists: RaggedArray) -> list[list[int]]:
    starts, values = lists.starts.tolist(), lists.values.tolist()
    return [values[a:b] for a, b in pairwise(starts)]


def _names(found: Diagnosis, rows: Sequence[int]) -> tuple[str, ...]:
    batch = found.view.batch
    return tuple(batch.nodes.names[int(batch.replicas.node[row])] for row in rows)


def _issue_texts(found: Diagnosis, rows: Sequence[int]) -> dict[str, str]:
    told = zip(_names(found, rows), (int(found.source_issues[row]) for row in rows), strict=True)
    return {name: DOUBTS[code] for name, code in told if code}
