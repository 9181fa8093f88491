"""Whatever happens to a cluster: a look at all of it finds nothing that was not known."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.administration.decommission import OpStateRequest
from scm.state.entities import OpState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, outcome, replica

NODES = tuple(f"dn{i}" for i in range(6))
RACKS = ("/r0", "/r1")
CONTAINER_COUNT = 4
OPTIONS = ScmOptions(
    stale_after_ms=30_000,
    dead_after_ms=60_000,
    check_interval_ms=10_000,
    heartbeat_interval_ms=10_000,
    close_retry_ms=1_000,
)

node_numbers = st.integers(0, len(NODES) - 1)
container_numbers = st.integers(0, CONTAINER_COUNT - 1)
COPIES = tuple(("copied", node, made) for node in range(6) for made in range(CONTAINER_COUNT))
happenings = st.one_of(
    st.tuples(st.just("silence"), node_numbers, st.just(0)),
    st.tuples(st.just("rack"), node_numbers, st.integers(0, len(RACKS) - 1)),
    st.tuples(st.just("bad"), node_numbers, container_numbers),
    st.tuples(st.just("gone"), node_numbers, container_numbers),
    st.tuples(st.just("copied"), node_numbers, container_numbers),
    st.tuples(st.just("hold"), node_numbers, container_numbers),
    st.tuples(st.just("release"), node_numbers, container_numbers),
    st.tuples(st.just("leave"), node_numbers, st.just(0)),
    st.tuples(st.just("return"), node_numbers, st.just(0)),
    st.tuples(st.just("obey"), node_numbers, st.just(0)),
)


class Cluster:
    """A control plane with a few containers, and what may happen to it."""

    def __init__(self, world: ScmWorld, rack_count: int) -> None:
        self.world = world
        self.silent: set[str] = set()
        world.join(*NODES, racks=RACKS[:rack_count])
        for node in NODES:
            world.beat(node, full=True)
        self.made = [world.made_closed() for _ in range(CONTAINER_COUNT)]
        self.turn()

    def happen(self, what: str, number: int, other: int) -> None:
        """Let one thing happen, and time go by."""
        node, world = NODES[number], self.world
        made = self.made[other % CONTAINER_COUNT]
        states = {"bad": ReplicaState.UNHEALTHY, "gone": ReplicaState.DELETED}
        match what:
            case "silence":
                self.silent ^= {node}
            case "rack":
                world.join(node, racks=(RACKS[other],))
            case "hold" | "release":
                target = node if number % 2 else ""
                holding = world.control.holding
                do = holding.release if what == "release" else holding.hold
                do([made.container_id], target)
            case "leave" | "return":
                state = OpState.IN_SERVICE if what == "return" else OpState.DECOMMISSIONING
                world.control.departure_requests.submit(
                    OpStateRequest((node,), state, is_forced=True)
                )
            case "obey":
                answer = world.call(node)
                world.beat(node, outcomes=tuple(outcome(c) for c, _ in answer.commands))
            case _:
                state = states.get(what, ReplicaState.CLOSED)
                is_there = world.state.replicas.get((made.container_id, node)) is not None
                if is_there or what == "copied":
                    seen = replica(
                        node, state, container_id=made.container_id, bcsid=made.sequence_id
                    )
                    world.beat(node, seen)
        self.turn()

    def turn(self) -> None:
        """Let the nodes that talk call, and the control plane look."""
        self.world.clock.advance_s(10)
        for node in NODES:
            if node not in self.silent:
                self.world.call(node)
        self.world.control.tick()

    def known(self) -> tuple[object, dict[str, object], list[tuple[str, int, str]]]:
        """Return what the control plane thinks of its containers, and what it has ordered."""
        departures = {
            d.node.datanode_id: d.required for d in self.world.control.departures.departures()
        }
        commands: list[PendingCommand] = self.world.state.commands.values()
        orders = sorted((str(c.kind), c.container_id, c.subject_id) for c in commands)
        return self.world.control.queries.report().conditions, dict(departures), orders


@settings(max_examples=12, deadline=None)
@given(rack_count=st.integers(1, 2), history=st.lists(happenings, min_size=4, max_size=14))
@example(rack_count=1, history=[("rack", 0, 1)])
@example(rack_count=1, history=[("rack", 5, 1)])
@example(rack_count=2, history=[("rack", number, 0) for number in range(6)])
@example(rack_count=2, history=[("rack", number, 0) for number in (1, 3)])
@example(rack_count=1, history=[("leave", 0, 0), ("leave", 1, 0), *COPIES, ("obey", 0, 0)])
def test_settled_cluster_is_unchanged_by_a_full_check(
    rack_count: int, history: list[tuple[str, int, int]]
) -> None:
    """Checking all containers again changes neither the report nor the commands."""
    with TemporaryDirectory() as path, ScmWorld(Path(path), OPTIONS).running() as world:
        cluster = Cluster(world, rack_count)
        for what, number, other in history:
            cluster.happen(what, number, other)
        for _ in range(3):
            world.control.tick()
        before = cluster.known()

        world.state.mark_dirty(made.container_id for made in cluster.made)
        for _ in range(3):
            world.control.tick()

        assert before == cluster.known()
