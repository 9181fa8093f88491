"""Datanodes leave, rest and return: checked, watched, and never at the price of a replica."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.departures import Request
from scm.facts import Container, Kind, OpState
from scm.options import ScmOptions
from tests.support.scm_world import ScmWorld, outcome, replica

NODES = ("dn1", "dn2", "dn3", "dn4")
OPTIONS = ScmOptions(
    stale_after_ms=1_000_000, dead_after_ms=2_000_000, close_retry_ms=1_000, check_interval_ms=1_000
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes that stay healthy without calling."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


@pytest.fixture
def made(world: ScmWorld) -> Container:
    """A closed container on three of them."""
    return world.made_closed()


def ask(world: ScmWorld, op_state: OpState, *nodes: str, **more: int | bool) -> list[str]:
    """Ask for a state; return the decisions' codes."""
    request = Request(tuple(nodes), op_state, **more)  # type: ignore[arg-type]
    return [d.code for d in world.control.set_operational_states(request)]


def run_turns(world: ScmWorld, seconds: int = 3) -> None:
    """Let nodes call and do what they are told, but make no copies."""
    for _ in range(seconds):
        world.clock.advance_s(1)
        world.control.tick()
        for node in NODES:
            for command, _named in world.call(node).commands:
                if command.kind is Kind.SET_OPERATIONAL_STATE:
                    world.kept[node] = (OpState(command.op_state), command.op_expiry_ms)
                    world.beat(node, outcomes=(outcome(command),))


def copy_all(world: ScmWorld, made: Container) -> None:
    """Let every copy that is ordered arrive."""
    for command in world.state.commands.values():
        if command.kind is Kind.REPLICATE:
            world.beat(command.datanode_id, outcomes=(outcome(command),))
            world.beat(command.target_id, replica(command.target_id, bcsid=made.sequence_id))


def state_of(world: ScmWorld, node: str) -> OpState:
    """Return what the control plane wants of a node."""
    found = world.state.nodes.get(node)
    assert found is not None
    return found.op_state


def first_holder(world: ScmWorld, made: Container) -> str:
    """Return a node with a replica."""
    return world.state.replicas.of(made.container_id)[0].datanode_id


def test_a_node_is_decommissioned_when_all_it_has_is_elsewhere(
    world: ScmWorld, made: Container
) -> None:
    """And when it has written so on its volumes; until then the progress says what lacks."""
    node = first_holder(world, made)
    assert ["OK"] == ask(world, OpState.DECOMMISSIONING, node)
    run_turns(world)
    (before,) = world.control.departures()
    copy_all(world, made)
    run_turns(world)
    (after,) = world.control.departures()

    assert ((made.container_id,), 1, False) == (
        before.required,
        before.copying_count,
        before.may_be_switched_off,
    )
    assert ((), True, True) == (after.required, after.is_persisted, after.may_be_switched_off)
    assert OpState.DECOMMISSIONED is state_of(world, node)
    assert (OpState.DECOMMISSIONED, 0) == world.kept[node]


def test_it_does_not_end_before_the_datanode_has_kept_it(world: ScmWorld, made: Container) -> None:
    """A datanode that is started again must know that it is not to serve."""
    node = first_holder(world, made)
    ask(world, OpState.DECOMMISSIONING, node)
    world.control.tick()
    copy_all(world, made)
    for _ in range(5):
        world.control.tick()

    assert OpState.DECOMMISSIONING is state_of(world, node)


@pytest.mark.parametrize("stop_at", ["at once", "copied"])
def test_it_can_be_called_back_at_any_time(world: ScmWorld, made: Container, stop_at: str) -> None:
    """What was copied meanwhile is removed again, and nothing else."""
    node = first_holder(world, made)
    ask(world, OpState.DECOMMISSIONING, node)
    run_turns(world, 1)
    if stop_at == "copied":
        copy_all(world, made)
        run_turns(world)
    assert ["OK"] == ask(world, OpState.IN_SERVICE, node)
    run_turns(world)

    assert OpState.IN_SERVICE is state_of(world, node)
    assert (OpState.IN_SERVICE, 0) == world.kept[node]
    assert [] == world.control.departures()


def test_a_node_the_cluster_cannot_do_without_is_refused(world: ScmWorld, made: Container) -> None:
    """With the reason; `force` does it all the same, and a dry run changes nothing."""
    both = ("dn1", "dn2")
    request = Request(both, OpState.DECOMMISSIONING)
    decisions = world.control.set_operational_states(request)
    assert ["PRECHECK_FAILED"] * 2 == [d.code for d in decisions]
    assert "3 nodes in service are needed" in decisions[0].message
    assert OpState.IN_SERVICE is state_of(world, "dn1")

    ask(world, OpState.DECOMMISSIONING, *both, is_forced=True, is_dry_run=True)
    assert OpState.IN_SERVICE is state_of(world, "dn1")
    assert ["OK", "OK"] == ask(world, OpState.DECOMMISSIONING, *both, is_forced=True)
    run_turns(world, 5)

    assert OpState.DECOMMISSIONING is state_of(world, first_holder(world, made))


def test_maintenance_begins_when_two_stay_online_and_ends_by_itself(
    world: ScmWorld, made: Container
) -> None:
    """No copy is made; after its end the node is back in service, or dead like any other."""
    node = first_holder(world, made)
    end_ms = world.clock.now_ms() + 60_000
    ask(world, OpState.ENTERING_MAINTENANCE, node, op_expiry_ms=end_ms)
    run_turns(world, 5)
    during, kept = state_of(world, node), world.kept[node]
    copies = [c for c in world.state.commands.values() if c.kind is Kind.REPLICATE]
    run_turns(world, 60)

    assert (OpState.IN_MAINTENANCE, (OpState.IN_MAINTENANCE, end_ms)) == (during, kept)
    assert [] == copies
    assert OpState.IN_SERVICE is state_of(world, node)


def test_two_of_three_cannot_rest_without_a_copy(world: ScmWorld, made: Container) -> None:
    """S2.81: the cluster acts although it was told not to."""
    two = [r.datanode_id for r in world.state.replicas.of(made.container_id)][:2]
    ask(world, OpState.ENTERING_MAINTENANCE, *two)
    run_turns(world)
    during = [state_of(world, node) for node in two]
    copy_all(world, made)
    run_turns(world, 5)

    assert [OpState.ENTERING_MAINTENANCE] * 2 == during
    assert [OpState.IN_MAINTENANCE] * 2 == [state_of(world, node) for node in two]


def test_what_is_being_written_there_is_closed(world: ScmWorld) -> None:
    """Nothing new is placed on a node that leaves."""
    world.control.allocate("b", [10])
    (opened,) = world.state.containers.open_all()
    ask(world, OpState.ENTERING_MAINTENANCE, opened.pipeline[0])

    closing = world.state.containers.get(opened.container_id)
    assert closing is not None
    assert ("CLOSING", "one of its nodes is to leave") == (closing.state, closing.close_reason)
    blocks = world.control.allocate("c", [10])
    assert opened.pipeline[0] not in [e.datanode_id for e in blocks[0].replicas]


def test_states_survive_both_restarts(world: ScmWorld, made: Container) -> None:
    """K9: each side reminds the other."""
    node = first_holder(world, made)
    ask(world, OpState.ENTERING_MAINTENANCE, node)
    run_turns(world, 5)
    world.restart()
    after_ours = state_of(world, node)
    world.kept[node] = (OpState.IN_SERVICE, 0)  # its volumes were replaced
    world.join(*NODES, boot_id=1)
    run_turns(world)

    assert OpState.IN_MAINTENANCE is after_ours
    assert (OpState.IN_MAINTENANCE, 0) == world.kept[node]


def test_an_unknown_node_is_named_and_nothing_is_done(world: ScmWorld) -> None:
    """All or none."""
    assert ["WRONG_DATANODE"] == ask(world, OpState.DECOMMISSIONING, "dn1", "dn9")
    assert OpState.IN_SERVICE is state_of(world, "dn1")
