"""Measures the judge alone, and the control plane's check of a large cluster after a node died.

The judge gets the unusual containers that the tests draw, in batches as large as those of the Spark
job. Verdicts alone, and verdicts with actions, are timed separately. The control plane is the real
one with a million containers. The last node of a rack dies. This changes the required number of
racks for all containers, so all their states are unknown until they are checked again. The
benchmark measures these checks, and whether the containers that lost their second replica are
copied first. The times are processor seconds of one core, which do not include other work of the
machine. The control plane's own histograms show how long its lock was held, in wall time and in
processor time of the holder.

`SCM_CONTAINERS=100000 make bench NAME=judge` is a smaller cluster; its bound shrinks with it.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.control.bench_scm import (
    CLUSTER_NODES,
    CONTAINER_COUNT,
    MAP_BYTES,
    held_by,
    memory_of,
    write_state,
)
from bench.measure import Measure, at_least, at_most
from health.batch import ContainerBatch
from health.judge import diagnose, judge
from health.rules import Rules
from merkle.replica import ReplicaState
from scm.api.call_values import Heartbeat
from scm.api.calls.control import ControlPlane
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import NodeReplicaReport
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.entities import NodeHealthState
from scm.state.options import ScmOptions
from suture.observe import logs
from suture.runtime.gil_tuning import freeze_what_stays
from tests.support.clock import FakeClock
from tests.support.control.scm_world import replica, volume
from tests.support.verification.judged import cut
from tests.support.verification.random_clusters import RACK_COUNT, random_cluster
from tests.support.verification.snapshots import ReplicaRow, SnapshotRows

SUSPECTS: Final = 17_000  # containers, with nearly 50,000 replicas
ROUNDS: Final = 25
RATE_MIN: Final = 1_000_000
LOOK_S_MAX: Final = 20.0
LOOK_CONTAINERS: Final = 1_000_000
LOCK_S_MAX: Final = 0.1
SEED: Final = 1
DYING: Final = "dn000"
HOLDER: Final = "dn100"  # of the same containers
OPTIONS: Final = ScmOptions(
    heartbeat_interval_ms=1_000,
    stale_after_ms=3_000,
    dead_after_ms=5_000,
    # A smaller cluster is checked in less time, so that each step checks as many as in a large one.
    check_interval_ms=max(1_000, 300_000 * CONTAINER_COUNT // LOOK_CONTAINERS),
)
TURNS: Final = OPTIONS.check_interval_ms // OPTIONS.heartbeat_interval_ms + 1
"""Number of simulated seconds in which all containers are checked."""

RESTED_TURNS: Final = 20
SILENT_TURNS: Final = OPTIONS.dead_after_ms // OPTIONS.heartbeat_interval_ms + 1  # until dead
URGENT: Final = tuple(held_by(0))[-10:]
"""Containers that lose a replica just before a node with another of their replicas dies. They have
the highest ids, so that they are not first by their order alone."""


def measures() -> list[Measure]:
    """Measure the judge, then the control plane."""
    logs.configure("error")
    return [*judge_measures(), *look_measures()]


def judge_measures() -> list[Measure]:
    """Measure how many replicas the judge processes per second on one core."""
    batch = suspects()
    count = len(batch.replicas.node)
    rules = Rules(rack_count=RACK_COUNT)
    told_s = cpu_s(lambda: diagnose(batch, rules))
    judged_s = cpu_s(lambda: judge(batch, rules))
    name = f"judge, {count:,} replicas of suspects, "
    return [
        at_least(name + "how they are", count / told_s, "replicas/s", RATE_MIN),
        at_least(name + "and what follows", count / judged_s, "replicas/s", RATE_MIN),
    ]


def suspects() -> ContainerBatch:
    """Return containers with all kinds of problems. Their roots use all 64 bits, like real
    roots."""
    draw = random.Random(SEED)  # noqa: S311 - no secret
    rows = random_cluster(draw, SUSPECTS)
    own = [draw.getrandbits(63) for _ in range(SUSPECTS + 1)]
    return cut(
        SnapshotRows(
            rows.containers,
            [with_root(row, own[row.container_id]) for row in rows.replicas],
            rows.nodes,
            rows.pending_ops,
        )
    ).batch


def with_root(row: ReplicaRow, own: int) -> ReplicaRow:
    """Return a replica with its small root replaced by a large root, which differs between
    containers."""
    return row if row.root is None else replace(row, root=own ^ row.root << 32)


def cpu_s(action: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds, as the minimum of several calls, because
    other work can only increase it."""
    action()
    taken = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        action()
        taken.append(time.process_time() - began_s)
    return min(taken)


class Cluster:
    """A control plane with a large cluster, whose nodes send empty heartbeats."""

    def __init__(self, path: Path) -> None:
        """Start the control plane on the written state, with safe mode off and all nodes
        present."""
        self.clock = FakeClock()
        self.state = StateDatabase.open(path, map_bytes=MAP_BYTES)
        self.control = ControlPlane(
            self.state,
            clock=ScmClock(self.clock.now_ms, self.clock.monotonic_s),
            options=OPTIONS,
            snapshots_path=path / "snapshots",
        )
        self.nodes = [f"dn{i:03d}" for i in range(CLUSTER_NODES)]
        for i, node in enumerate(self.nodes):
            rack = "/alone" if node == DYING else f"/rack-{3 * i // CLUSTER_NODES}"
            self.control.datanodes.register(
                Registration(node, f"{node}:1", rack, "0.1.0", "", 1, (volume(),))
            )
        # Counted for pages now, so that no later call waits for it.
        self.control.queries.count_containers()
        self.control.safe_mode.leave()
        freeze_what_stays()  # as suture-scm does after its start

    def turn(self, *silent: str) -> float:
        """Simulate a second, in which all nodes except `silent` send heartbeats. Return the
        processor time of the tick and of the checks before and after its commands. As in
        `scm.main.TickThread`, the checks take at most half a second each.
        """
        self.clock.advance_s(1)
        for node in self.nodes:
            if node not in silent:
                self.call(node)
        began_s = time.process_time()
        self.control.tick(look_on=self.look_on)
        self.look_on()
        return time.process_time() - began_s

    def look_on(self) -> None:
        """Check due containers for half the time between two ticks."""
        until_s = time.process_time() + OPTIONS.heartbeat_interval_ms / 2_000
        while time.process_time() < until_s and self.control.continue_round():
            pass

    def call(self, node: str, *reports: NodeReplicaReport) -> None:
        """Send a heartbeat of a node, with these reports."""
        self.control.datanodes.heartbeat(Heartbeat(node, 1, (volume(),), reports, (), ()))

    def lose(self, node: str, container_ids: Iterable[int]) -> None:
        """Send a report of a node that its replicas of these containers are deleted."""
        gone = (replica(node, ReplicaState.DELETED, container_id=n) for n in container_ids)
        self.call(node, NodeReplicaReport(False, 1, 0, is_last=True, replicas=tuple(gone)))

    def known(self) -> int:
        """Return how many containers were checked since their last change, or have a pending
        command.
        """
        states, commands = self.control.manager.states(), self.state.commands
        return sum(
            states.of(n) is not None or commands.has_any(n) for n in range(1, CONTAINER_COUNT + 1)
        )

    def first_ordered(self) -> set[int]:
        """Return the containers of the first commands, as many as there are urgent containers."""
        ordered = sorted(self.state.commands.values(), key=lambda command: command.command_id)
        return {command.container_id for command in ordered[: len(URGENT)]}

    def is_dead(self) -> bool:
        """Return True if the dying node is dead for the control plane."""
        return self.control.queries.nodes()[0].health is NodeHealthState.DEAD

    def holds(self) -> tuple[int, int, int]:
        """Return three counts of holds of the lock: all holds, holds longer than LOCK_S_MAX, and
        holds with more processor time than LOCK_S_MAX.
        """
        samples = {
            (sample.name, sample.labels.get("le")): sample.value
            for metric in self.control.meters.registry.collect()
            for sample in metric.samples
        }
        held, spent = (
            "suture_scm_lock_held_seconds_bucket",
            "suture_scm_lock_cpu_seconds_bucket",
        )
        count = samples[held, "+Inf"]
        longer, dearer = (count - samples[name, str(LOCK_S_MAX)] for name in (held, spent))
        return int(count), int(longer), int(dearer)


def look_measures() -> list[Measure]:
    """Measure the checks of all containers after a node has died."""
    with tempfile.TemporaryDirectory(prefix="suture-judge-") as scratch:
        write_state(Path(scratch))
        cluster = Cluster(Path(scratch))
        first = [cluster.turn() for _ in range(TURNS)]
        rested = [cluster.turn() for _ in range(RESTED_TURNS)]
        before = cluster.holds()
        for _ in range(SILENT_TURNS - 1):
            cluster.turn(DYING)
        cluster.lose(HOLDER, URGENT)
        after = [cluster.turn(DYING)]
        assert cluster.is_dead(), "it was silent for long enough"
        is_urgent_first = cluster.first_ordered() == set(URGENT)
        known_then = cluster.known()
        after += [cluster.turn(DYING) for _ in range(TURNS)]
        holds, longer, dearer = (
            after_death - at_rest
            for after_death, at_rest in zip(cluster.holds(), before, strict=True)
        )
        known = cluster.known()
        unhealthy = cluster.control.queries.figures().unhealthy
        own_bytes = memory_of(os.getpid())
    assert unhealthy == {"UNDER_REPLICATED": len(held_by(0))}, f"all were looked at: {unhealthy}"
    assert known_then < CONTAINER_COUNT, "nothing was known of any when the node had died"
    name = f"control plane, {CONTAINER_COUNT:,} containers, "
    bound_s = LOOK_S_MAX * CONTAINER_COUNT / LOOK_CONTAINERS
    return [
        Measure(name + "first look at all", sum(first), "CPU s"),
        Measure(name + "a turn at rest", statistics.median(rested), "CPU s"),
        at_least(name + "looked at again after a death", known, "containers", CONTAINER_COUNT),
        at_least(name + "the most urgent ordered first", is_urgent_first, "yes", 1),
        at_most(name + "all again after a death", sum(after), "CPU s", bound_s),
        Measure(name + "longest turn after a death", max(after), "CPU s"),
        Measure(name + "holds of the lock", holds, "holds"),
        at_most(name + f"longer than {LOCK_S_MAX:g} s", longer, "holds", 0),
        at_most(name + f"of more than {LOCK_S_MAX:g} CPU s", dearer, "holds", 0),
        Measure(name + "memory of the process", own_bytes / 2**20, "MiB"),
    ]
