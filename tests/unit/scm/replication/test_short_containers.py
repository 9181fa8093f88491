"""Closed containers whose last commit is on nobody who is there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.state.entities import ContainerState
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


def test_containers_short_of_their_last_commit_are_found(world: ScmWorld) -> None:
    """Before the close is decided, an earlier commit is normal, and a damaged replica that
    claims the commit may be repaired. Replicas of a dead node are not there.
    """
    look = world.control.judge.summarize_health

    alive = look(range(1, DAMAGED + 1))[1].short
    world.clock.advance_s(10 * world.options.dead_after_ms / 1000)
    for node in ("dn1", "dn2"):
        world.call(node)
    world.control.tick()
    later = look(range(1, DAMAGED + 1))[1].short

    assert {SHORT, CODED} == alive
    assert {SHORT, CODED, DYING} == later


def test_short_containers_are_remembered_until_the_next_look(world: ScmWorld) -> None:
    """A look at other containers does not change them. A changed row makes a container due."""
    manager = world.control.manager
    seen = []

    for number in (WHOLE, SHORT):
        manager.check_next()
        seen.append((set(manager.short), manager.is_behind))
        with world.state.change() as change:
            change.put(world.state.replicas, replica("dn3", container_id=number, bcsid=LAST))
        assert manager.is_behind
    manager.check_next()

    assert [({SHORT, CODED}, False)] * 2 == seen
    assert {CODED} == manager.short
