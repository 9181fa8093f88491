"""Closed containers whose last commit is on nobody who is there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.state.facts import ContainerState
from tests.support.control.scm_world import ScmWorld, container, replica

LAST = 5
WHOLE, SHORT, NOWHERE, UNFINISHED, CODED, DYING, DAMAGED = range(1, 8)
HELD = {
    WHOLE: {"dn1": LAST, "dn2": LAST - 1},
    SHORT: {"dn1": LAST - 1, "dn2": LAST - 1},
    UNFINISHED: {"dn1": LAST - 1, "dn2": LAST - 1},
    CODED: {"dn1": LAST - 1, "dn2": LAST - 1},
    DYING: {"dn1": LAST - 1, "dn3": LAST},
    DAMAGED: {"dn1": LAST - 1, "dn2": LAST},
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A container of each kind."""
    with ScmWorld(tmp_path).running() as made:
        made.join("dn1", "dn2", "dn3")
        with made.state.change() as change:
            for number in range(1, DAMAGED + 1):
                is_closed = number != UNFINISHED
                state = ContainerState.CLOSED if is_closed else ContainerState.QUASI_CLOSED
                one = container(state, container_id=number, sequence_id=LAST)
                if number == CODED:
                    one = replace(one, scheme="rs-3-2-1024k", replication_factor=5)
                change.put(made.state.containers, one)
                change.next_id("next_container_id")
                for node, bcsid in HELD.get(number, {}).items():
                    is_bad = (number, node) == (DAMAGED, "dn2")
                    held = replica(
                        node,
                        ReplicaState.UNHEALTHY if is_bad else ReplicaState.CLOSED,
                        container_id=number,
                        bcsid=bcsid,
                    )
                    change.put(made.state.replicas, held)
        yield made


def test_they_are_told_from_those_that_have_it_or_may_yet(world: ScmWorld) -> None:
    """
    Before the end is decided an earlier commit is nothing strange, and what a damaged replica says
    that it has may be mended. What a dead node had is not there.
    """
    look = world.control._parts.judge.look

    alive = look(range(1, DAMAGED + 1))[1].short
    world.clock.advance_s(10 * world.options.dead_after_ms / 1000)
    for node in ("dn1", "dn2"):
        world.call(node)
    world.control.tick()
    later = look(range(1, DAMAGED + 1))[1].short

    assert {SHORT, CODED} == alive
    assert {SHORT, CODED, DYING} == later


def test_they_are_known_until_they_are_looked_at_again(world: ScmWorld) -> None:
    """A look at others says nothing of them. A row that changes is enough to be looked at."""
    manager = world.control._parts.manager
    seen = []

    for number in (WHOLE, SHORT):
        manager.look_on()
        seen.append((set(manager.short), manager.is_behind))
        with world.state.change() as change:
            change.put(world.state.replicas, replica("dn3", container_id=number, bcsid=LAST))
        assert manager.is_behind
    manager.look_on()

    assert [({SHORT, CODED}, False)] * 2 == seen
    assert {CODED} == manager.short
