"""Containers that lack a replica for which there is no datanode: they are not tried in vain, and
are copied as soon as one can take them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.decommission import OpStateRequest
from scm.api.call_values import Heartbeat
from scm.state.entities import ASKED, CommandKind, Hold, OpState
from scm.state.options import ScmOptions
from tests.support.control.scm_world import (
    ScmWorld,
    confirm,
    container,
    pass_time,
    replica,
    volume,
)

HOLDERS = ("dn1", "dn2")
COUNT = 5
DAY_MS = 86_400_000
OPTIONS = ScmOptions(
    stale_after_ms=10_000,
    dead_after_ms=DAY_MS,
    check_interval_ms=DAY_MS,  # rounds get nowhere while a test lasts
    container_bytes_max=1024**2,
    repair_grace_ms=2_000,
    heal=False,
)


@contextmanager
def filled(path: Path, count: int) -> Iterator[ScmWorld]:
    """Let two datanodes hold so many containers, beside one that leaves and one that is full: each
    container lacks a replica."""
    with ScmWorld(path, OPTIONS).running() as made:
        made.join(*HOLDERS, "leaves", "full")
        with made.state.change() as change:
            for number in range(1, count + 1):
                change.put(made.state.containers, container(container_id=number))
                change.next_id("next_container_id")
        for node in HOLDERS:
            held = (replica(node, container_id=n) for n in range(1, count + 1))
            made.beat(node, *held, full=True)
        confirm(made, "leaves", "full")
        made.control.departure_requests.submit(OpStateRequest(("leaves",), OpState.DECOMMISSIONING))
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Few of them."""
    with filled(tmp_path, COUNT) as made:
        yield made


def turn(
    world: ScmWorld, *, free_bytes: int = 0, alive: Sequence[str] = (*HOLDERS, "leaves")
) -> None:
    """Let a second pass; the full datanode says what it has free."""
    world.clock.advance_s(1)
    world.keep_alive(*alive)
    free = volume(available_bytes=free_bytes)
    world.control.datanodes.heartbeat(Heartbeat("full", 1, (free,), (), (), (), None, 0))
    world.control.tick()
    while world.control.continue_round():
        pass


def tries(world: ScmWorld) -> int:
    """Return how often containers were tried so far."""
    return sum(count for _weight, count in world.control.manager.under.values())


def copies(world: ScmWorld) -> dict[int, str]:
    """Return the targets of the copies that are ordered, by container."""
    commands = world.state.commands.values()
    return {c.container_id: c.target_id for c in commands if c.kind is CommandKind.REPLICATE}


def test_containers_without_a_possible_target_are_not_retried(tmp_path: Path) -> None:
    """With tens of thousands of them, the retries took half of each second, and the lock. Only
    those that the regular round reaches, here one in a turn, are retried.
    """
    with filled(tmp_path, 100) as world:
        for _ in range(3):
            turn(world)
        early = tries(world)
        for _ in range(20):
            turn(world)
        late, lacking = tries(world), len(world.control.manager.under)
        ordered = copies(world)

    assert 100 == lacking
    assert late - early <= 20
    assert {} == ordered


def joins(world: ScmWorld) -> str:
    """Let a new datanode come."""
    world.join("new")
    turn(world)
    return "new"


def has_room(world: ScmWorld) -> str:
    """Let the full one have room."""
    turn(world, free_bytes=1024**3)
    return "full"


def stays(world: ScmWorld) -> str:
    """Take the one back that was to leave."""
    request = OpStateRequest(("leaves",), OpState.IN_SERVICE)
    world.control.departure_requests.submit(request)
    turn(world)
    return "leaves"


@pytest.mark.parametrize("comes", [joins, has_room, stays])
def test_containers_are_copied_when_a_target_appears(
    world: ScmWorld, comes: Callable[[ScmWorld], str]
) -> None:
    """All of them are copied in the next turn, also if the target was there before and left."""
    for _ in range(5):
        turn(world)
    before = copies(world)
    target = comes(world)

    assert {} == before
    assert dict.fromkeys(range(1, COUNT + 1), target) == copies(world)


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_target_may_fill_up_and_have_room_again(world: ScmWorld, turns: int) -> None:
    """The target had room for others, has none when the next container lacks a replica, and then
    has some again.
    """
    for free_bytes in (0, 0, 1024**3):
        turn(world, free_bytes=free_bytes)
    others = set(copies(world))
    with world.state.change() as change:
        change.put(world.state.containers, container(container_id=COUNT + 1))
        change.next_id("next_container_id")
    for node in HOLDERS:
        world.beat(node, replica(node, container_id=COUNT + 1))
    for _ in range(turns):
        turn(world)
    before = set(copies(world))
    has_room(world)

    assert set(range(1, COUNT + 1)) == others == before
    assert "full" == copies(world)[COUNT + 1]


def test_container_blocked_by_a_held_double_shard_is_looked_at_again(tmp_path: Path) -> None:
    """One of two equal shards may be deleted when an operator releases them, which no other
    event announces.
    """
    nodes = tuple(f"dn{number}" for number in range(1, 6))
    box = replace(container(replication_factor=5), scheme="rs-3-2-1024k")
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*nodes)
        with world.state.change() as change:
            change.put(world.state.containers, box)
            for _ in range(100):  # the round is long with others, and comes to this one once
                change.next_id("next_container_id")
            for node in ("dn4", "dn5"):
                change.put(world.state.holds, Hold(1, node, 1, ASKED))
        for node, index in zip(nodes, (1, 2, 3, 4, 4), strict=True):
            world.beat(node, replica(node, replica_index=index), full=True)
        pass_time(world, 8, *nodes)
        kept = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
        with world.state.change() as change:
            for node in ("dn4", "dn5"):
                change.remove(world.state.holds, (1, node))
        pass_time(world, 4, *nodes)
        deletes = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]

    assert [] == kept
    assert [True] == [c.datanode_id in {"dn4", "dn5"} for c in deletes]


def test_container_blocked_by_a_damaged_replica_is_looked_at_again(world: ScmWorld) -> None:
    """The damaged replica may be deleted when no repair is expected any more, which only time
    decides.
    """
    with world.state.change() as change:
        change.put(world.state.containers, container(replication_factor=4))
    world.beat("full", replica("full", ReplicaState.UNHEALTHY))
    turn(world)
    waiting = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
    for _ in range(4):
        turn(world)
    deletes = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]

    assert [] == waiting
    assert [("full", 1)] == [(c.datanode_id, c.container_id) for c in deletes]


class TestNoUsefulRack:
    """Replicas that should be spread wider, where no other rack has room: a copy beside one of them
    would be removed again."""

    @pytest.fixture
    def crowded(self, tmp_path: Path) -> Iterator[ScmWorld]:
        """Whole containers on three of four datanodes of one rack; that of another rack is
        full."""
        with ScmWorld(tmp_path, OPTIONS).running() as made:
            made.join("dn1", "dn2", "dn3", "dn4", racks=("/a",))
            made.join("full", racks=("/b",))
            with made.state.change() as change:
                for number in range(1, COUNT + 1):
                    change.put(made.state.containers, container(container_id=number))
                    change.next_id("next_container_id")
            for node in ("dn1", "dn2", "dn3"):
                held = (replica(node, container_id=n) for n in range(1, COUNT + 1))
                made.beat(node, *held, full=True)
            confirm(made, "dn4", "full")
            yield made

    @staticmethod
    def turn(world: ScmWorld, *, free_bytes: int = 0) -> None:
        """Let a second pass; the datanode of the other rack says what it has free."""
        turn(world, free_bytes=free_bytes, alive=("dn1", "dn2", "dn3", "dn4"))

    def test_container_without_a_useful_rack_is_not_retried_in_each_turn(
        self, crowded: ScmWorld
    ) -> None:
        """If a rack is full, this may concern all containers of a cluster. Only those that the
        regular round reaches, here one in a turn, are retried.
        """
        for _ in range(3):
            self.turn(crowded)
        early = tries(crowded)
        for _ in range(20):
            self.turn(crowded)

        assert COUNT == len(crowded.control.manager.under)
        assert tries(crowded) - early <= 20
        assert {} == copies(crowded)

    def test_container_is_spread_when_its_rack_has_room(self, crowded: ScmWorld) -> None:
        """The copies are ordered at once."""
        for _ in range(5):
            self.turn(crowded)

        for _ in range(2):
            self.turn(crowded, free_bytes=1024**3)

        assert {"full"} == set(copies(crowded).values())
