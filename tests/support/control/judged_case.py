"""A container with replicas described by a test, as the control plane sees it
(`scm.cluster.container_context.ContainerContext`).

Results are names of datanodes, so that a test is as readable as the table that it is taken from.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from health.batch import NO_BCSID, ContainerBatch, Containers, Nodes, Ops, Replicas
from health.departure import FREE, HELD_BY, obstacles
from health.judge import HealthJudgement, diagnose, judge, scene_of
from health.plan.copies import ratis_sources
from health.plan.plan_rows import MISPLACED_PRIORITY
from health.rules import Rules
from health.segmented_rows import Bools, Ints
from health.source_issues import DOUBTS
from health.words import (
    CONTAINER_STATES,
    NODE_HEALTHS,
    REPLICA_STATES,
    SERVICE_OF,
    UNHEALTHY,
    UNKNOWN,
    Action,
    HealthState,
    PendingOpKind,
    ReplicationType,
)
from merkle.checksum import Algorithm
from scm.administration.decommission_rules import ReplicaNeed as LeavingNeed
from scm.administration.decommission_rules import need as need_of
from scm.cluster.container_context import present
from scm.replication.health.live_judge import losses_without
from scm.state.entities import OpState
from tests.support.control.judged_container import JudgedContainer, JudgedReplica

ALGORITHMS = list(Algorithm)


@dataclass(frozen=True, slots=True)
class Need:
    """The judge's result for a container: its health, the number of replicas to make, the number of
    surplus replicas, and the lowest priority of the replicas to make."""

    health: HealthState
    copies: int
    surplus: int
    weight: int


def batch_of(case: JudgedContainer) -> ContainerBatch:
    """Return a batch for the judge that has only the container of a case.

    A pending add in the case may also name the rack of its datanode: `dn9@/b`.
    """
    placed = sorted(case.placed, key=lambda p: (p.replica.replica_index, p.datanode_id))
    adds = {name: rack for name, _, rack in (add.partition("@") for add in case.adds) if rack}
    names = sorted({p.datanode_id for p in placed} | set(adds))
    origins = sorted({p.replica.origin_datanode_id or p.datanode_id for p in placed})
    return ContainerBatch(
        containers=_container(case),
        replicas=_replicas(case, placed, names, origins),
        ops=_ops(case, names),
        nodes=_nodes(placed, adds, names),
        origins=tuple(origins),
    )


def _container(case: JudgedContainer) -> Containers:
    box = case.container
    data = box.data_count if box.scheme else 0
    return Containers(
        container_id=longs([box.container_id]),
        kind=longs([ReplicationType.EC if box.scheme else ReplicationType.RATIS]),
        factor=longs([box.replication_factor]),
        data=longs([data]),
        parity=longs([box.replication_factor - data if box.scheme else 0]),
        state=longs([CONTAINER_STATES.index(box.state)]),
        sequence_id=longs([box.sequence_id]),
        acknowledged_id=longs([NO_BCSID]),
        key_count=longs([1]),
        used_bytes=longs([box.committed_bytes]),
        has_pipeline=flags([True]),
        is_suppressed=flags([False]),
        owes_deletes=flags([case.owes_deletes]),
        is_known=flags([True]),
    )


def _replicas(
    case: JudgedContainer,
    placed: Sequence[JudgedReplica],
    names: Sequence[str],
    origins: Sequence[str],
) -> Replicas:
    held = [p.replica for p in placed]
    trees = [r.tree for r in held]
    return Replicas(
        container=longs([0] * len(placed)),
        node=longs([names.index(p.datanode_id) for p in placed]),
        index=longs([r.replica_index for r in held]),
        state=longs([UNHEALTHY if r.load_error else REPLICA_STATES.index(r.state) for r in held]),
        is_loaded=flags([not r.load_error for r in held]),
        origin=longs([origins.index(r.origin_datanode_id or r.datanode_id) for r in held]),
        bcsid=longs([r.bcsid for r in held]),
        used_bytes=longs([r.used_bytes for r in held]),
        is_empty=flags([r.is_empty for r in held]),
        algorithm=longs([ALGORITHMS.index(t.algorithm) if t else UNKNOWN for t in trees]),
        root=longs([t.root if t else 0 for t in trees]),
        has_root=flags([t is not None for t in trees]),
        settled=longs([0] * len(placed)),
        has_settled=flags([False] * len(placed)),
        tombstones=longs([t.tombstones_checksum if t else 0 for t in trees]),
        has_tombstones=flags([t is not None for t in trees]),
        findings=longs([r.finding_count for r in held]),
        is_contradictory=flags([r.is_contradictory for r in held]),
        block_count=longs([r.block_count for r in held]),
        tree_block_count=longs([t.block_count if t else 0 for t in trees]),
        tombstone_count=longs([t.tombstone_count if t else 0 for t in trees]),
        is_barred=flags([p.datanode_id in case.excluded for p in placed]),
        is_hopeful=flags([p.datanode_id in case.healable_holders for p in placed]),
    )


def _ops(case: JudgedContainer, names: Sequence[str]) -> Ops:
    index = {p.datanode_id: p.replica.replica_index for p in case.placed}
    adds = [add.partition("@")[0] for add in case.adds]
    ops = [(PendingOpKind.ADD, names.index(n) if n in names else UNKNOWN, 0) for n in adds]
    ops += [(PendingOpKind.DELETE, names.index(n), index[n]) for n in case.deletes if n in index]
    return Ops(
        container=longs([0] * len(ops)),
        kind=longs([int(kind) for kind, _, _ in ops]),
        node=longs([node for _, node, _ in ops]),
        index=longs([index for _, _, index in ops]),
    )


def _nodes(placed: Sequence[JudgedReplica], adds: Mapping[str, str], names: Sequence[str]) -> Nodes:
    at = {p.datanode_id: p for p in placed}
    racks = {name: at[name].rack if name in at else adds[name] for name in names}
    numbers = {rack: i for i, rack in enumerate(sorted(set(racks.values())))}
    return Nodes(
        names=tuple(names),
        rack=longs([numbers[racks[name]] for name in names]),
        health=longs([NODE_HEALTHS.index(at[n].health.value) if n in at else 0 for n in names]),
        service=longs([SERVICE_OF[at[n].op_state.value] if n in at else 0 for n in names]),
        is_returning=flags([n in at and at[n].op_state is OpState.IN_MAINTENANCE for n in names]),
        is_confirmed=flags([n not in at or at[n].is_confirmed for n in names]),
    )


def longs(values: Sequence[int]) -> Ints:
    """Return integers as a numpy column."""
    return np.array(values, dtype=np.int64)


def flags(values: Sequence[bool]) -> Bools:
    """Return booleans as a numpy column."""
    return np.array(values, dtype=np.bool_)


def rules_of(case: JudgedContainer, **numbers: int) -> Rules:
    """Return the judge's rules for a case. `numbers` override the default rules."""
    return replace(Rules(rack_count=case.cluster_rack_count), **numbers)


def asked(case: JudgedContainer, **numbers: int) -> HealthJudgement:
    """Return all results of the judge for a case. `numbers` override the default rules."""
    return judge(batch_of(case), rules_of(case, **numbers))


def counts(case: JudgedContainer, **numbers: int) -> tuple[int, int, int, int, bool]:
    """Return four numbers of replicas and a flag: missing now, to be made, removable, and the
    replicas that may still be lost; the flag is True if only nodes out of service are the
    reason."""
    found = asked(case, **numbers)
    n = found.counts.ratis
    need = int(n.need[0])
    return (
        -int(n.excess[0]),
        max(0, int(n.need_after[0])),
        max(0, -need),
        int(n.redundancy[0]),
        bool(n.is_due_to_service[0]),
    )


def needs(case: JudgedContainer, **numbers: int) -> Need:
    """Return the health of a container, and its missing or surplus replicas."""
    found = asked(case, **numbers)
    made = np.isin(found.actions.action, (Action.REPLICATE, Action.RECONSTRUCT))
    return Need(
        HealthState(int(found.verdicts.state[0])),
        int(found.actions.copies[made].sum()),
        len(victims(case, **numbers)),
        int(found.actions.priority[made].min()) if made.any() else 0,
    )


def doubts(case: JudgedContainer) -> dict[str, str]:
    """Return the objections to copying each replica, by datanode."""
    found = asked(case)
    names, node = found.view.batch.nodes.names, found.view.batch.replicas.node
    return {names[node[row]]: DOUBTS[code] for row, code in enumerate(found.source_issues) if code}


def health(case: JudgedContainer) -> HealthState:
    """Return the health state of a container."""
    return needs(case).health


def sources(case: JudgedContainer) -> list[JudgedReplica]:
    """Return the replicas to copy from, whether or not a copy is needed."""
    found = asked(case)
    rows = _sources_of(found, Action.REPLICATE)
    if not rows:
        scene = scene_of(diagnose(batch_of(case), rules_of(case)))
        rows = np.flatnonzero(ratis_sources(scene, np.array([True]))[0])
        rows = rows.tolist()
    chosen = {found.view.batch.nodes.names[found.view.batch.replicas.node[r]] for r in rows}
    return [p for p in case.placed if p.datanode_id in chosen]


def _sources_of(found: HealthJudgement, action: Action) -> list[int]:
    lists = found.actions.sources
    return [
        row
        for i in np.flatnonzero(found.actions.action == action).tolist()
        for row in lists.values[lists.starts[i] : lists.starts[i + 1]].tolist()
    ]


def copied(case: JudgedContainer, *, is_move: bool = False) -> list[JudgedReplica]:
    """Return the shards to copy because their datanodes leave service. With `is_move`, return those
    to move because a rack has too many shards."""
    found = asked(case)
    moves = found.actions.priority == MISPLACED_PRIORITY
    lists = found.actions.sources
    names = [
        found.view.batch.nodes.names[found.view.batch.replicas.node[lists.values[lists.starts[i]]]]
        for i in np.flatnonzero(
            (found.actions.action == Action.REPLICATE) & (moves == is_move)
        ).tolist()
    ]
    return [p for name in names for p in case.placed if p.datanode_id == name]


def lost(case: JudgedContainer) -> tuple[int, ...]:
    """Return the indexes of the lost shards that must be reconstructed."""
    found = asked(case).actions
    lists = found.indexes
    return tuple(
        index
        for i in np.flatnonzero(found.action == Action.RECONSTRUCT).tolist()
        for index in lists.values[lists.starts[i] : lists.starts[i + 1]].tolist()
    )


def read_from(case: JudgedContainer) -> list[tuple[int, str]]:
    """Return the index and the datanode of each shard that a reconstruction reads, in the order of
    the reads."""
    found = asked(case)
    replicas, names = found.view.batch.replicas, found.view.batch.nodes.names
    rows = _sources_of(found, Action.RECONSTRUCT)
    return [(int(replicas.index[row]), names[replicas.node[row]]) for row in rows]


def victims(case: JudgedContainer, **numbers: int) -> list[JudgedReplica]:
    """Return the replicas that are deleted one after the other, each while the previous ones are
    being deleted."""
    chosen: list[JudgedReplica] = []
    while True:
        found = asked(case, **numbers)
        batch, actions = found.view.batch, found.actions
        rows = np.flatnonzero((actions.action == Action.DELETE) & actions.is_forced)
        if not len(rows):
            return chosen
        place = int(actions.targets.values[actions.targets.starts[int(rows[0])]])
        name = batch.nodes.names[batch.replicas.node[place]]
        chosen += [p for p in case.placed if p.datanode_id == name]
        case = replace(case, deletes=(*case.deletes, name))


def obstacle(case: JudgedContainer, **numbers: int) -> str | None:
    """Return the reason why a container still needs its datanodes that leave service; None if it
    does not need them."""
    found = asked(case, **numbers)
    [held] = obstacles(found.view, found.counts, found.flags).tolist()
    return None if held == FREE else HELD_BY[held]


def need(case: JudgedContainer, leaving: Collection[str], op_state: OpState) -> LeavingNeed:
    """Return what a container needs if the nodes `leaving` change to `op_state`, that is, leave
    service or go into maintenance."""
    [loss] = losses_without(batch_of(case), rules_of(case), leaving, op_state)
    size_bytes = max((p.replica.used_bytes for p in present(case.placed)), default=0)
    return need_of(case.container, loss, op_state, rules_of(case), size_bytes=size_bytes)
