"""Who gets what there is room for: each container its first, copies and deletes by limits of their
own."""

from pathlib import Path

import pytest

from scm.state.entities import CommandKind, Container
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, replica

NODES = tuple(f"dn{i}" for i in range(8))
MINUTE_MS = 60_000


def options(**more: int) -> ScmOptions:
    """Nodes that stay healthy without calling; what lacks is seen at once."""
    return ScmOptions(
        stale_after_ms=60 * MINUTE_MS,
        dead_after_ms=200 * MINUTE_MS,
        check_interval_ms=1_000,
        container_bytes_max=1024**2,
        **more,
    )


def filled(world: ScmWorld, count: int) -> list[Container]:
    """Make closed containers, and let every node name all that it has."""
    world.join(*NODES)
    made = [world.made_closed() for _ in range(count)]
    confirm(world, *NODES)
    return made


def lose(world: ScmWorld, made: list[Container], count: int) -> None:
    """Let containers lose replicas, the first `count` of each."""
    for container in made:
        for lost in world.state.replicas.of(container.container_id)[:count]:
            held = [
                r
                for r in world.state.replicas.values()
                if r.datanode_id == lost.datanode_id and r.container_id != lost.container_id
            ]
            world.beat(lost.datanode_id, *held, full=True)


def ordered(world: ScmWorld, kind: CommandKind) -> list[int]:
    """Let a second pass; return the containers of the pending commands of a kind."""
    world.clock.advance_s(1)
    world.control.tick()
    return sorted(c.container_id for c in world.state.commands.values() if c.kind is kind)


def surplus(world: ScmWorld, made: list[Container], count: int) -> None:
    """Let replicas appear that are too many, `count` of each container."""
    for container in made:
        known = world.state.replicas.of(container.container_id)
        free = [node for node in NODES if node not in {r.datanode_id for r in known}]
        for node in free[:count]:
            held = [r for r in world.state.replicas.values() if r.datanode_id == node]
            more = replica(node, container_id=container.container_id, bcsid=known[0].bcsid, root=7)
            world.beat(node, *held, more, full=True)


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(1, [1, 2]), (2, [1, 1, 2, 3]), (3, [1, 1, 2, 2, 3]), (0, [1, 1, 2, 2, 3, 3])],
)
def test_every_container_gets_a_first_copy_before_any_second(
    tmp_path: Path, percent: int, expected: list[int]
) -> None:
    """Three containers lack two replicas each. The limit allows some of the 160 copies of eight
    nodes.
    """
    with ScmWorld(tmp_path, options(inflight_factor_percent=percent)).running() as world:
        made = filled(world, 3)
        lose(world, made, 2)

        assert expected == ordered(world, CommandKind.REPLICATE)
        assert expected == ordered(world, CommandKind.REPLICATE)  # none is ordered twice


def test_every_container_loses_one_surplus_before_any_loses_two(tmp_path: Path) -> None:
    """Two containers have two surplus replicas each."""
    with ScmWorld(tmp_path, options()).running() as world:
        made = filled(world, 2)
        surplus(world, made, 2)

        assert [1, 1, 2, 2] == ordered(world, CommandKind.DELETE)
        by_id = sorted(world.state.commands.values(), key=lambda command: command.command_id)
        assert [1, 2, 1, 2] == [c.container_id for c in by_id if c.kind is CommandKind.DELETE]


def test_copies_and_deletes_have_limits_of_their_own(tmp_path: Path) -> None:
    """A surplus is removed while as many copies as may are under way."""
    with ScmWorld(tmp_path, options(inflight_factor_percent=1)).running() as world:
        made = filled(world, 4)
        surplus(world, made[3:], 1)
        lose(world, made[:3], 1)

        assert 2 == len(ordered(world, CommandKind.REPLICATE))
        assert 1 == len(ordered(world, CommandKind.DELETE))
