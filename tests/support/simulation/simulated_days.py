"""Scripted days of a simulated cluster, which must heal after each event.

The script starts from a seeded state. It makes every call of the simulated datanodes to the control
plane (a process) one after another, and moves the control plane's clock. All commands are judged
when they arrive. The same seed gives the same commands, of which `World.orders` is a digest.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from merkle.replica import ReplicaState
from scm.state.database import StateDatabase
from scm.state.entities import Container, ContainerState
from suture.ec.scheme import parse_scheme
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.simulation.simulated_nodes import CAPACITY_BYTES, SimulatedNode
from tests.support.simulation.simulated_scm import SimulatedScm
from tests.support.simulation.simulated_world import World, replica_report

EPOCH_MS: Final = 1_800_000_000_000
HOUR_S: Final = 3_600.0
SETTINGS: Final = {
    "heartbeat_interval_ms": 10_000,
    "stale_after_ms": 300_000,
    "dead_after_ms": 600_000,
    "check_interval_ms": 300_000,
    "safemode_wait_ms": 60_000,
    "close_retry_ms": 5_000,
    "session_idle_ms": 600_000,
}
BUSY_STEP_S: Final = 10.0
SLOW_STEP_S: Final = 30.0  # Ozone's heartbeat interval, for long waits
QUIET_STEP_S: Final = 150.0  # when idle: half of the time until STALE, as calls may be lost
NIGHT_STEP_S: Final = 290.0  # slightly less than the time until STALE; needs that no call is lost
SLICES: Final = 10  # share of a step over which the calls of nodes are spread

# (scheme, percent of the containers); the rest are whole copies with three replicas
SCHEMES: Final = (("rs-3-2-1024k", 14), ("rs-6-3-1024k", 8), ("rs-10-4-1024k", 3))
ODD_PERCENT: Final = 1  # percentage of containers in each of: open, quasi-closed, empty

_WIRE: Final = {
    ReplicaState.OPEN: container_pb2.OPEN,
    ReplicaState.QUASI_CLOSED: container_pb2.QUASI_CLOSED,
    ReplicaState.CLOSED: container_pb2.CLOSED,
}


@dataclass
class Days:
    """A simulated cluster and its control plane. Its methods cause events, wait, and query the
    state."""

    path: Path
    seed: int
    node_count: int
    rack_count: int
    container_count: int
    settings: dict[str, int] = field(default_factory=dict)
    empty_count: int = 0  # empty nodes at the beginning
    capacity_bytes: int = CAPACITY_BYTES
    slices: int = SLICES
    day_s: float = 0.0  # minimum length of a day; nothing happens in its remainder
    evenings: list[str] = field(default_factory=list)  # digests of all orders until then
    tick_s_most: float = 0.0
    tick_s_since: float = 0.0
    scm_cpu_s: float = 0.0  # of all control planes that have ended
    steps: int = 0

    @contextmanager
    def running(self) -> "Iterator[Days]":
        """Start the cluster, and yield it. At the end of the block, kill the control plane."""
        self.start()
        try:
            yield self
        finally:
            self.end_scm()

    def start(self) -> None:
        """Create the cluster's state, start the control plane on it, and send the reports of all
        nodes."""
        settings = SETTINGS | self.settings
        self.world: World[SimulatedNode] = World(
            self.seed,
            in_flight_limit=self.in_flight_limit(),
            believed_s=settings["stale_after_ms"] / 1000,
        )
        for i in range(self.node_count):
            name = f"dn{i:03d}"
            rack = f"/rack{i % self.rack_count}"
            self.world.nodes[name] = self.make_node(name, rack)
        self.kinds = lay_out(self)
        self.start_scm()
        for node in self.living():
            node.register()

    def make_node(self, name: str, rack: str) -> SimulatedNode:
        """Return a datanode without replicas."""
        return SimulatedNode(self.world, name, rack, capacity_bytes=self.capacity_bytes)

    def start_scm(self) -> None:
        """Start the control plane, and give its address to the nodes.

        After a restart, the nodes do not know that it is a new process. The control plane makes
        them register.
        """
        settings = SETTINGS | self.settings
        self.scm = SimulatedScm.start(self.path, self.now_ms, settings)
        channel = grpc.insecure_channel(self.scm.address)
        self.world.stub = Stub(channel, SCM)

    @property
    def now_ms(self) -> int:
        """Wall time in the simulation."""
        return EPOCH_MS + int(self.world.now_s * 1000)

    def living(self) -> list[SimulatedNode]:
        """Return the nodes that are alive."""
        return [node for node in self.world.nodes.values() if node.is_alive]

    def step(self, seconds: float = BUSY_STEP_S) -> None:
        """Simulate `seconds` of time, in which every living node sends one heartbeat."""
        nodes = list(self.world.nodes.values())
        for first in range(self.slices):
            self.world.now_s += seconds / self.slices
            self._advance(int(seconds / self.slices * 1000))
            for node in nodes[first :: self.slices]:
                if node.is_alive:
                    node.beat()
        self.steps += 1

    def _advance(self, milliseconds: int) -> None:
        took_s = self.scm.advance(milliseconds)
        self.tick_s_most = max(self.tick_s_most, took_s)
        self.tick_s_since += took_s

    def pass_time(self, seconds: float, step_s: float = QUIET_STEP_S) -> None:
        """Simulate `seconds` of time, with long steps because nothing is expected to happen."""
        end_s = self.world.now_s + seconds
        while self.world.now_s < end_s:
            self.step(min(step_s, end_s - self.world.now_s))

    def end_day(self) -> int:
        """Simulate the rest of the day in a healed state; return the number of replicas that were
        ordered to be made or removed during this time."""
        self.evenings.append(self.world.orders.hexdigest())
        before = self.copies_ordered() + self.world.counts["delete"]
        loss_percent, self.world.loss_percent = self.world.loss_percent, 0
        left_s = self.day_s - self.world.now_s % self.day_s if self.day_s else 0
        self.pass_time(left_s, NIGHT_STEP_S)
        self.world.loss_percent = loss_percent
        return self.copies_ordered() + self.world.counts["delete"] - before

    def run_until(
        self, condition: Callable[[], bool], *, within_s: float, step_s: float = BUSY_STEP_S
    ) -> float:
        """Simulate steps until the condition is true; return the simulated seconds that this took.
        Raise AssertionError if it takes `within_s` or more."""
        began_s = self.world.now_s
        while not condition():
            assert self.world.now_s - began_s < within_s, f"not within {within_s} s: {self.why()}"
            self.step(step_s)
        return self.world.now_s - began_s

    # State.

    def queues(self) -> scm_pb2.GetQueuesResponse:
        """Return the control plane's queues."""
        queues: scm_pb2.GetQueuesResponse = self.world.stub.GetQueues(scm_pb2.GetQueuesRequest())
        return queues

    def is_idle(self) -> bool:
        """Return True if nothing is queued or running, at the control plane or at a node."""
        if any(node.tasks for node in self.living()):
            return False
        found = self.queues()
        waiting = found.under_replicated_count + found.over_replicated_count
        return not waiting and not found.pending_add_count

    def is_healed(self) -> bool:
        """Return True if every container is healthy, both in the nodes' data and in the control
        plane's report."""
        return self.is_idle() and not self.unhealthy_containers() and not self.conditions()

    def conditions(self) -> dict[str, int]:
        """Return the problems in the control plane's report."""
        report = self.world.stub.GetReport(scm_pb2.GetReportRequest())
        return {sample.condition: sample.count for sample in report.conditions}

    def unhealthy_containers(self) -> list[str]:
        """Return the containers that do not have the expected number of healthy replicas of each
        index on living nodes in service, judged by the nodes' data."""
        wrong = []
        for container_id, indexes in self.kinds.items():
            found: Counter[int] = Counter()
            for name in self.world.holders.get(container_id, ()):
                node = self.world.nodes[name]
                replica = node.replicas[container_id]
                counts = node.is_alive and node.op_state in {"", "IN_SERVICE"}
                if counts and replica.state == container_pb2.CLOSED:
                    found[replica.replica_index] += 1
            if found != indexes:
                wrong.append(f"{container_id}: {dict(found)} of {dict(indexes)}")
        return wrong

    def why(self) -> str:
        """Return a text with the problems of containers, queues and departures."""
        found = self.queues()
        return (
            f"{len(self.unhealthy_containers())} containers, as "
            f"{self.unhealthy_containers()[:3]}; {self.conditions()}; "
            f"under {found.under_replicated_count}, over {found.over_replicated_count}, "
            f"adds {found.pending_add_count}; departures {self.departures()}"
        )

    def on_rack(self, number: int) -> list[str]:
        """Return the nodes of a rack, by name."""
        return [name for name, node in self.world.nodes.items() if node.rack == f"/rack{number}"]

    def copies_ordered(self) -> int:
        """Return the number of copies and reconstructions that were ordered from nodes so far."""
        return self.world.counts["replicate"] + self.world.counts["reconstruct"]

    def departures(self) -> dict[str, str]:
        """Return the nodes that are not in service, and their states."""
        answer = self.world.stub.ListDecommissions(scm_pb2.ListDecommissionsRequest())
        return {d.datanode_id: d.op_state for d in answer.departures}

    def switch_off_ready(self) -> set[str]:
        """Return the nodes that the control plane reports as safe to stop."""
        answer = self.world.stub.ListDecommissions(scm_pb2.ListDecommissionsRequest())
        return {d.datanode_id for d in answer.departures if d.safe_to_stop}

    def health(self) -> Counter[str]:
        """Return the number of nodes in each health state."""
        answer = self.world.stub.ListNodes(scm_pb2.ListNodesRequest())
        return Counter(node.health for node in answer.nodes)

    # Events.

    def kill(self, names: Sequence[str]) -> None:
        """Stop nodes, so that they no longer send heartbeats."""
        for name in names:
            self.world.nodes[name].fall_silent()

    def revive(self, names: Sequence[str]) -> None:
        """Restart nodes with all their replicas."""
        for name in names:
            self.world.nodes[name].restart()

    def end_scm(self) -> None:
        """Kill the control plane, and add its CPU time to the total."""
        try:
            self.scm_cpu_s += self.scm.cpu_s()
        finally:
            self.scm.kill()

    def kill_scm(self) -> None:
        """Kill the control plane and start it again."""
        self.end_scm()
        self.start_scm()

    def set_state(self, names: Sequence[str], op_state: str, *, for_s: float = 0) -> None:
        """Request an operational state of nodes. Fail if the control plane refuses it."""
        answer = self.world.stub.SetOperationalStates(
            scm_pb2.SetOperationalStatesRequest(
                datanode_ids=names,
                op_state=op_state,
                op_expiry_ms=self.now_ms + int(for_s * 1000) if for_s else 0,
            )
        )
        refused = {d.code: d.message for d in answer.decisions if d.code != "OK"}
        assert not refused, refused

    def corrupt(self, count: int) -> None:
        """Make `count` replicas corrupt, at most one per container."""
        wanted = self.world.chance.sample(sorted(self.kinds), count)
        for container_id in wanted:
            names = sorted(self.world.holders.get(container_id, ()))
            alive = [name for name in names if self.world.nodes[name].is_alive]
            if not alive:
                continue
            node = self.world.nodes[self.world.chance.choice(alive)]
            bad = container_pb2.ReplicaReport()
            bad.CopyFrom(node.replicas[container_id])
            bad.state = container_pb2.UNHEALTHY
            bad.tree.root, bad.tree.generation, bad.finding_count = 8, 2, 1
            node.put(bad)

    def first_orders_after_death(self) -> float:
        """Return the simulated seconds from the time when nodes are declared dead until the first
        copies are ordered.

        Nodes must be silent when this method is called. It simulates steps until the nodes are
        declared dead and copies are ordered.
        """
        before = self.health()["DEAD"]
        self.run_until(self._is_about_to_die, within_s=HOUR_S, step_s=60)
        self.world.first_order_s.clear()
        declared_s = None
        nodes = list(self.world.nodes.values())
        for index in range(600):
            self.world.now_s += 1
            if declared_s is None:
                self.tick_s_since = 0.0
            self._advance(1_000)
            if declared_s is None and self.health()["DEAD"] > before:
                declared_s = self.world.now_s
            for node in nodes[index % SLICES :: SLICES]:
                if node.is_alive:
                    node.beat()
            if self.world.first_order_s and declared_s is not None:
                return min(self.world.first_order_s.values()) - declared_s
        raise AssertionError("no copy was ordered for what a dead node had")

    def _is_about_to_die(self) -> bool:
        settings = SETTINGS | self.settings
        answer = self.world.stub.ListNodes(scm_pb2.ListNodesRequest())
        silent_ms = [
            self.now_ms - node.last_heartbeat_at_ms
            for node in answer.nodes
            if node.health == "STALE"
        ]
        return max(silent_ms, default=0) > settings["dead_after_ms"] - 65_000

    def in_flight_limit(self) -> int:
        """Return the maximum number of replicas in flight, with all nodes healthy."""
        percent = (SETTINGS | self.settings).get("inflight_factor_percent", 75)
        return -(-self.node_count * 20 * percent // 100)


def lay_out(days: Days) -> dict[int, Counter[int]]:
    """Write the state of a healthy cluster to the disk, and store the replicas on the nodes.

    Return the expected number of healthy replicas of each index, by container.
    """
    chance = random.Random(days.seed)
    by_rack: dict[str, list[SimulatedNode]] = {}
    for node in list(days.world.nodes.values())[days.empty_count :]:
        by_rack.setdefault(node.rack, []).append(node)
    kinds: dict[int, Counter[int]] = {}
    state = StateDatabase.open(days.path, map_bytes=1024**3)
    try:
        with state.change() as change:
            for _ in range(days.container_count):
                container_id = change.next_id("next_container_id")
                container, replica_state, is_empty = _container(chance, container_id)
                change.put(state.containers, container)
                indexes = (
                    range(1, container.replication_factor + 1) if container.scheme else [0] * 3
                )
                days.world.data_counts[container_id] = container.data_count
                size_bytes = chance.randrange(10**8, 5 * 10**9)
                for node, index in zip(_nodes(chance, by_rack, len(indexes)), indexes, strict=True):
                    replica = replica_report(
                        container_id,
                        state=_WIRE[replica_state],
                        index=index,
                        used_bytes=size_bytes,
                        is_empty=is_empty,
                    )
                    node.put(replica)
                kinds[container_id] = Counter() if is_empty else Counter(indexes)
    finally:
        state.close()
    return kinds


def _container(chance: random.Random, container_id: int) -> tuple[Container, ReplicaState, bool]:
    draw = chance.randrange(100)
    scheme = ""
    for name, percent in SCHEMES:
        if 0 <= draw < percent:
            scheme = name
        draw -= percent
    odd = -1 if scheme else draw // ODD_PERCENT
    state, replica_state = {
        0: (ContainerState.OPEN, ReplicaState.OPEN),
        1: (ContainerState.QUASI_CLOSED, ReplicaState.QUASI_CLOSED),
    }.get(odd, (ContainerState.CLOSED, ReplicaState.CLOSED))
    made = Container(
        container_id=container_id,
        state=state,
        replication_factor=parse_scheme(scheme).shard_count if scheme else 3,
        sequence_id=5,
        state_since_ms=EPOCH_MS,
        pipeline=(),
        client_id="writer" if state is ContainerState.OPEN else "",
        committed_count=1,
        scheme=scheme,
    )
    return made, replica_state, odd == 2


def _nodes(
    chance: random.Random, by_rack: dict[str, list[SimulatedNode]], count: int
) -> list[SimulatedNode]:
    """Return `count` random nodes, evenly distributed over all racks."""
    racks = sorted(by_rack)
    chosen: list[SimulatedNode] = []
    while len(chosen) < count:
        for rack in chance.sample(racks, min(len(racks), count - len(chosen))):
            free = [node for node in by_rack[rack] if node not in chosen]
            chosen.append(chance.choice(free))
    return chosen


def first_day(days: Days) -> dict[str, float]:
    """Simulate a day on which nodes of one rack die, and return with all their replicas after their
    replicas were replaced. Return measured durations by name."""
    dying = days.on_rack(0)[: max(1, days.node_count // 50)]
    days.run_until(days.is_healed, within_s=2 * HOUR_S, step_s=60)
    days.world.loss_percent = 2
    days.kill(dying)
    measured = {
        "dead to first orders": days.first_orders_after_death(),
        "computing until the first orders": days.tick_s_since,
        "healed after deaths": days.run_until(days.is_healed, within_s=6 * HOUR_S),
    }
    days.revive(dying)  # with all their replicas, which are now surplus
    measured["cleared after returns"] = days.run_until(days.is_healed, within_s=6 * HOUR_S)
    measured["orders on the first evening"] = days.end_day()
    return measured


def second_day(days: Days) -> dict[str, float]:
    """Simulate a day on which nodes are decommissioned, the control plane is killed, and all nodes
    of a rack go into maintenance. Return measured durations by name."""
    leaving = days.on_rack(1)[: max(1, days.node_count // 50)]
    resting = days.on_rack(2)
    days.set_state(leaving, "DECOMMISSIONING")
    for _ in range(6):
        days.step()
    days.kill_scm()
    measured = {
        "decommissioned": days.run_until(
            lambda: set(leaving) <= days.switch_off_ready(),
            within_s=6 * HOUR_S,
            step_s=SLOW_STEP_S,
        )
    }
    days.kill(leaving)
    days.set_state(resting, "ENTERING_MAINTENANCE", for_s=8 * HOUR_S)
    measured["maintenance entered"] = days.run_until(
        lambda: set(resting) <= days.switch_off_ready(), within_s=4 * HOUR_S
    )
    copies = days.copies_ordered()
    days.kill(resting)
    days.pass_time(6 * HOUR_S)
    measured["copies while they rest"] = days.copies_ordered() - copies
    days.revive(resting)
    days.pass_time(2 * HOUR_S)  # their maintenance ends by itself
    measured["back from maintenance"] = days.run_until(days.is_healed, within_s=6 * HOUR_S)
    measured["orders on the second evening"] = days.end_day()
    return measured


def third_day(days: Days) -> dict[str, float]:
    """Simulate a day on which replicas become corrupt, two nodes die, and the control plane is
    killed during the reconstructions. Return measured durations by name."""
    days.corrupt(max(5, days.container_count // 100))
    dying = days.on_rack(3)[:2]
    days.kill(dying)
    days.pass_time(600)
    before = days.world.counts["reconstruct"]
    days.run_until(lambda: days.world.counts["reconstruct"] > before, within_s=600)
    days.step()
    days.kill_scm()  # while shards are rebuilt
    days.step()
    days.revive(dying[:1])
    measured = {"all healed": days.run_until(days.is_healed, within_s=6 * HOUR_S)}
    days.revive(dying[1:])
    measured["cleared after the last return"] = days.run_until(days.is_healed, within_s=6 * HOUR_S)
    measured["orders on the third evening"] = days.end_day()
    return measured
