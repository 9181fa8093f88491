"""Exports the state of the control plane as a Parquet snapshot, which the Spark job reads.

`suture.wire.mapping.snapshot_file` defines the files.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from health.rules import Rules
from health.tables.snapshot_columns import KEYS_TOLD_MAX, TABLES, Row, signed
from scm.administration.affected_keys import keys_in
from scm.api.views import NodeView, block_count, used_bytes
from scm.cluster.commands.loads import RECONSTRUCT_TYPE
from scm.replication.health.health_states import NOT_KNOWN, HealthStates
from scm.state.entities import (
    CommandKind,
    Container,
    ContainerState,
    Key,
    Node,
    NodeHealthState,
    PendingCommand,
    Replica,
)
from suture.errors import missing_extra

OWN_RULES: Final = (
    "maintenance_min",
    "leaving_min",
    "best_origin_copies",
    "other_origin_copies",
    "enough_copies",
    "most_copies",
)
"""The fields of `Rules` that are set by options of the control plane."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
"""The highest value of a column with 64-bit integers.

If a datanode reports a higher value, the value must be wrong. The snapshot then contains this
maximum instead, because the export must not fail.
"""


@dataclass(frozen=True, slots=True)
class PendingOp:
    """The effect of a pending command on one replica.

    `word` is the kind of the effect, one of `health.words.OPS`.
    """

    command: PendingCommand
    word: str
    datanode_id: str
    replica_index: int


@dataclass(frozen=True, slots=True)
class SnapshotData:
    """The state to export. All values are immutable, so the export needs no lock."""

    as_of_ms: int
    term: int
    cluster_id: str
    nodes: Sequence[NodeView]
    containers: Sequence[Container]
    replicas: Sequence[Replica]
    pending: Sequence[PendingOp]
    suppressed: frozenset[int] = frozenset()
    states: HealthStates = NOT_KNOWN
    """Health states of the containers at their last checks by the control plane."""
    rules: Rules = field(default_factory=Rules)
    """The parameters with which the control plane checks the health of containers."""
    containers_with_unacknowledged_deletes: frozenset[int] = frozenset()
    """Containers with block deletes that some datanode with a replica has not acknowledged."""
    barred_nodes: frozenset[str] = frozenset()
    """Datanodes that receive no commands about replicas."""
    barred: frozenset[tuple[int, str]] = frozenset()
    """Replicas for which no commands are sent, as pairs of container id and datanode id."""
    healable_holders: frozenset[tuple[int, str]] = frozenset()
    """Damaged replicas that a repair may still heal, as pairs of container id and datanode id."""
    acknowledged: Mapping[int, int] = field(default_factory=dict)
    """The last commit of each container that any present or earlier key needed."""
    keys: Iterable[Key] = ()
    at_risk: Collection[int] = ()
    """Containers that are lost or at risk of loss.

    The snapshot lists some of the keys that have blocks in these containers.
    """


@dataclass(frozen=True, slots=True)
class SnapshotExport:
    """A finished snapshot: its id, its directory, and the number of rows of each table."""

    snapshot_id: str
    path: Path
    rows: dict[str, int]
    address: str = ""
    """Address of the uploaded snapshot; empty if it was not uploaded."""

    @property
    def place(self) -> str:
        """Return the address of the uploaded snapshot, or its local path if it was not uploaded."""
        return self.address or str(self.path)


def export(
    world: SnapshotData, directory: Path, *, keep_count: int, address: str = ""
) -> SnapshotExport:
    """Write a snapshot to a new directory below `directory`, and upload it if `address` is given.

    Keep the newest `keep_count` snapshots in the directory and below the address, and delete all
    others. Raise UnavailableError(DISK_OUT_OF_SPACE) if the snapshot cannot be written; its files
    are then removed. Raise the errors of `snapshot_upload.publish` if it cannot be uploaded. Raise
    RefusedError if the packages of the extra `scm` are not installed.
    """
    try:
        from scm.api.spark.snapshot_upload import publish
        from suture.wire.mapping.snapshot_file import writing
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a snapshot") from error
    snapshot_id = _free_id(world, directory)
    target = directory / snapshot_id
    _remove_unfinished(directory)
    with writing(target, snapshot_id) as files:
        files.add("containers", _container_rows(world))
        files.add("replicas", (_replica_row(world, replica) for replica in world.replicas))
        files.add("nodes", (_node_row(world, view) for view in world.nodes))
        files.add("pending_ops", map(_pending_row, world.pending))
        files.finish(
            as_of_ms=world.as_of_ms,
            term=world.term,
            cluster_id=world.cluster_id,
            rules={name: getattr(world.rules, name) for name in OWN_RULES},
            keys_at_risk=_keys_at_risk(world),
        )
    _delete_old(target, keep_count)
    published = publish(target, address, keep_count=keep_count) if address else ""
    return SnapshotExport(snapshot_id, target, files.counts, published)


def _keys_at_risk(world: SnapshotData) -> dict[str, object]:
    page = keys_in(world.keys, world.at_risk, start_after="", count=KEYS_TOLD_MAX)
    return {
        "key_count": page.key_count,
        "container_count": page.container_count,
        "keys": [
            {"key": key.name, "container_ids": sorted(key.container_ids)} for key in page.keys
        ],
    }


def _free_id(world: SnapshotData, directory: Path) -> str:
    """Return an unused snapshot id.

    It consists of the time, the term, and a number if necessary.
    """
    name = f"{world.as_of_ms:013d}-t{world.term}"
    candidate, repeat = name, 1
    while (directory / candidate).exists():
        candidate, repeat = f"{name}-{repeat}", repeat + 1
    return candidate


def _container_rows(world: SnapshotData) -> Iterator[Row]:
    healthy = {
        view.node.datanode_id for view in world.nodes if view.health is NodeHealthState.HEALTHY
    }
    replicas: dict[int, list[Replica]] = {}
    for replica in world.replicas:
        replicas.setdefault(replica.container_id, []).append(replica)
    for container in world.containers:
        mine = replicas.get(container.container_id, [])
        is_alive = container.state is ContainerState.OPEN and healthy.issuperset(container.pipeline)
        row = {
            **_OF_CONTAINER(container),
            # The stored time may be from a clock that was ahead. Nothing in a snapshot may be later
            # than the snapshot.
            "state_since_ms": min(container.state_since_ms, world.as_of_ms),
            "replication_type": "EC" if container.scheme else "RATIS",
            "acknowledged_bcsid": world.acknowledged.get(container.container_id),
            "key_count": block_count(container, mine),
            "used_bytes": used_bytes(container, mine),
            "pipeline_alive": is_alive,
            "suppressed": container.container_id in world.suppressed,
            "owes_deletes": container.container_id in world.containers_with_unacknowledged_deletes,
            "health_state": world.states.of(container.container_id),
        }
        if container.scheme:
            row["ec_data"] = container.data_count
            row["ec_parity"] = container.replication_factor - container.data_count
        yield row


def _replica_row(world: SnapshotData, replica: Replica) -> Row:
    key = (replica.container_id, replica.datanode_id)
    row = _OF_REPLICA(replica)
    row["reported_at_ms"] = min(replica.reported_at_ms, world.as_of_ms)
    row["used_bytes"] = replica.used_bytes
    row["is_barred"] = key in world.barred or replica.datanode_id in world.barred_nodes
    row["is_hopeful"] = key in world.healable_holders
    row["data_scan_at_ms"] = replica.data_scan_at_ms or None
    row["load_error"] = replica.load_error or None
    tree = replica.tree
    if tree is not None:
        row["tree_algorithm"] = tree.algorithm
        row["root"] = signed(tree.root)
        row["tombstones_checksum"] = signed(tree.tombstones_checksum)
        row["tombstone_count"] = min(tree.tombstone_count, INT_MAX)
        row["tree_generation"] = min(tree.generation, LONG_MAX)
    return row


def _node_row(world: SnapshotData, view: NodeView) -> Row:
    node, live = view.node, view.live
    queues = {} if live is None else {kind: min(n, INT_MAX) for kind, n in live.queues}
    return {
        **_OF_NODE(node),
        "health": view.health,
        "op_expiry_ms": node.op_expiry_ms or None,
        "last_heartbeat_at_ms": min(view.heartbeat_at_ms, world.as_of_ms),
        "has_reported": view.has_reported,
        "capacity_bytes": 0 if live is None else min(live.capacity_bytes, LONG_MAX),
        "available_bytes": 0 if live is None else min(live.available_bytes, LONG_MAX),
        "queued_replicate": queues.get(CommandKind.REPLICATE, 0),
        "queued_reconstruct": queues.get(RECONSTRUCT_TYPE, 0),
        "queued_delete": queues.get(CommandKind.DELETE, 0),
        "queued_reconcile": queues.get(CommandKind.RECONCILE, 0),
    }


def _pending_row(op: PendingOp) -> Row:
    return {
        "container_id": op.command.container_id,
        "op": op.word,
        "datanode_id": op.datanode_id,
        "replica_index": op.replica_index,
        "deadline_ms": op.command.deadline_ms,
        "command_id": op.command.command_id,
    }


def _taken_from(noun: type, table: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function that converts a value of type `noun` to a row of a table.

    The row has only the columns of the table whose names are fields of `noun`.
    """
    of_noun = {field.name for field in fields(noun)}
    names = tuple(column.name for column in TABLES[table] if column.name in of_noun)
    values_of = attrgetter(*names)
    return lambda value: dict(zip(names, values_of(value), strict=True))


_OF_CONTAINER: Final = _taken_from(Container, "containers")
_OF_REPLICA: Final = _taken_from(Replica, "replicas")
_OF_NODE: Final = _taken_from(Node, "nodes")


def _finished(directory: Path) -> list[Path]:
    """Return the directories of the finished snapshots, oldest first."""
    return sorted(path.parent for path in directory.glob("[0-9]*/manifest.json"))


def _delete_old(new: Path, keep_count: int) -> None:
    """Delete the oldest snapshots, so that `keep_count` remain.

    The new snapshot is never deleted, even if its time is earlier than that of others.
    """
    for path in _finished(new.parent)[:-keep_count]:
        if path != new:
            shutil.rmtree(path, ignore_errors=True)


def _remove_unfinished(directory: Path) -> None:
    """Remove the files of an export that was killed. Only one export runs at a time."""
    for path in directory.glob(".*.building"):
        shutil.rmtree(path, ignore_errors=True)
