"""Snapshots for tests: rows with defaults, a short notation for a container, real Parquet files.

The notation is that of the health rules' vectors; one word is one replica:

    C Q U O G I D R   CLOSED QUASI_CLOSED UNHEALTHY OPEN CLOSING INVALID DELETED RECOVERING
    #3 index    @10 bcsid    ^a origin    !  empty    x2 two of them    *2 findings    $ contradicts
    /d DECOMMISSIONING  /D DECOMMISSIONED  /m IN_MAINTENANCE  /e ENTERING_MAINTENANCE
    =7 root     :9 settled root     %5 tombstones checksum    ~crc32c tree algorithm
    ?s ?d ?r    node STALE, DEAD, HEALTHY_READONLY          &r2 on rack r2
    ops: "+" ADD, "-" DELETE elsewhere, "-n0" DELETE on replica 0, "+#3" ADD of index 3,
         "!" RECONCILE
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_verify.input_columns import TABLES

SNAPSHOT_ID: Final = "snap-1"
AS_OF_MS: Final = 1_700_000_000_000

_STATES: Final = {
    "C": "CLOSED",
    "Q": "QUASI_CLOSED",
    "U": "UNHEALTHY",
    "O": "OPEN",
    "G": "CLOSING",
    "I": "INVALID",
    "D": "DELETED",
    "R": "RECOVERING",
}
_OP_STATES: Final = {
    "": "IN_SERVICE",
    "d": "DECOMMISSIONING",
    "D": "DECOMMISSIONED",
    "m": "IN_MAINTENANCE",
    "e": "ENTERING_MAINTENANCE",
}
_HEALTHS: Final = {"": "HEALTHY", "s": "STALE", "d": "DEAD", "r": "HEALTHY_READONLY"}


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One row of `containers`."""

    container_id: int
    replication_type: str = "RATIS"
    replication_factor: int = 3
    ec_data: int | None = None
    ec_parity: int | None = None
    state: str = "CLOSED"
    sequence_id: int = 10
    acknowledged_bcsid: int | None = None
    key_count: int = 1
    used_bytes: int = 1000
    state_since_ms: int = AS_OF_MS - 60_000
    pipeline_alive: bool = True
    suppressed: bool = False
    owes_deletes: bool = False
    health_state: str | None = None
    snapshot_id: str = SNAPSHOT_ID


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One row of `replicas`."""

    container_id: int
    datanode_id: str
    replica_index: int = 0
    state: str = "CLOSED"
    origin_datanode_id: str = ""
    bcsid: int | None = 10
    block_count: int = 4
    used_bytes: int = 1000
    is_empty: bool = False
    tree_algorithm: str | None = "xxh3_64"
    root: int | None = None
    settled_root: int | None = None
    tombstones_checksum: int | None = 0
    tombstone_count: int | None = 0
    tree_generation: int | None = 1
    volume_id: str = "v0"
    data_scan_at_ms: int | None = AS_OF_MS - 3_600_000
    finding_count: int = 0
    is_contradictory: bool = False
    is_barred: bool = False
    is_hopeful: bool = False
    load_error: str | None = None
    reported_at_ms: int = AS_OF_MS - 1000
    snapshot_id: str = SNAPSHOT_ID


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One row of `nodes`."""

    datanode_id: str
    address: str = "127.0.0.1:1"
    rack: str = "/r1"
    version: str = "0.1.0"
    health: str = "HEALTHY"
    op_state: str = "IN_SERVICE"
    op_expiry_ms: int | None = None
    last_heartbeat_at_ms: int = AS_OF_MS - 1000
    has_reported: bool = True
    capacity_bytes: int = 10**12
    available_bytes: int = 5 * 10**11
    queued_replicate: int = 0
    queued_reconstruct: int = 0
    queued_delete: int = 0
    queued_reconcile: int = 0
    snapshot_id: str = SNAPSHOT_ID


@dataclass(frozen=True, slots=True)
class OpRow:
    """One row of `pending_ops`."""

    container_id: int
    op: str
    datanode_id: str
    replica_index: int = 0
    deadline_ms: int = AS_OF_MS + 60_000
    command_id: int = 1
    snapshot_id: str = SNAPSHOT_ID


@dataclass(slots=True)
class SnapshotRows:
    """All rows of a snapshot; `write` writes them as files."""

    containers: list[ContainerRow] = field(default_factory=list)
    replicas: list[ReplicaRow] = field(default_factory=list)
    nodes: list[NodeRow] = field(default_factory=list)
    pending_ops: list[OpRow] = field(default_factory=list)

    def add(self, other: "SnapshotRows") -> None:
        """Add all rows of another snapshot."""
        self.containers += other.containers
        self.replicas += other.replicas
        self.nodes += other.nodes
        self.pending_ops += other.pending_ops

    def table(self, name: str) -> pa.Table:
        """Return one table as Arrow, with the declared schema."""
        rows: Iterable[Any] = getattr(self, name)
        return pa.Table.from_pylist([asdict(row) for row in rows], schema=arrow_schema(name))

    def write(
        self,
        directory: Path,
        *,
        change: Mapping[str, Callable[[pa.Table], pa.Table]] | None = None,
        manifest: Mapping[str, object] | None = None,
        rows_per_group: int | None = None,
    ) -> Path:
        """Write the snapshot below `directory`; `change` damages tables, `manifest` fields."""
        counts = {}
        for name in TABLES:
            table = self.table(name)
            counts[name] = table.num_rows
            table = (change or {}).get(name, lambda t: t)(table)
            (directory / name).mkdir(parents=True)
            path = directory / name / "part-00000.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=rows_per_group)
        fields = {
            "schema_version": 5,
            "snapshot_id": SNAPSHOT_ID,
            "as_of_ms": AS_OF_MS,
            "term": 1,
            "cluster_id": "cluster-1",
            "rows": counts,
        } | dict(manifest or {})
        (directory / "manifest.json").write_text(json.dumps(fields))
        return directory


def arrow_schema(name: str) -> pa.Schema:
    """Return the Arrow schema of a table, from the job's own declaration."""
    return TABLES[name]


def container(
    container_id: int, what: str, replicas: str = "", ops: str = "", **fields: Any
) -> SnapshotRows:
    """Return the rows of one container in the notation of the module's docstring. Each replica is
    on a node of its own.

    `what` is like "R CLOSED 10", "EC CLOSED" (3-2), "EC6-3 CLOSED" or "S1 CLOSED" (STAND_ALONE 1).
    """
    words = what.split()
    row = ContainerRow(container_id, state=words[1], **_replication(words[0]))
    if len(words) > 2:
        row = replace(row, sequence_id=int(words[2]))
    row = replace(row, **fields)
    rows = SnapshotRows(containers=[row])
    for word in replicas.split():
        body, _, copies = word.partition("x")
        for _ in range(int(copies or 1)):
            _add_replica(rows, row, body)
    number = 0
    for word in ops.split():
        body, _, copies = word.partition("x")
        for _ in range(int(copies or 1)):
            _add_op(rows, container_id, body, number)
            number += 1
    return rows


def _replication(word: str) -> dict[str, Any]:
    if word.startswith("EC"):
        data, parity = (int(n) for n in (word[2:] or "3-2").split("-"))
        return {
            "replication_type": "EC",
            "replication_factor": data + parity,
            "ec_data": data,
            "ec_parity": parity,
        }
    kind = {"R": "RATIS", "S": "STAND_ALONE"}[word[0]]
    return {"replication_type": kind, "replication_factor": int(word[1:] or 3)}


_WORD: Final = re.compile(
    r"(?P<state>[CQUOGIDR])(?P<tail>(?:#\d+|@-?\d+|\^\w+|/\w|!|=-?\d+|:-?\d+|%-?\d+|~\w+|\?\w|&\w+|\*\d+|\$)*)$"
)


def _add_replica(rows: SnapshotRows, row: ContainerRow, word: str) -> None:
    match = _WORD.match(word)
    assert match, f"cannot read replica {word!r}"
    tail = dict(re.findall(r"([#@^/=:%~?&*])(-?\w+)", match["tail"]))
    datanode_id = f"dn-{row.container_id}-{len(rows.replicas)}"
    root = tail.get("=")
    origin = tail.get("^")
    rows.replicas.append(
        ReplicaRow(
            row.container_id,
            datanode_id,
            replica_index=int(tail.get("#", 0)),
            state=_STATES[match["state"]],
            origin_datanode_id=f"dn-{row.container_id}-{origin}" if origin else datanode_id,
            bcsid=int(tail.get("@", row.sequence_id)),
            is_empty="!" in match["tail"],
            block_count=0 if "!" in match["tail"] else 4,
            used_bytes=0 if "!" in match["tail"] else row.used_bytes,
            root=int(root) if root and root != "0" else None,
            tree_algorithm=tail.get("~", "xxh3_64"),
            settled_root=int(tail[":"]) if ":" in tail else None,
            tombstones_checksum=int(tail.get("%", 0)),
            finding_count=int(tail.get("*", 0)),
            is_contradictory="$" in match["tail"],
        )
    )
    rows.nodes.append(
        NodeRow(
            datanode_id,
            rack=f"/{tail.get('&', f'r{len(rows.nodes)}')}",
            health=_HEALTHS[tail.get("?", "")],
            op_state=_OP_STATES[tail.get("/", "")],
        )
    )


def _add_op(rows: SnapshotRows, container_id: int, word: str, number: int) -> None:
    kind = {"+": "ADD", "-": "DELETE", "!": "RECONCILE"}[word[0]]
    index = re.search(r"#(\d+)", word)
    on = re.search(r"n(\d+)", word)
    datanode_id = f"dn-{container_id}-{on[1]}" if on else f"dn-{container_id}-op{number}"
    if not on:
        rows.nodes.append(NodeRow(datanode_id, rack=f"/op{number}"))
    rows.pending_ops.append(
        OpRow(container_id, kind, datanode_id, int(index[1]) if index else 0, command_id=number)
    )


def gather(parts: Iterable[SnapshotRows]) -> SnapshotRows:
    """Return one snapshot of many containers."""
    total = SnapshotRows()
    for part in parts:
        total.add(part)
    return total
