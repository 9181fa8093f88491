"""After a node died all its containers are due: they are looked at in portions between ticks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from health.words import HealthState
from merkle.replica import ReplicaState
from scm.api.calls.control import ControlPlane
from scm.main import TickThread
from scm.replication.replication_manager import LOOKS_PER_TURN, ORDERS_AT_ONCE
from scm.state.entities import CommandKind
from scm.state.options import ScmOptions
from suture.runtime.stop_request import StopRequest
from tests.support.control.scm_world import ScmWorld, container, replica

DEADLINE_S = 30.0
COUNT = 2 * LOOKS_PER_TURN + 10
NODES = ("dn1", "dn2", "dn3")
LIMIT = 30  # copies from one node
OPTIONS = ScmOptions(
    heal=False,
    replication_limit=LIMIT,
    stale_after_ms=10_000,
    dead_after_ms=20_000,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """More containers on three nodes than two turns look at, all known to be well."""
    with filled(tmp_path, OPTIONS) as made:
        yield made


@contextmanager
def filled(path: Path, options: ScmOptions) -> Iterator[ScmWorld]:
    """Let the nodes join with their containers; all are looked at."""
    with ScmWorld(path, options).running() as made:
        made.join(*NODES)
        with made.state.change() as change:
            for number in range(1, COUNT + 1):
                change.put(made.state.containers, container(container_id=number))
                change.next_id("next_container_id")
        for node in NODES:
            made.beat(
                node, *(replica(node, container_id=n) for n in range(1, COUNT + 1)), full=True
            )
        made.control.tick()
        while made.control.continue_round():
            pass
        yield made


def not_well(world: ScmWorld) -> int:
    """Return how many containers are found to lack a replica."""
    states = world.control.manager.states()
    lacks = HealthState.UNDER_REPLICATED.name
    return sum(states.of(number) == lacks for number in range(1, COUNT + 1))


def known(world: ScmWorld) -> int:
    """Return of how many containers it is known how they are now, or an order shows that it was."""
    states, commands = world.control.manager.states(), world.state.commands
    return sum(
        states.of(number) is not None or commands.has_any(number) for number in range(1, COUNT + 1)
    )


def fall_silent(world: ScmWorld, *nodes: str) -> None:
    """Let nodes be silent until they count as dead."""
    for _ in range(5):
        world.clock.advance_s(5)
        for other in {node.datanode_id for node in world.state.nodes.values()}.difference(nodes):
            world.call(other)


def let_die(
    world: ScmWorld, node: str, pause: Callable[[float], object] = lambda _took_s: None
) -> None:
    """Let a node be silent until it counts as dead, and tick once."""
    fall_silent(world, node)
    world.control.tick(pause)


def test_containers_left_by_a_tick_are_judged_before_the_next(world: ScmWorld) -> None:
    """Each portion holds the lock once, and at the end no container is left."""
    before = not_well(world)

    let_die(world, "dn3")
    seen = [not_well(world)]
    while world.control.continue_round():
        seen.append(not_well(world))
    seen.append(not_well(world))

    assert 0 == before
    assert [LOOKS_PER_TURN, 2 * LOOKS_PER_TURN, COUNT] == seen
    assert not world.control.continue_round()


def test_judging_between_ticks_sends_no_commands(world: ScmWorld) -> None:
    """Commands belong to ticks, with their limits."""
    let_die(world, "dn3")
    ordered = [
        c.command_id for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE
    ]

    world.control.continue_round()

    now = [c.command_id for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
    assert ordered == now


def test_orders_are_made_in_portions(world: ScmWorld) -> None:
    """Between two of them others have the lock; at the end each container was tried once."""
    seen: list[int] = []

    def ordered(_took_s: float) -> None:
        with world.control.access.lock:  # nobody else holds it now
            pending = world.state.commands.values()
            seen.append(sum(command.kind is CommandKind.REPLICATE for command in pending))

    world.join("dn4")
    let_die(world, "dn3", ordered)

    grown = [after - before for before, after in pairwise([0, *seen])]
    assert 2 * LIMIT == seen[-1]
    assert ORDERS_AT_ONCE == max(grown)


def test_new_rack_makes_all_containers_judged_in_one_round(tmp_path: Path) -> None:
    """A container has no state until then. Each turn's part of the round is judged before the
    next turn, and here that is all of them. Containers with ordered copies are judged once more.
    """
    impatient = OPTIONS.model_copy(update={"check_interval_ms": OPTIONS.heartbeat_interval_ms})
    with filled(tmp_path, impatient) as world:
        world.join("dn4", racks=("/rack-2",))
        world.beat("dn4", full=True)
        world.control.tick()
        seen = [known(world)]
        while world.control.continue_round():
            seen.append(known(world))
        seen.append(known(world))

    assert [LOOKS_PER_TURN, 2 * LOOKS_PER_TURN - len(NODES) * LIMIT, COUNT] == seen


def test_the_most_urgent_of_all_that_is_due_is_ordered_first(world: ScmWorld) -> None:
    """Two nodes die, and of the last container one replica is left: what is due is looked at before
    anything is ordered."""
    world.join("dn4", "dn5")
    world.beat("dn4", replica("dn4", container_id=COUNT), full=True)
    world.beat("dn5", full=True)
    world.beat("dn2", replica("dn2", ReplicaState.DELETED, container_id=COUNT))
    world.control.tick()
    fall_silent(world, "dn3", "dn4")

    def look_on() -> None:
        while world.control.continue_round():
            pass

    world.control.tick(look_on=look_on)

    ordered = {
        c.command_id: c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE
    }
    assert COUNT == ordered[min(ordered)].container_id
    assert len(ordered) > 1


def test_dead_nodes_containers_are_judged_before_those_due_from_a_start(world: ScmWorld) -> None:
    """All containers are due, as after a start, and the dead node's only container would be the
    last. Its copy is ordered in the tick that records the death.
    """
    world.join("dn4", "dn5")
    world.beat("dn4", replica("dn4", container_id=COUNT), full=True)
    world.beat("dn5", full=True)
    world.beat("dn2", replica("dn2", ReplicaState.DELETED, container_id=COUNT))
    world.control.tick()
    while world.control.continue_round():
        pass
    fall_silent(world, "dn4")
    world.control.manager.enqueue(range(1, COUNT + 1))

    world.control.tick()

    ordered = [
        c.container_id for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE
    ]
    assert [COUNT] == ordered
    assert world.control.manager.is_behind


def test_nodes_that_die_together_are_recorded_one_at_a_time(world: ScmWorld) -> None:
    """All containers of each node become due then, and others get the lock in between."""
    world.join("dn4", "dn5")
    world.control.tick()
    fall_silent(world, "dn2", "dn3")
    unnoted: list[int] = []

    world.control.tick(
        lambda _took_s: unnoted.append(len(world.control.nodes.nodes_with_changed_health()))
    )

    assert [1, 0, 0] == unnoted[:3]


def test_in_safe_mode_nothing_is_looked_at(world: ScmWorld) -> None:
    """The state from before a restart justifies no action."""
    world.restart()
    world.control.manager.enqueue(range(1, COUNT + 1))

    assert not world.control.continue_round()
    assert world.control.manager.is_behind


class Behind:
    """A control plane that has three portions more to look at after each tick."""

    def __init__(self) -> None:
        self.left = 0
        self.looked_on = threading.Event()

    def tick(self, _pause: object = None, _look_on: object = None) -> None:
        """Find something."""
        self.left = 3

    def continue_round(self) -> bool:
        """Look at one portion."""
        self.left -= 1
        if not self.left:
            self.looked_on.set()
        return self.left > 0

    def note_history(self, _pause: object = None) -> None:
        """Have nothing to write down."""


def test_the_ticker_looks_on_until_nothing_is_left() -> None:
    """The ticker repeats its check until nothing is left, and not once more."""
    control = Behind()
    ticker = TickThread(cast(ControlPlane, control), interval_s=0.2, on_death=StopRequest())
    ticker.start()

    is_done = control.looked_on.wait(DEADLINE_S)
    ticker.stop()

    assert is_done
    assert 0 == control.left
    assert not ticker.has_failed
