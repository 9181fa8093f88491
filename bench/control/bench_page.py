"""Measures the page of a large cluster: its time, its size, and how long it blocks other calls.

A real control plane has many datanodes and containers, made in memory as its tables keep them. One
node is dead, one has not reported, volumes have failed, containers are damaged, and the weeks of
history are full, so that everything a page can show is there. The control plane's own histograms
tell how long the lock was held: first by the page, a scrape and a history sample alone, then while
a thread calls for one datanode after the other. They use wall time, which includes waiting for the
interpreter and a busy machine, and processor time.

`PAGE_CONTAINERS=10000000 python -m bench page` is the promised cluster size and takes about 7 GiB
of memory; the million of the default run is processed in the same way.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import thread_time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.control.bench_scm import memory_of
from bench.measure import Measure, at_least, at_most, duration_s
from health.cluster_verdict import DataVerdict
from merkle.replica import ReplicaState
from scm.api.call_values import Heartbeat
from scm.api.calls.control import ControlPlane
from scm.api.http_pages import HttpStatus
from scm.cluster.nodes import Registration
from scm.state.clock import ScmClock
from scm.state.database import StateChange, StateDatabase
from scm.state.entities import Container, ContainerState, OpState, ReportedVolume
from scm.state.history.interval_samples import LEVELS, StatusSample
from scm.state.options import ScmOptions
from scm.state.replicas.reported_replicas import ReportedReplicas
from suture.observe import logs
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.gil_tuning import freeze_what_stays, set_switch_interval
from suture.runtime.loop import WorkerLoops
from tests.support.clock import FakeClock
from tests.support.control.scm_world import replica

CONTAINER_COUNT: Final = int(os.environ.get("PAGE_CONTAINERS", "1000000"))
NODE_COUNT: Final = int(os.environ.get("PAGE_NODES", "5000"))
RACK_COUNT: Final = 125
VOLUME_COUNT: Final = 12
COPIES: Final = 3
ROUNDS: Final = 7
PAGE_S_MAX: Final = 1.0
PAGE_BYTES_MAX: Final = 300_000
LOCK_S_MAX: Final = 0.05
TIB: Final = 1024**4
MAP_BYTES: Final = 4 * 1024**3
DAMAGED: Final = range(1, min(CONTAINER_COUNT, 20_000), 7)
SILENT: Final = 17  # one node; the next one has not reported since the start
OPTIONS: Final = ScmOptions(heartbeat_interval_ms=1_000)


def measures() -> list[Measure]:
    """Measure the page, and how long it blocks other calls."""
    logs.configure("error")
    set_switch_interval()  # as suture-scm does
    with tempfile.TemporaryDirectory(prefix="suture-page-") as scratch:
        cluster = Cluster(Path(scratch))
        counted_s = duration_s(cluster.control.queries.count_containers)
        with CallThreadPool(2, 4) as calls:
            http = HttpStatus(cluster.control, calls, WorkerLoops(), lambda: True)
            before = cluster.longer()
            http.page({})
            http.metrics()
            cluster.control.chronicle._noted_at_s = None
            cluster.control.note_history()
            own, _ = since(before, cluster.longer())
            before = cluster.longer()
            with cluster.calling():
                began_s = thread_time()
                taken = [duration_s(lambda: http.page({})) for _ in range(ROUNDS)]
                spent_s = (thread_time() - began_s) / ROUNDS
                scraped = [duration_s(http.metrics) for _ in range(ROUNDS)]
            longer, dearer = since(before, cluster.longer())
            body = http.page({}).body
            rack = http.page({"rack": "/rack-000"}).body
        is_true = b"Not whole" in body and b"All " not in body
        own_bytes = memory_of(os.getpid())
    name = f"{NODE_COUNT:,} datanodes, {CONTAINER_COUNT:,} containers, "
    return [
        at_most(name + "page", max(taken), "s", PAGE_S_MAX, compared_with="the longest of 7"),
        Measure(name + "its processor time", spent_s, "s", compared_with="the mean of 7"),
        at_most(name + "its size", len(body), "bytes", PAGE_BYTES_MAX),
        at_most(name + "the page of a rack", len(rack), "bytes", PAGE_BYTES_MAX),
        at_most(name + f"own holds of the lock, longer than {LOCK_S_MAX:g} s", own, "holds", 0),
        at_most(name + f"while others call, of more than {LOCK_S_MAX:g} CPU s", dearer, "holds", 0),
        at_most(name + f"the same, longer than {LOCK_S_MAX:g} s on the wall", longer, "holds", 0),
        at_least(name + "what it says is true", is_true, "yes", 1),
        Measure(name + "a scrape of the metrics", max(scraped), "s"),
        Measure(name + "counting all after a start", counted_s, "s"),
        Measure(name + "memory of the process", own_bytes / 2**20, "MiB"),
    ]


def since(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    """Return the increases of the two counts of holds between two calls of `Cluster.longer`."""
    return after[0] - before[0], after[1] - before[1]


class Cluster:
    """A control plane with the reports of all datanodes except one."""

    def __init__(self, path: Path) -> None:
        """Create a control plane whose state has everything that a page may show."""
        self.clock = FakeClock()
        self.clock.advance_s(40 * 86_400)
        self.state = StateDatabase.open(path, map_bytes=MAP_BYTES)
        for number in range(1, CONTAINER_COUNT + 1):
            state = ContainerState.CLOSED
            container = Container(number, state, COPIES, 5, 1, (), committed_count=1)
            self.state.containers.apply(number, container)
        self.state.counters["next_container_id"] = CONTAINER_COUNT + 1
        for node in range(NODE_COUNT):
            self._hold(node)
        self.control = ControlPlane(
            self.state,
            clock=ScmClock(self.clock.now_ms, self.clock.monotonic_s),
            options=OPTIONS,
            snapshots_path=path / "snapshots",
        )
        self._remember()
        with self.control.access.change() as change:
            for node in range(NODE_COUNT):
                self._register(change, node)
        self.control.safe_mode.leave()
        self.clock.advance_s(OPTIONS.dead_after_ms / 1000 + 1)
        for node in range(NODE_COUNT):
            if node != SILENT:
                self.call(node)
        self.control.note_history()
        freeze_what_stays()  # as suture-scm does after its start

    def call(self, node: int) -> None:
        """Send a heartbeat of a datanode, and mark its replicas as reported, except for one
        datanode."""
        name = node_name(node)
        self.control.datanodes.heartbeat(Heartbeat(name, 1, self._volumes(node), (), (), ()))
        if node != SILENT + 1:
            self.control.reports.confirmed.add(name)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Send heartbeats of datanodes continuously in a thread, during the block."""
        is_over = Event()

        def go_on() -> None:
            node = 0
            while not is_over.is_set():
                self.call(node % SILENT)
                node += 1

        thread = Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def longer(self) -> tuple[int, int]:
        """Return how many holds of the lock were longer than LOCK_S_MAX, and how many used more
        processor time than that. The other long holds waited for a core or the interpreter.
        """
        samples = {
            (sample.name, sample.labels.get("le")): sample.value
            for metric in self.control.meters.registry.collect()
            for sample in metric.samples
        }
        held, spent = (
            int(samples[name, "+Inf"] - samples[name, str(LOCK_S_MAX)])
            for name in (
                "suture_scm_lock_held_seconds_bucket",
                "suture_scm_lock_cpu_seconds_bucket",
            )
        )
        return held, spent

    def _hold(self, node: int) -> None:
        """Add the replicas of a node to the state."""
        stride = NODE_COUNT // COPIES
        if node >= stride * COPIES:
            return
        ids: NDArray[np.int64] = np.arange(
            node % stride or stride, CONTAINER_COUNT + 1, stride, dtype=np.int64
        )
        name = node_name(node)
        one = ReportedReplicas.of(name, [replica(name)])
        rows = np.repeat(one.rows, len(ids))
        rows["container_id"] = ids
        rows["data_scan_at_ms"] = self.clock.now_ms() - 86_400_000
        if node < stride:
            is_damaged = np.isin(ids, np.fromiter(DAMAGED, np.int64))
            unhealthy = tuple(ReplicaState).index(ReplicaState.UNHEALTHY)
            rows["state"][is_damaged] = unhealthy
            rows["finding_count"][is_damaged] = 3
        self.state.replicas.apply_report(rows, ReportedReplicas(name, rows, one.words))

    def _register(self, change: StateChange, node: int) -> None:
        """Register a datanode. One of a thousand datanodes is leaving service."""
        name = node_name(node)
        rack = f"/rack-{node % RACK_COUNT:03d}"
        registration = Registration(
            name, f"{name}.example.org:9859", rack, "0.1.0", "", 1, self._volumes(node)
        )
        self.control.nodes.register(change, registration)
        known = self.state.nodes.get(name)
        if known is not None and node % 1000 == 3:
            change.put(self.state.nodes, replace(known, op_state=OpState.DECOMMISSIONING))

    def _volumes(self, node: int) -> tuple[ReportedVolume, ...]:
        at_ms = self.clock.now_ms()
        return tuple(
            ReportedVolume(
                volume_id=f"{node:05d}-{i:02d}",
                path=f"/data/disk-{i:02d}",
                capacity_bytes=16 * TIB,
                available_bytes=(2 + (node + i) % 12) * TIB,
                used_bytes=4 * TIB,
                container_count=CONTAINER_COUNT * COPIES // NODE_COUNT // VOLUME_COUNT,
                failed=node % 500 == 9 and i == 5,
                oldest_scan_at_ms=at_ms - 3_600_000 * (1 + (node * 7 + i) % 160),
                error="Input/output error" if node % 500 == 9 and i == 5 else "",
                data_bytes=4 * TIB,
                in_time_bytes=4 * TIB - (node + i) % 3,
            )
            for i in range(VOLUME_COUNT)
        )

    def _remember(self) -> None:
        """Fill the status history of the previous weeks."""
        for level, kept in enumerate(LEVELS):
            for i in range(kept.count_max):
                at_ms = (self.clock.now_ms() // kept.length_ms - i) * kept.length_ms
                verdict = tuple(DataVerdict)[i // 7 % 3]
                sample = StatusSample(
                    level, max(i, at_ms), verdict, faulty_count=i, moved_bytes=i * TIB
                )
                self.state.samples.apply(sample.key, sample)


def node_name(node: int) -> str:
    """Return a datanode id of the usual length."""
    return f"{node:08x}-99aa-4b5c-8d7e-{node:012d}"
