"""Measures the control plane at scale: memory per replica, a restart, and a full report.

With a million containers of three replicas each, a restarted `suture-scm` must serve them within a
minute, use at most 400 bytes of memory for each, and apply a full report of 10,000 replicas within
one second, over gRPC and onto the disk.
"""

import gc
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import grpc
import lmdb

from bench.measure import Measure, at_most, duration_s
from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.state import records
from scm.state.database import StateDatabase
from scm.state.entities import Container, ContainerState, Node, OpState, Replica
from scm.state.replicas import replica_rows
from scm.state.replicas.replica_table import ReplicaTable
from scm.state.table import Table
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2
from tests.support.control.fake_datanode import FakeDatanode
from tests.support.control.scm_process import ScmProcess

REPLICA_COUNT: Final = 60_000
REPLICAS_PER_CONTAINER: Final = 3
NODE_COUNT: Final = 100
MEMORY_BYTES_MAX: Final = 400
CONTAINER_COUNT: Final = int(os.environ.get("SCM_CONTAINERS", "1000000"))
CLUSTER_NODES: Final = 300  # 10,000 replicas on each
MAP_BYTES: Final = 16 * 1024**3
REPORT_COUNT: Final = 5  # of each kind, from different nodes


def measures() -> list[Measure]:
    """Measure the replica map in memory, and a restart."""
    replicas = made()
    rows = [replica_rows.replica_row(replica) for replica in replicas]
    load_s = duration_s(lambda: loaded(rows))
    return [
        at_most("replica map, memory", memory_bytes(rows), "bytes/replica", MEMORY_BYTES_MAX),
        Measure("replica map, reading a row at a restart", load_s / len(rows) * 1e6, "us"),
        Measure("replica map, a row", sum(map(len, rows)) / len(rows), "bytes"),
        *restart_measures(),
    ]


def restart_measures() -> list[Measure]:
    """Write the state of a large cluster, start the control plane on it, and send reports."""
    with tempfile.TemporaryDirectory(prefix="suture-scm-") as scratch:
        path = Path(scratch)
        write_state(path)
        began_s = time.perf_counter()
        process = ScmProcess.start(path, heartbeat_interval_ms=1_000, session_idle_ms=86_400_000)
        try:
            serving_s = time.perf_counter() - began_s
            pid = process.process.pid
            starting_cpu_s, own_bytes = cpu_s(pid), memory_of(pid)
            channel = grpc.insecure_channel(process.address)
            stub = Stub(channel, SCM)
            same = [report_s(stub, pid, i, bcsid=5) for i in range(REPORT_COUNT)]
            changed = [report_s(stub, pid, REPORT_COUNT + i, bcsid=6) for i in range(REPORT_COUNT)]
            new = [report_s(stub, pid, CLUSTER_NODES + i, bcsid=5) for i in range(REPORT_COUNT)]
        finally:
            process.kill()
    count = CONTAINER_COUNT * REPLICAS_PER_CONTAINER
    name = f"{CONTAINER_COUNT:,} containers, "
    return [
        at_most(name + "restart to serving", serving_s, "s", 60),
        Measure(name + "the same, processor time", starting_cpu_s, "s"),
        *of_reports(name + "full report, nothing new", same),
        *of_reports(name + "full report, all changed", changed),
        *of_reports(name + "full report of a new node", new),
        at_most(name + "whole process", own_bytes / count, "bytes/replica", MEMORY_BYTES_MAX),
    ]


def of_reports(name: str, taken: list[tuple[float, float]]) -> list[Measure]:
    """Return the median duration of reports, and the median processor time of the control plane
    for a report. `taken` has both times of each report."""
    wall_s, processor_s = (statistics.median(times) for times in zip(*taken, strict=True))
    return [
        at_most(name, wall_s, "s", 1),
        Measure(name + ", processor time", processor_s, "s"),
    ]


def write_state(path: Path) -> None:
    """Write the state of an idle cluster, in which all nodes have the same number of replicas.

    The rows are written directly, in key order, because a control plane would take minutes.
    """
    state = StateDatabase.open(path, map_bytes=MAP_BYTES)
    with state.change() as change:  # all were online: after the start they are waited for
        for i in range(CLUSTER_NODES):
            name, op_state = f"dn{i:03d}", OpState.IN_SERVICE
            change.put(
                state.nodes, Node(name, f"{name}:1", "/rack-1", "0.1.0", 1, op_state, 0, 1, 1)
            )
    state.close()
    with lmdb.open(str(path / "state"), map_size=MAP_BYTES, max_dbs=16) as environment:
        append(environment, state.containers, map(container_of, range(1, CONTAINER_COUNT + 1)))
        for i in range(CLUSTER_NODES):
            append(environment, state.replicas, (replica_of(number, i) for number in held_by(i)))
        with environment.begin(write=True, db=environment.open_db(b"meta")) as transaction:
            transaction.put(b"next_container_id", records.pack([CONTAINER_COUNT + 1]))


def append(environment: lmdb.Environment, table: Table[Any, Any], values: Iterable[Any]) -> None:
    """Append values to a table. Their keys must be sorted and higher than all existing keys."""
    with environment.begin(write=True, db=environment.open_db(table.name.encode())) as transaction:
        for value in values:
            key = table.key_bytes(table.key_of(value))
            transaction.put(key, table.row(value), append=True)


def container_of(number: int) -> Container:
    """Return an idle container."""
    state = ContainerState.CLOSED
    return Container(number, state, REPLICAS_PER_CONTAINER, 5, 1, (), committed_count=1)


def held_by(node: int) -> range:
    """Return the containers of which a node has a replica."""
    third = CLUSTER_NODES // REPLICAS_PER_CONTAINER
    return range(node % third or third, CONTAINER_COUNT + 1, third)


def report_of(container_id: int, bcsid: int) -> container_pb2.ReplicaReport:
    """Return a replica as its datanode reports it."""
    return container_pb2.ReplicaReport(
        container_id=container_id,
        state=container_pb2.CLOSED,
        used_bytes=10**9,
        block_count=1_000,
        bcsid=bcsid,
        tree=container_pb2.TreeSummary(
            algorithm=container_pb2.TREE_XXH3_64, root=container_id, generation=1, block_count=1_000
        ),
        volume_id="volume-1",
    )


def replica_of(number: int, node: int) -> Replica:
    """Return a replica as the control plane stores it."""
    name = f"dn{node:03d}"
    tree = TreeSummary(Algorithm.XXH3_64, number, 1, 1_000, 0, 0)
    state = ReplicaState.CLOSED
    return Replica(
        container_id=number,
        datanode_id=name,
        state=state,
        used_bytes=10**9,
        block_count=1_000,
        bcsid=5,
        origin_datanode_id=name,
        is_empty=False,
        tree=tree,
        volume_id="volume-1",
        load_error="",
        reported_at_ms=1,
    )


def report_s(stub: Stub, pid: int, number: int, *, bcsid: int) -> tuple[float, float]:
    """Register a node, and send its full report.

    Return the duration of the report, and the control plane's processor time during the report.
    """
    node = FakeDatanode(stub, f"dn{number:03d}")
    node.register()
    replicas = [report_of(container_id, bcsid) for container_id in held_by(number)]
    before_s = cpu_s(pid)
    wall_s = duration_s(lambda: node.report_full(*replicas))
    return wall_s, cpu_s(pid) - before_s


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int:
    """Return the private memory of a process, without its mapped file."""
    status = Path(f"/proc/{pid}/status").read_text().split()
    return int(status[status.index("RssAnon:") + 1]) * 1024


def made() -> list[Replica]:
    """Return replicas as in a real cluster: few different strings, many different numbers."""
    rng = random.Random(1)  # noqa: S311 - no secret
    nodes = [f"{rng.randrange(2**64):016x}-{i:019d}" for i in range(NODE_COUNT)]
    return [
        Replica(
            container_id=i // REPLICAS_PER_CONTAINER + 1,
            datanode_id=nodes[(i // REPLICAS_PER_CONTAINER * 7 + i * 13) % NODE_COUNT],
            state=ReplicaState.CLOSED,
            used_bytes=rng.randrange(2**32),
            block_count=rng.randrange(300, 5_000),
            bcsid=rng.randrange(300, 5_000),
            origin_datanode_id=nodes[i % NODE_COUNT],
            replica_index=0,
            is_empty=False,
            tree=TreeSummary(Algorithm.XXH3_64, rng.randrange(2**64), i % 99, i % 5_000, 0, 0),
            volume_id=nodes[i % NODE_COUNT],
            data_scan_at_ms=1_700_000_000_000 + rng.randrange(10**9),
            finding_count=0,
            load_error="",
            reported_at_ms=1_700_000_000_000 + rng.randrange(10**9),
        )
        for i in range(REPLICA_COUNT)
    ]


def loaded(rows: list[bytes]) -> ReplicaTable:
    """Return the replica map that is loaded from these rows."""
    table = ReplicaTable()
    table.load(rows, lambda _place: b"")
    return table


def memory_bytes(rows: list[bytes]) -> float:
    """Return the memory of one replica in the map, including indexes."""
    gc.collect()
    tracemalloc.start()
    try:
        table = loaded(rows)
        return tracemalloc.get_traced_memory()[0] / len(table)
    finally:
        tracemalloc.stop()
