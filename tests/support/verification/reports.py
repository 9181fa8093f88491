"""Replicas of a cluster's datanodes, as reports and as a snapshot of its control plane.

Each replica is defined once. The agent's own writer makes the reports.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from suture.wire.mapping.addresses import opened
from suture.wire.mapping.report_file import write
from suture.wire.v1 import container_pb2 as pb
from tests.support.verification.snapshots import ContainerRow, NodeRow, ReplicaRow, SnapshotRows

CLUSTER_ID: Final = "cluster-1"
INTERVAL_S: Final = 60
START_ID: Final = 0xAB
HEARD_BEFORE_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Held:
    """One replica."""

    container_id: int
    datanode_id: str
    state: str = "CLOSED"
    root: int = 1
    replica_index: int = 0
    bcsid: int = 10
    used_bytes: int = 1000
    finding_count: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Columns for which the control plane has other values."""

    def message(self) -> pb.ReplicaReport:
        """Return the replica as its datanode reports it."""
        return pb.ReplicaReport(
            container_id=self.container_id,
            state=pb.ReplicaState.Value(self.state),
            used_bytes=self.used_bytes,
            block_count=4,
            bcsid=self.bcsid,
            origin_datanode_id=self.datanode_id,
            replica_index=self.replica_index,
            tree=None
            if self.state == "OPEN"
            else pb.TreeSummary(algorithm=pb.TREE_XXH3_64, root=self.root, generation=1),
            volume_id="v0",
            finding_count=self.finding_count,
        )

    def row(self, heard_at_ms: int) -> ReplicaRow:
        """Return the replica as the control plane records it."""
        row = ReplicaRow(
            self.container_id,
            self.datanode_id,
            replica_index=self.replica_index,
            state=self.state,
            origin_datanode_id=self.datanode_id,
            bcsid=self.bcsid,
            used_bytes=self.used_bytes,
            root=self.root,
            data_scan_at_ms=None,
            finding_count=self.finding_count,
            reported_at_ms=heard_at_ms,
        )
        if self.state == "OPEN":
            nothing = dict.fromkeys(("root", "tree_algorithm", "tombstones_checksum"))
            row = replace(row, tombstone_count=None, tree_generation=None, **nothing)  # type: ignore[arg-type]
        return replace(row, **self.more)


def copies(container_id: int, datanodes: str, **columns: Any) -> list[Held]:
    """Return one replica of a container per datanode; each letter names a datanode."""
    return [Held(container_id, f"dn-{name}", **columns) for name in datanodes]


def write_report(
    directory: Path | str,
    datanode_id: str,
    replicas: Iterable[Held],
    at_ms: int,
    *,
    start_id: int = START_ID,
    **datanode: Any,
) -> None:
    """Write the report of one datanode."""
    header = {
        "datanode_id": datanode_id,
        "reported_at_ms": at_ms,
        "start_id": start_id,
        "keep_count": 100,
        "datanode": {
            "cluster_id": CLUSTER_ID,
            "interval_s": INTERVAL_S,
            "address": f"{datanode_id}:1",
            "rack": f"/{datanode_id}",
            "version": "0.1.0",
            "op_state": "IN_SERVICE",
            "op_expiry_ms": None,
            "capacity_bytes": 1000,
            "available_bytes": 400,
        }
        | datanode,
    }
    write(opened(str(directory)), header, [one.message() for one in replicas])


def write_reports(directory: Path | str, held: Iterable[Held], at_ms: int) -> None:
    """Write the reports of all datanodes that have a replica."""
    by_node: dict[str, list[Held]] = {}
    for one in held:
        by_node.setdefault(one.datanode_id, []).append(one)
    for datanode_id, replicas in by_node.items():
        write_report(directory, datanode_id, replicas, at_ms)


def write_snapshot(
    directory: Path, containers: Iterable[ContainerRow], held: Iterable[Held], as_of_ms: int
) -> Path:
    """Write the control plane's records of these containers and replicas."""
    rows = [one.row(as_of_ms - HEARD_BEFORE_MS) for one in held]
    nodes = sorted({row.datanode_id for row in rows})
    return SnapshotRows(
        [replace(one, state_since_ms=as_of_ms - HEARD_BEFORE_MS) for one in containers],
        rows,
        [NodeRow(name, rack=f"/{name}", last_heartbeat_at_ms=as_of_ms - 1) for name in nodes],
    ).write(directory, manifest={"as_of_ms": as_of_ms})
