"""What operators of a replication manager expect of one: when it looks, and how much it orders."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from health.words import HealthState
from scm.api.replication_report import LastVerification, rm_report
from scm.replication.health.health_states import HealthStates
from scm.state.container_queues import ContainerBitmap
from scm.state.entities import CommandKind, ContainerState, OpState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.coded_world import NODES as CODED_NODES
from tests.support.control.coded_world import OPTIONS as CODED_OPTIONS
from tests.support.control.coded_world import closed, orders
from tests.support.control.scm_world import (
    ScmWorld,
    confirm,
    container,
    outcome,
    pass_time,
    pending,
    replica,
)

NODES = ("dn1", "dn2", "dn3", "dn4")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes of a control plane that nobody has set anything of."""
    with ScmWorld(tmp_path).running() as made:
        made.join(*NODES)
        confirm(made, *NODES)
        yield made


@pytest.fixture
def coded(tmp_path: Path) -> Iterator[ScmWorld]:
    """Seven nodes for shards."""
    with ScmWorld(tmp_path, CODED_OPTIONS).running() as made:
        made.join(*CODED_NODES, "dn7")
        yield made


def of_kind(world: ScmWorld, kind: CommandKind) -> list[PendingCommand]:
    """Return the commands of a kind."""
    return [command for command in world.state.commands.values() if command.kind is kind]


def test_every_container_is_looked_at_in_five_minutes(tmp_path: Path) -> None:
    """No change is reported, and the regular round finds the lack."""
    minute = ScmOptions(heartbeat_interval_ms=60_000, stale_after_ms=90_000, dead_after_ms=180_000)
    with ScmWorld(tmp_path, minute).running() as world:
        world.join(*NODES)
        confirm(world, *NODES)
        made = [world.made_closed() for _ in range(9)]
        minutes(world, 6)
        with world.state.change() as change:
            for one in made:
                lost = world.state.replicas.of(one.container_id)[0]
                change.remove(world.state.replicas, (one.container_id, lost.datanode_id))
        minutes(world, 6)  # the first may be a part of the round before

        found = {command.container_id for command in of_kind(world, CommandKind.REPLICATE)}

    assert {one.container_id for one in made} == found


def minutes(world: ScmWorld, count: int) -> None:
    """Let minutes pass; all nodes call in each."""
    for _ in range(count):
        world.clock.advance_s(60)
        for node in NODES:
            world.call(node)
        world.control.tick()


def test_a_report_counts_each_container_in_one_state() -> None:
    """The states add up to the containers, and no state is left out."""
    held = [
        container(state, container_id=number)
        for number, state in enumerate([*ContainerState, ContainerState.CLOSED], start=1)
    ]

    report = rm_report(
        Counter(c.state for c in held), HealthStates({}, ContainerBitmap()), 1, LastVerification()
    )

    assert dict.fromkeys(ContainerState, 1) | {ContainerState.CLOSED: 2} == report.states
    assert len(held) == sum(report.states.values())


def test_a_report_names_the_first_hundred_of_each_condition() -> None:
    """The same ones in the next report, if they are stuck: the lowest ids, whatever their order."""
    stuck = dict.fromkeys(range(150, 0, -1), HealthState.UNDER_REPLICATED)
    few = dict.fromkeys((900, 200), HealthState.MISSING)

    report = rm_report({}, HealthStates(stuck | few, ContainerBitmap()), 1, LastVerification())

    assert (150, tuple(range(1, 101))) == report.conditions["UNDER_REPLICATED"]
    assert (2, (200, 900)) == report.conditions["MISSING"]


def test_a_container_closes_when_one_of_its_nodes_is_down(world: ScmWorld) -> None:
    """Its writer does nothing any more; nor do the two nodes that are left say anything."""
    (block,) = world.write("a", "key", 10)
    dead, *alive = sorted(endpoint.datanode_id for endpoint in block.replicas)
    pass_time(world, 29, dead, *alive)
    all_up = world.control.views.container(block.container_id).container.state
    pass_time(world, 60, *alive)

    down = world.control.views.container(block.container_id).container.state

    assert ContainerState.OPEN is all_up
    assert ContainerState.OPEN is not down


def test_close_command_is_not_throttled_by_copies_and_deletes(world: ScmWorld) -> None:
    """The three throttled kinds have reached the limits of the datanode. A close has no limit,
    because a writer waits for it.
    """
    world.queues["dn1"] = (("replicate", 20), ("reconstruct", 7), ("delete", 40))
    world.call("dn1")
    throttled = (CommandKind.REPLICATE, CommandKind.RECONSTRUCT, CommandKind.DELETE)
    with world.state.change() as change:
        for number, kind in enumerate((*throttled, CommandKind.CLOSE), start=1):
            change.put(world.state.commands, pending(number, kind))
        sent = world.control.commands.drain(change, "dn1", lambda _commands: {})

    assert [CommandKind.CLOSE] == [command.kind for command in sent]


def test_a_node_at_its_limit_is_no_target_of_a_rebuild_until_it_says_it_has_room(
    coded: ScmWorld,
) -> None:
    """A copy may go there all the same: its source is what is limited."""
    nodes, container_id = closed(coded, lost=[2])
    free = [*sorted({*CODED_NODES, "dn7"} - set(nodes)), nodes[1]]
    for node in free:
        coded.queues[node] = (("replicate", 20),)
        coded.call(node)
    excluded = orders(coded)
    case = coded.control.cases.case(coded.control.views.container(container_id).container)
    for_copies = coded.control.manager.targets(case, len(free))
    coded.queues[free[0]] = (("replicate", 19),)

    [(command, _named)] = orders(coded)

    assert [] == excluded
    assert set(free) == set(for_copies)
    assert ((2, free[0]),) == command.shards


def test_a_rebuild_counts_each_replica_it_makes_until_a_report_shows_it(coded: ScmWorld) -> None:
    """One command makes two replicas, and the cluster-wide limit counts replicas."""
    _nodes, container_id = closed(coded, lost=[1, 4])
    [(command, _named)] = orders(coded)
    ordered = coded.control.queries.queues().pending_add_count
    for index, node in command.shards:
        coded.beat(node, replica(node, container_id=container_id, bcsid=1, replica_index=index))
    coded.beat(command.datanode_id, outcomes=(outcome(command),))

    assert 2 == ordered
    assert 0 == coded.control.queries.queues().pending_add_count


@pytest.mark.parametrize(
    ("op_state", "copies"), [(OpState.IN_MAINTENANCE, 0), (OpState.IN_SERVICE, 1)]
)
def test_a_node_at_rest_counts_whether_it_is_up_or_down(
    world: ScmWorld, op_state: OpState, copies: int
) -> None:
    """A short planned stop makes no copies; the same silence of a node in service does."""
    made = world.made_closed()
    silent = world.state.replicas.of(made.container_id)[0].datanode_id
    node = world.state.nodes.get(silent)
    assert node is not None
    with world.state.change() as change:
        change.put(world.state.nodes, replace(node, op_state=op_state))

    pass_time(world, 62, *(node for node in NODES if node != silent))

    assert copies == len(of_kind(world, CommandKind.REPLICATE))
