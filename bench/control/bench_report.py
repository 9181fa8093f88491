"""Measures the control plane's processor time: full reports, a start, and the first decision.

Real messages go through the real handler, parsing included, onto a real disk, and the processor
time of one core is counted per replica. The floor in the same run parses the same bytes with
protobuf and converts them to numpy columns, and nothing more. The start is a real `suture-scm` over
gRPC on a prepared state: every datanode registers and reports all its replicas, until safe mode is
over. Then one of them falls silent, until the first of its replicas is copied.

`REPORT_NODES=1000 REPORT_REPLICAS=10000 BENCH_TIMEOUT_S=7200 python -m bench report` is the
promised cluster size; the results of the smaller default are per replica. On a busy machine the
start may take longer than the minute after which a silent datanode is dead. Then
REPORT_DEAD_AFTER_S must be larger, otherwise all are dead in the end, and nothing can be copied.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import grpc
import lmdb
import numpy as np

from bench.control.bench_scm import append, container_of, cpu_s, memory_of, replica_of, report_of
from bench.measure import Measure, at_most
from merkle.replica import LAYOUT_VERSION
from scm.api.calls.control import ControlPlane
from scm.api.service import ScmService
from scm.state import records
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.entities import Node, OpState
from scm.state.options import ScmOptions
from suture.observe import logs
from suture.wire.mapping.replica_columns import COLUMNS, ID, column_report
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.fake_datanode import FakeDatanode
from tests.support.control.scm_process import ScmProcess

NODE_COUNT: Final = int(os.environ.get("REPORT_NODES", "99"))
REPLICAS_PER_NODE: Final = int(os.environ.get("REPORT_REPLICAS", "10000"))
COPIES: Final = 3
DYING: Final = NODE_COUNT // COPIES * COPIES - 1  # its containers have just enough copies
PAGE_COUNT: Final = 5_000  # replicas in a page, as an agent sends them
MAP_BYTES: Final = 64 * 1024**3
REPORT_US_MAX: Final = 8.0
START_S_MAX: Final = 60.0
START_REPLICAS: Final = 10_000_000  # for which a minute is promised
HEARTBEATS: Final = 200
DEAD_AFTER_MS: Final = 1_000 * int(os.environ.get("REPORT_DEAD_AFTER_S", "60"))
"""Time until a silent datanode is dead. It must be longer than a start takes, so that no datanode
dies during the start."""

VOLUME: Final = datanode_pb2.VolumeStatus(
    volume_id="volume-1", path="/data", capacity_bytes=2**46, available_bytes=2**45
)
HANDLED_NODES: Final = 30
"""Number of datanodes in the measurement that passes reports directly to the handler."""

OPTIONS: Final = ScmOptions(heartbeat_interval_ms=1_000, session_idle_ms=86_400_000)


def measures() -> list[Measure]:
    """Measure reports, then a start and a failure."""
    logs.configure("error")
    return [*handled_measures(), *start_measures()]


def handled_measures() -> list[Measure]:
    """Return the cost of reports and heartbeats for the control plane."""
    count = HANDLED_NODES * REPLICAS_PER_NODE
    with tempfile.TemporaryDirectory(prefix="suture-report-") as scratch:
        write_cluster(Path(scratch), HANDLED_NODES, REPLICAS_PER_NODE)
        handler = Handler(Path(scratch))
        for i in range(HANDLED_NODES):
            handler.register(node_name(i))
        pages = [
            page
            for i in range(HANDLED_NODES)
            for page in pages_of(i, HANDLED_NODES, REPLICAS_PER_NODE)
        ]
        parse_s = spent_s(lambda: [floor(page) for page in pages])
        first_s = spent_s(lambda: [handler.heartbeat(page) for page in pages])
        same_s = spent_s(lambda: [handler.heartbeat(page) for page in pages])
        idle = [idle_heartbeat(i % HANDLED_NODES) for i in range(HEARTBEATS)]
        idle_s = spent_s(lambda: [handler.heartbeat(page) for page in idle])
        handler.close()
    beside = f"{parse_s / count * 1e6:.2f} us to parse the same"
    taken = {"first full report": first_s, "unchanged full report": same_s}
    return [
        *(
            at_most(
                what, took_s / count * 1e6, "CPU us/replica", REPORT_US_MAX, compared_with=beside
            )
            for what, took_s in taken.items()
        ),
        Measure("heartbeat of an idle datanode", idle_s / HEARTBEATS * 1e6, "CPU us"),
    ]


def start_measures() -> list[Measure]:
    """Return the cost of a start until safe mode is over, and the time from a failure to a
    decision.
    """
    with tempfile.TemporaryDirectory(prefix="suture-start-") as scratch:
        write_cluster(Path(scratch), NODE_COUNT, REPLICAS_PER_NODE)
        process = ScmProcess.start(
            Path(scratch),
            log_level="error",
            audit_file=f"{scratch}/audit",
            heartbeat_interval_ms=1_000,
            session_idle_ms=86_400_000,
            stale_after_ms=DEAD_AFTER_MS // 2,
            dead_after_ms=DEAD_AFTER_MS,
            lmdb_map_bytes=MAP_BYTES,
        )
        try:
            return started(process)
        finally:
            process.kill()


def started(process: ScmProcess) -> list[Measure]:
    """Measure a starting control plane to which all datanodes report, and its first decision after
    one of them has become silent."""
    pid, count = process.process.pid, NODE_COUNT * REPLICAS_PER_NODE
    reading_s = cpu_s(pid)
    channel = grpc.insecure_channel(process.address)
    stub = Stub(channel, SCM)
    began_s, own_s = time.monotonic(), time.process_time()
    for i in range(NODE_COUNT):
        FakeDatanode(stub, node_name(i)).register()
        for page in pages_of(i, NODE_COUNT, REPLICAS_PER_NODE):
            stub.Heartbeat(scm_pb2.HeartbeatRequest.FromString(page))
    while stub.SafeMode(scm_pb2.SafeModeRequest()).on:
        time.sleep(0.05)
    wall_s, own_s = time.monotonic() - began_s, time.process_time() - own_s
    start_s, own_bytes = cpu_s(pid), memory_of(pid)
    decided = first_decision(stub, pid)
    name = f"{NODE_COUNT:,} datanodes x {REPLICAS_PER_NODE:,}, "
    bound_s = START_S_MAX * count / START_REPLICAS
    return [
        Measure(name + "reading the state", reading_s, "CPU s"),
        at_most(name + "start until safe mode ends", start_s, "CPU s", bound_s),
        Measure(
            name + "the same on the wall, with the datanodes",
            wall_s,
            "s",
            compared_with=f"{own_s:.1f} CPU s of the datanodes",
        ),
        at_most(
            name + "start, a replica",
            start_s / count * 1e6,
            "CPU us",
            START_S_MAX / START_REPLICAS * 1e6,
        ),
        Measure(name + "memory when it ends", own_bytes / 2**20, "MiB"),
        Measure(name + "memory, a replica", own_bytes / count, "bytes"),
        *decision_measures(name, decided),
    ]


def decision_measures(name: str, decided: tuple[float, float] | None) -> list[Measure]:
    """Return the measures of the first decision. If there was none, return a measure that does not
    hold."""
    what = name + "first copy ordered after a death"
    if decided is None:
        return [Measure(what, float("inf"), "s", bound="that one is", holds=False)]
    return [
        Measure(what, decided[0], "s"),
        Measure(name + "processor time until then", decided[1], "CPU s"),
    ]


def first_decision(stub: Stub, pid: int) -> tuple[float, float] | None:
    """Stop the heartbeats of one datanode. Return the seconds from its death to the first order of
    a copy, and the processor time since its last call. Return None if there is no order in time.
    """
    silent_since_s, before_s = time.monotonic(), cpu_s(pid)
    stub.Heartbeat(scm_pb2.HeartbeatRequest.FromString(idle_heartbeat(DYING)))
    deadline_s = silent_since_s + 4 * DEAD_AFTER_MS / 1_000
    while time.monotonic() < deadline_s:
        began_s = time.monotonic()
        for i in set(range(NODE_COUNT)) - {DYING}:
            answer = stub.Heartbeat(scm_pb2.HeartbeatRequest.FromString(idle_heartbeat(i)))
            if any(command.WhichOneof("command") == "replicate" for command in answer.commands):
                silent_s = time.monotonic() - silent_since_s
                return silent_s - DEAD_AFTER_MS / 1_000, cpu_s(pid) - before_s
        time.sleep(max(0.0, began_s + 1 - time.monotonic()))
    return None


class Handler:
    """The service of a cold-starting control plane, called without a network."""

    def __init__(self, path: Path) -> None:
        """Create the service with a cold start: its replica map is empty, so each reported replica
        is new."""
        self.state = StateDatabase.open(path, map_bytes=MAP_BYTES, is_cold=True)
        clock = ScmClock()
        control = ControlPlane(
            self.state, clock=clock, options=OPTIONS, snapshots_path=path / "snapshots"
        )
        self.service = ScmService(control)
        self.tick = control.tick

    def register(self, name: str) -> None:
        """Register a datanode."""
        request = scm_pb2.RegisterRequest(
            datanode_id=name,
            address=f"{name}:1",
            rack="/rack-1",
            version="0.1.0",
            boot_id=1,
            layout_version=LAYOUT_VERSION,
        )
        self.service.Register(request)

    def heartbeat(self, data: bytes) -> bytes:
        """Handle the encoded request of a heartbeat; return the encoded answer."""
        request = scm_pb2.HeartbeatRequest.FromString(data)
        answer: bytes = self.service.Heartbeat(request, AWAITED).SerializeToString()
        return answer

    def close(self) -> None:
        """Close the state database."""
        self.state.close()


class Awaited:
    """A call context whose caller waits for the answer."""

    def is_active(self) -> bool:
        """Return True."""
        return True


AWAITED: Final = cast(grpc.ServicerContext, Awaited())


def floor(page: bytes) -> list[Any]:
    """Parse a page of a report and convert its numbers to columns, and nothing else."""
    replicas = scm_pb2.HeartbeatRequest.FromString(page).column_reports[0].replicas
    return [
        np.frombuffer(getattr(replicas, column.name), column.type).copy()
        for column in (ID, *COLUMNS)
    ]


def node_name(number: int) -> str:
    """Return the id of a datanode."""
    return f"dn{number:04d}"


def held_by(number: int, node_count: int, per_node: int) -> range:
    """Return the containers with a replica on datanode `number`. Each container has replicas on
    three datanodes."""
    group_count = max(1, node_count // COPIES)
    first = 1 + number % group_count
    return range(first, first + group_count * per_node, group_count)


def pages_of(number: int, node_count: int, per_node: int) -> list[bytes]:
    """Return a datanode's full report in encoded form, page by page, in columns."""
    return [
        heartbeat(number, column_reports=[column_report(page)]).SerializeToString()
        for page in reports_of(number, node_count, per_node)
    ]


def reports_of(number: int, node_count: int, per_node: int) -> Iterator[scm_pb2.ContainerReport]:
    """Yield the pages of a datanode's full report."""
    ids = held_by(number, node_count, per_node)
    for page, start in enumerate(range(0, len(ids), PAGE_COUNT)):
        yield scm_pb2.ContainerReport(
            full=True,
            report_id=1,
            page=page,
            last=start + PAGE_COUNT >= len(ids),
            replicas=reported(ids[start : start + PAGE_COUNT]),
        )


def heartbeat(number: int, **more: Any) -> scm_pb2.HeartbeatRequest:
    """Return a heartbeat of a datanode."""
    return scm_pb2.HeartbeatRequest(
        datanode_id=node_name(number), boot_id=1, volumes=[VOLUME], **more
    )


def reported(container_ids: Iterable[int]) -> list[container_pb2.ReplicaReport]:
    """Return replicas as their datanode reports them, matching those of `write_cluster`."""
    return [report_of(container_id, bcsid=5) for container_id in container_ids]


def idle_heartbeat(number: int) -> bytes:
    """Return the heartbeat of a datanode without news."""
    return heartbeat(number).SerializeToString()


def spent_s(action: Callable[[], object]) -> float:
    """Return the processor time that a call takes."""
    began_s = time.process_time()
    action()
    return time.process_time() - began_s


def write_cluster(path: Path, node_count: int, per_node: int) -> None:
    """Write the state of an idle cluster directly, in key order. A control plane would take far
    longer to create it."""
    container_count = max(1, node_count // COPIES) * per_node
    state = StateDatabase.open(path, map_bytes=MAP_BYTES)
    with state.change() as change:
        for i in range(node_count):
            name = node_name(i)
            node = Node(name, f"{name}:1", "/rack-1", "0.1.0", 1, OpState.IN_SERVICE, 0, 1, 1)
            change.put(state.nodes, node)
    state.close()
    with lmdb.open(str(path / "state"), map_size=MAP_BYTES, max_dbs=16) as environment:
        append(environment, state.containers, map(container_of, range(1, container_count + 1)))
        for i in range(node_count):
            held = held_by(i, node_count, per_node)
            name = node_name(i)
            rows = (
                replace(replica_of(number, 0), datanode_id=name, origin_datanode_id=name)
                for number in held
            )
            append(environment, state.replicas, rows)
        with environment.begin(write=True, db=environment.open_db(b"meta")) as transaction:
            transaction.put(b"next_container_id", records.pack([container_count + 1]))
