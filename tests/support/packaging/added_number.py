"""Follows a number that was added to replicas on its whole way, in a tree that declares it.

    python -m tests.support.packaging.added_number OLD-STATE OLD-ROW OLD-SNAPSHOT DIRECTORY

What a tree without it left is read first: a state, a row in hexadecimal, a snapshot.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from agent.cli.inspect.scm_commands import replica_table
from agent.rpc.v1 import scm_pb2
from agent.rpc.wire.replica_columns import column_report, columns_from
from agent.rpc.wire.reports import replica_report
from agent.store.index.columns import decode_columns
from agent.store.index.facts import facts_of
from agent.store.index.rows import ReplicaRow, decode_replica, encode_replica
from merkle.replica import Bcsid, ContainerId, ReplicaState
from scm.backup.image import look_through
from scm.edge.answers import _replica_report
from scm.edge.spark.snapshot_export import World, export
from scm.state.database import State
from scm.state.facts import Container, ContainerState, Replica
from scm.state.replicas.reported_replicas import Reported
from spark_verify.input_columns import REPLICAS, schema_of
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.snapshot.snapshot_reading import open_snapshot, pages_of

NAME: Final = "last_repair_ms"
VALUE: Final = 1_700_000_000_000
MAP_BYTES: Final = 16 << 20
ONE: Final = ContainerId(1)
ROW: Final = ReplicaRow(
    state=ReplicaState.CLOSED, bcsid=Bcsid(5), block_count=1, origin_datanode_id="dn1"
)
OLD: Final = Replica(
    container_id=1,
    datanode_id="dn1",
    state=ReplicaState.CLOSED,
    bytes_used=1_000,
    block_count=1,
    bcsid=5,
    origin_datanode_id="dn1",
    is_empty=False,
    tree=None,
    volume_id="volume-1",
    load_error="",
    reported_at_ms=1,
)


def leave(directory: Path) -> str:
    """Leave a state and a snapshot below `directory` as this tree makes them; return the row of an
    index in hexadecimal."""
    state = State.open(directory / "state", map_bytes=MAP_BYTES)
    with state.change() as change:
        change.put(state.replicas, OLD)
        change.put(state.replicas, replace(OLD, datanode_id="dn2"))
    state.close()
    snapshot(directory / "snapshots", OLD)
    return encode_replica(ROW).hex()


def snapshot(directory: Path, *replicas: Replica) -> Path:
    """Export replicas of a closed container; return where the snapshot is."""
    container = Container(1, ContainerState.CLOSED, 3, 5, 1, ())
    world = World(2, 1, "CID-1", (), (container,), replicas, ())
    return export(world, directory, keep_count=1).path


def follow(old_state: Path, old_row: bytes, old_snapshot: Path, directory: Path) -> dict[str, Any]:
    """Return what became of the number at each place on its way."""
    before = decode_replica(ONE, old_row)
    row = encode_replica(replace(before, **{NAME: VALUE}))
    columns, damaged = decode_columns([(bytes(7) + b"\x01", old_row), (bytes(7) + b"\x02", row)])
    report = replica_report(facts_of(ONE, "volume-1", decode_replica(ONE, row)))
    page = scm_pb2.ContainerReport(replicas=[report])
    told = columns_from(column_report(page).replicas, "replicas")
    (known,) = Reported.from_columns("dn1", told, told.words, 1)

    looked_at = look_through(old_state / "state").counts["replicas_by_node"]
    state = State.open(old_state, map_bytes=MAP_BYTES)
    without = [replica for replica in state.replicas.values() if not getattr(replica, NAME)]
    with state.change() as change:
        change.put(state.replicas, known)
    state.close()
    state = State.open(old_state, map_bytes=MAP_BYTES)
    kept = [getattr(replica, NAME) for replica in state.replicas.of(1)]
    state.close()

    exported = pq.read_table(snapshot(directory, known, OLD) / "replicas")
    info = scm_pb2.ContainerInfo(
        replicas=[scm_pb2.ContainerInfoReplica(replica=_replica_report(known))]
    )
    shown = replica_table(info)
    return {
        "index": [getattr(before, NAME), getattr(decode_replica(ONE, row), NAME)],
        "columns": [len(columns), len(damaged)],
        "report": getattr(report, NAME),
        "control plane": getattr(known, NAME),
        "state before": [looked_at, len(without)],
        "state": sorted(kept),
        "snapshot": exported[NAME].to_pylist(),
        "snapshot before": read_before(old_snapshot)[NAME].to_pylist(),
        "shown": [str(cell) for column in shown.columns for cell in column.cells][-1:],
    }


def read_before(directory: Path) -> pa.Table:
    """Return the replicas of a snapshot as the verification reads them."""
    parts = open_snapshot(str(directory), read_manifest(str(directory)))["replicas"]
    schema = schema_of(REPLICAS)
    return pa.concat_tables([page for part in parts for page in pages_of(part, schema)])


if __name__ == "__main__":
    state_path, row_text, snapshot_path, target = sys.argv[1:]
    found = follow(Path(state_path), bytes.fromhex(row_text), Path(snapshot_path), Path(target))
    sys.stdout.write(json.dumps(found))
