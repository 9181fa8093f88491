"""Snapshot export: what the control plane knew at one moment, as Parquet for the Spark job.

    <snapshots>/<snapshot_id>/manifest.json              written last: no manifest, no snapshot
                              containers/part-00000.parquet
                              replicas/part-…  nodes/part-…  pending_ops/part-…

Everything is written to a hidden directory beside, synced, and renamed: a reader sees a whole
snapshot or none. Unsigned 64-bit checksums are stored as signed ones of the same bits, because
Spark has no unsigned type.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from agent.errors import Code, Unavailable
from health.rules import Rules
from scm.cluster.loads import RECONSTRUCT_TYPE
from scm.edge.views import NodeView, block_count, used_bytes
from scm.state.facts import Container, ContainerState, Health, Kind, Pending, Replica
from scm.state.health_states import NOT_KNOWN, States

pa: Any = pyarrow  # compiled code without types
pq: Any = pyarrow.parquet

SCHEMA_VERSION: Final = 4
OWN_RULES: Final = (
    "maintenance_min",
    "leaving_min",
    "best_origin_copies",
    "other_origin_copies",
    "enough_copies",
    "most_copies",
)
"""Rules that options say."""

ROWS_PER_GROUP: Final = 100_000  # rows in memory as Python values at once
ROWS_PER_PART: Final = 2_000_000  # one Spark task's worth


def _schema(text: str) -> Any:
    """Build a schema from `name type` lines; a trailing `?` means that nulls are allowed."""
    types = {
        "string": pa.string(),
        "long": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
    }
    fields = []
    for line in text.strip().splitlines():
        name, kind = line.split()
        fields.append(pa.field(name, types[kind.rstrip("?")], nullable=kind.endswith("?")))
    return pa.schema(fields)


SCHEMAS: Final[dict[str, Any]] = {
    "containers": _schema(
        """
        snapshot_id string
        container_id long
        replication_type string
        replication_factor int
        ec_data int?
        ec_parity int?
        state string
        sequence_id long
        acknowledged_bcsid long?
        key_count long
        used_bytes long
        state_since_ms long
        pipeline_alive boolean
        suppressed boolean
        owes_deletes boolean
        health_state string?
        """
    ),
    "replicas": _schema(
        """
        snapshot_id string
        container_id long
        datanode_id string
        replica_index int
        state string
        origin_datanode_id string
        bcsid long?
        block_count long
        used_bytes long
        is_empty boolean
        tree_algorithm string?
        root long?
        tombstones_checksum long?
        tombstone_count int?
        tree_generation long?
        volume_id string
        data_scan_at_ms long?
        finding_count int
        is_contradictory boolean
        is_barred boolean
        is_hopeful boolean
        load_error string?
        reported_at_ms long
        """
    ),
    "nodes": _schema(
        """
        snapshot_id string
        datanode_id string
        address string
        rack string
        version string
        health string
        op_state string
        op_expiry_ms long?
        last_heartbeat_at_ms long
        has_reported boolean
        capacity_bytes long
        available_bytes long
        queued_replicate int
        queued_reconstruct int
        queued_delete int
        queued_reconcile int
        """
    ),
    "pending_ops": _schema(
        """
        snapshot_id string
        container_id long
        op string
        datanode_id string
        replica_index int
        deadline_ms long
        command_id long
        """
    ),
}
"""The contract with the Spark job; `spark_verify/rows.py` has the same columns in its words."""


@dataclass(frozen=True, slots=True)
class PendingOp:
    """What a command does to one replica: `word` is that of the judge (`health.words.OPS`)."""

    command: Pending
    word: str
    datanode_id: str
    replica_index: int


@dataclass(frozen=True, slots=True)
class World:
    """What is exported; frozen values only, so it can be written without any lock."""

    as_of_ms: int
    term: int
    cluster_id: str
    nodes: Sequence[NodeView]
    containers: Sequence[Container]
    replicas: Sequence[Replica]
    pending: Sequence[PendingOp]
    suppressed: frozenset[int] = frozenset()
    states: States = NOT_KNOWN
    """Health states as the control plane found them."""
    rules: Rules = field(default_factory=Rules)
    """By which they were found."""
    owing: frozenset[int] = frozenset()
    """Containers with deletes that not every holder was told of."""
    barred_nodes: frozenset[str] = frozenset()
    """Datanodes that are ordered nothing about replicas."""
    barred: frozenset[tuple[int, str]] = frozenset()
    """Replicas of which nothing is ordered, by container and datanode."""
    hopeful: frozenset[tuple[int, str]] = frozenset()
    """Bad replicas that a repair may still heal."""
    acknowledged: Mapping[int, int] = field(default_factory=dict)
    """Last commit of each container that a key needs: its client was told that it is stored."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished snapshot."""

    snapshot_id: str
    path: Path
    rows: dict[str, int]


def export(world: World, directory: Path, *, keep_count: int) -> Exported:
    """Write a snapshot under `directory` and delete the oldest beyond `keep_count`.

    Raises Unavailable(DISK_OUT_OF_SPACE) if it cannot be written; nothing is left of it then.
    """
    snapshot_id = _free_id(world, directory)
    target = directory / snapshot_id
    building = directory / f".{snapshot_id}.building"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(directory)
        rows = _write(world, snapshot_id, building)
        building.rename(target)
        _sync(directory)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise Unavailable(Code.DISK_OUT_OF_SPACE, f"snapshot cannot be written: {error}") from error
    _delete_old(directory, keep_count)
    return Exported(snapshot_id, target, rows)


def signed(number: int) -> int:
    """Return the signed 64-bit number with the bits of an unsigned one."""
    return number - 2**64 if number >= 2**63 else number


def _free_id(world: World, directory: Path) -> str:
    """Name a snapshot by its time and term; a second one in a millisecond gets a suffix."""
    name = f"{world.as_of_ms:013d}-t{world.term}"
    candidate, repeat = name, 1
    while (directory / candidate).exists():
        candidate, repeat = f"{name}-{repeat}", repeat + 1
    return candidate


def _write(world: World, snapshot_id: str, building: Path) -> dict[str, int]:
    tables: dict[str, Iterable[tuple[Any, ...]]] = {
        "containers": _container_rows(world),
        "replicas": (_replica_row(world, replica) for replica in world.replicas),
        "nodes": map(_node_row, world.nodes),
        "pending_ops": map(_pending_row, world.pending),
    }
    building.mkdir()
    counts = {}
    for name, rows in tables.items():
        counts[name] = _write_table(building / name, SCHEMAS[name], snapshot_id, rows)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "snapshot_id": snapshot_id,
        "as_of_ms": world.as_of_ms,
        "term": world.term,
        "cluster_id": world.cluster_id,
        "rules": {name: getattr(world.rules, name) for name in OWN_RULES},
        "rows": counts,
    }
    path = building / "manifest.json"
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _sync(path)
    _sync(building)
    return counts


def _write_table(
    directory: Path, schema: Any, snapshot_id: str, rows: Iterable[tuple[Any, ...]]
) -> int:
    """Write parts of whole row groups; an empty table still has one part, with its schema."""
    directory.mkdir()
    iterator = iter(rows)
    count, part_index = 0, 0
    while True:
        path = directory / f"part-{part_index:05d}.parquet"
        written = _write_part(path, schema, snapshot_id, islice(iterator, ROWS_PER_PART))
        _sync(path)
        count += written
        part_index += 1
        if written < ROWS_PER_PART:
            break
    _sync(directory)
    return count


def _write_part(path: Path, schema: Any, snapshot_id: str, rows: Iterator[tuple[Any, ...]]) -> int:
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            columns = [[snapshot_id] * len(group), *map(list, zip(*group, strict=True))]
            arrays = [
                pa.array(column, type=field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(group)
    return count


def _container_rows(world: World) -> Iterator[tuple[Any, ...]]:
    healthy = {view.node.datanode_id for view in world.nodes if view.health is Health.HEALTHY}
    replicas: dict[int, list[Replica]] = {}
    for replica in world.replicas:
        replicas.setdefault(replica.container_id, []).append(replica)
    for container in world.containers:
        mine = replicas.get(container.container_id, [])
        is_alive = container.state is ContainerState.OPEN and healthy.issuperset(container.pipeline)
        yield (
            container.container_id,
            "EC" if container.scheme else "RATIS",
            container.replication_factor,
            container.data_count if container.scheme else None,
            container.replication_factor - container.data_count if container.scheme else None,
            container.state,
            container.sequence_id,
            world.acknowledged.get(container.container_id),
            block_count(container, mine),
            used_bytes(container, mine),
            container.state_since_ms,
            is_alive,
            container.container_id in world.suppressed,
            container.container_id in world.owing,
            world.states.of(container.container_id),
        )


def _replica_row(world: World, replica: Replica) -> tuple[Any, ...]:
    tree = replica.tree
    key = (replica.container_id, replica.datanode_id)
    return (
        replica.container_id,
        replica.datanode_id,
        replica.replica_index,
        replica.state,
        replica.origin_datanode_id,
        replica.bcsid,
        replica.block_count,
        replica.bytes_used,
        replica.is_empty,
        None if tree is None else tree.algorithm,
        None if tree is None else signed(tree.root),
        None if tree is None else signed(tree.tombstones_checksum),
        None if tree is None else tree.tombstone_count,
        None if tree is None else signed(tree.generation),
        replica.volume_id,
        replica.data_scan_at_ms or None,
        replica.finding_count,
        replica.is_contradictory,
        key in world.barred or replica.datanode_id in world.barred_nodes,
        key in world.hopeful,
        replica.load_error or None,
        replica.reported_at_ms,
    )


def _node_row(view: NodeView) -> tuple[Any, ...]:
    node, live = view.node, view.live
    queues = {} if live is None else dict(live.queues)
    return (
        node.datanode_id,
        node.address,
        node.rack,
        node.version,
        view.health,
        node.op_state,
        node.op_expiry_ms or None,
        view.heartbeat_at_ms,
        view.has_reported,
        0 if live is None else live.capacity_bytes,
        0 if live is None else live.available_bytes,
        queues.get(Kind.REPLICATE, 0),
        queues.get(RECONSTRUCT_TYPE, 0),
        queues.get(Kind.DELETE, 0),
        queues.get(Kind.RECONCILE, 0),
    )


def _pending_row(op: PendingOp) -> tuple[Any, ...]:
    return (
        op.command.container_id,
        op.word,
        op.datanode_id,
        op.replica_index,
        op.command.deadline_ms,
        op.command.command_id,
    )


def _finished(directory: Path) -> list[Path]:
    """Return the finished snapshots, oldest first."""
    return sorted(path.parent for path in directory.glob("[0-9]*/manifest.json"))


def _delete_old(directory: Path, keep_count: int) -> None:
    for path in _finished(directory)[:-keep_count]:
        shutil.rmtree(path, ignore_errors=True)


def _remove_unfinished(directory: Path) -> None:
    """Remove what a killed export left behind; one export runs at a time."""
    for path in directory.glob(".*.building"):
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
