"""Enters the rows of a snapshot into a control plane, so that both describe the same cluster."""

from collections.abc import Iterable
from dataclasses import replace

from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.state import entities
from scm.state.entities import (
    Container,
    ContainerState,
    Hold,
    Key,
    KeyBlock,
    OpState,
    PendingCommand,
    Replica,
)
from tests.support.control.scm_world import ScmWorld
from tests.support.verification.snapshots import ContainerRow, OpRow, ReplicaRow, SnapshotRows

AGES_S = {"DEAD": 100.0, "STALE": 30.0, "HEALTHY": 0.0}
KINDS = {
    "CLOSE": entities.CommandKind.CLOSE,
    "DELETE": entities.CommandKind.DELETE,
    "RECONCILE": entities.CommandKind.RECONCILE,
    "ADD": entities.CommandKind.REPLICATE,
}


def sayable(rows: SnapshotRows) -> SnapshotRows:
    """Return the rows, changed so that they have only facts that this control plane can have.

    Replicas always have a commit id, a tree is known completely or not at all, no container has a
    single replica besides a pipeline, and there are no invalid replicas.
    """
    known = {state.value for state in ContainerState}
    boxes = [box for box in rows.containers if box.state in known]
    dropped = {box.container_id for box in rows.containers} - {box.container_id for box in boxes}
    held = {(row.container_id, row.datanode_id): row.replica_index for row in rows.replicas}
    ops = {(op.container_id, op.op, op.datanode_id): op for op in rows.pending_ops}
    return SnapshotRows(
        [
            replace(
                box,
                replication_type="EC" if box.ec_data else "RATIS",
                pipeline_alive=box.pipeline_alive and box.state == "OPEN",
            )
            for box in boxes
        ],
        [
            _sayable_replica(row)
            for row in rows.replicas
            if row.container_id not in dropped and row.state != "INVALID"
        ],
        [replace(node, health=node.health.removesuffix("_READONLY")) for node in rows.nodes],
        [
            op if op.op == "ADD" else replace(op, replica_index=held.get(key[::2], 0))
            for key, op in ops.items()
            if op.container_id not in dropped
        ],
    )


def _sayable_replica(row: ReplicaRow) -> ReplicaRow:
    has_tree = row.root is not None and row.tree_algorithm is not None
    return replace(
        row,
        bcsid=row.bcsid or 0,
        root=row.root if has_tree else None,
        settled_root=None,
        tree_algorithm=row.tree_algorithm if has_tree else None,
        tombstones_checksum=(row.tombstones_checksum or 0) if has_tree else None,
    )


def enter(world: ScmWorld, rows: SnapshotRows) -> None:
    """Create the state that the rows describe: nodes report their replicas. STALE and DEAD nodes
    then stop sending heartbeats."""
    for node in rows.nodes:
        world.join(node.datanode_id, racks=(node.rack,))
    with world.state.change() as change:
        for box in rows.containers:
            change.put(world.state.containers, _container(box))
            if box.suppressed:
                change.put(world.state.holds, Hold(box.container_id, "", 1, "a test"))
            if box.acknowledged_bcsid:
                change.put(world.state.keys, _key(box.container_id, box.acknowledged_bcsid))
        while world.state.counters["next_container_id"] <= max(ids(rows), default=0):
            change.next_id("next_container_id")
        for node in rows.nodes:
            known = world.state.nodes.get(node.datanode_id)
            assert known is not None
            change.put(world.state.nodes, replace(known, op_state=OpState(node.op_state)))
            world.kept[node.datanode_id] = (OpState(node.op_state), 0)
    held: dict[str, list[Replica]] = {}
    for row in rows.replicas:
        held.setdefault(row.datanode_id, []).append(_replica(row))
    left_s = max(AGES_S.values())
    for age_s in AGES_S.values():
        world.clock.advance_s(left_s - age_s)
        left_s = age_s
        for node in rows.nodes:
            if AGES_S[node.health] <= age_s:
                world.beat(node.datanode_id, *held.get(node.datanode_id, ()), full=True)
    with world.state.change() as change:
        for op in rows.pending_ops:
            change.put(world.state.commands, _pending(change.next_id("next_command_id"), op))


def _container(box: ContainerRow) -> Container:
    return Container(
        box.container_id,
        ContainerState(box.state),
        box.replication_factor,
        box.sequence_id,
        box.state_since_ms,
        () if box.pipeline_alive else ("nobody",),
        committed_count=box.key_count,
        committed_bytes=box.used_bytes,
        scheme=f"rs-{box.ec_data}-{box.ec_parity}-1024k" if box.ec_data else "",
    )


def _key(container_id: int, bcsid: int) -> Key:
    return Key(f"key-{container_id}", 10, 1, (KeyBlock(container_id, 1, bcsid, 10),))


def _replica(row: ReplicaRow) -> Replica:
    tree = None
    if row.root is not None and row.tree_algorithm is not None:
        tree = TreeSummary(
            Algorithm(row.tree_algorithm),
            row.root % 2**64,
            1,
            row.block_count,
            row.tombstone_count or 0,
            (row.tombstones_checksum or 0) % 2**64,
        )
    return Replica(
        container_id=row.container_id,
        datanode_id=row.datanode_id,
        state=ReplicaState(row.state),
        used_bytes=row.used_bytes,
        block_count=row.block_count,
        bcsid=row.bcsid or 0,
        origin_datanode_id=row.origin_datanode_id,
        replica_index=row.replica_index,
        is_empty=row.is_empty,
        tree=tree,
        volume_id=row.volume_id,
        data_scan_at_ms=row.data_scan_at_ms or 0,
        finding_count=row.finding_count,
        load_error=row.load_error or "",
        reported_at_ms=row.reported_at_ms,
        is_contradictory=row.is_contradictory,
    )


def _pending(number: int, op: OpRow) -> PendingCommand:
    kind = KINDS[op.op]
    if op.op == "ADD" and op.replica_index:
        return PendingCommand(
            number,
            entities.CommandKind.RECONSTRUCT,
            op.container_id,
            op.datanode_id,
            shards=((op.replica_index, op.datanode_id),),
        )
    target = op.datanode_id if op.op == "ADD" else ""
    source = "someone" if target else op.datanode_id
    return PendingCommand(number, kind, op.container_id, source, target_id=target)


def ids(rows: SnapshotRows) -> Iterable[int]:
    """Return the ids of the containers of the rows."""
    return [box.container_id for box in rows.containers]
