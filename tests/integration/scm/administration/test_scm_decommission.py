"""Datanodes leave, rest and return: checked, watched, and never at the price of a replica."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.change.node_commands import progress_text
from merkle.replica import ReplicaState
from scm.administration.decommission import OpStateRequest
from scm.administration.decommission_rules import DONE
from scm.state.entities import CommandKind, Container, OpState
from scm.state.options import ScmOptions
from suture.errors import UnavailableError
from suture.wire.v1 import scm_pb2
from tests.support.control.scm_world import ScmWorld, outcome, replica
from tests.support.control.unwritable import unwritable
from tests.support.heard import logged

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
    request = OpStateRequest(tuple(nodes), op_state, **more)  # type: ignore[arg-type]
    return [d.code for d in world.control.departure_requests.submit(request)]


def run_turns(world: ScmWorld, seconds: int = 3) -> None:
    """Let nodes call and do what they are told, but make no copies."""
    for _ in range(seconds):
        world.clock.advance_s(1)
        world.control.tick()
        for node in NODES:
            for command, _named in world.call(node).commands:
                if command.kind is CommandKind.SET_OPERATIONAL_STATE:
                    world.kept[node] = (OpState(command.op_state), command.op_expiry_ms)
                    world.beat(node, outcomes=(outcome(command),))


def copy_all(world: ScmWorld, made: Container) -> None:
    """Let every copy that is ordered arrive."""
    for command in world.state.commands.values():
        if command.kind is CommandKind.REPLICATE:
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
    """The node must also have stored the state on its volumes. Until then the progress shows
    what is missing.
    """
    node = first_holder(world, made)
    assert ["OK"] == ask(world, OpState.DECOMMISSIONING, node)
    run_turns(world)
    (before,) = world.control.departures.departures()
    copy_all(world, made)
    run_turns(world)
    (after,) = world.control.departures.departures()

    assert ((made.container_id,), 1, False) == (
        before.required,
        before.copying_count,
        before.is_safe_to_stop,
    )
    assert ((), True, True) == (after.required, after.is_persisted, after.is_safe_to_stop)
    assert OpState.DECOMMISSIONED is state_of(world, node)
    assert (OpState.DECOMMISSIONED, 0) == world.kept[node]


def test_decommissioning_ends_only_when_the_datanode_stored_the_state(
    world: ScmWorld, made: Container
) -> None:
    """A datanode that is started again must know that it is out of service."""
    node = first_holder(world, made)
    ask(world, OpState.DECOMMISSIONING, node)
    world.control.tick()
    copy_all(world, made)
    for _ in range(5):
        world.control.tick()

    assert OpState.DECOMMISSIONING is state_of(world, node)


def test_a_state_that_another_takes_the_place_of_has_an_outcome(
    world: ScmWorld, made: Container
) -> None:
    """Its datanode has the last word, if it executes it nevertheless."""
    node = first_holder(world, made)
    ask(world, OpState.DECOMMISSIONING, node)
    [(command, _peers)] = world.call(node).commands
    ask(world, OpState.IN_SERVICE, node)
    ask(world, OpState.ENTERING_MAINTENANCE, node)

    world.call(node)
    (early,), pending = world.control.queries.outcomes([command.command_id], 10)
    world.beat(node, outcomes=(outcome(command),))
    (late,), _pending = world.control.queries.outcomes([command.command_id], 10)

    assert command.command_id not in pending
    assert ("SKIPPED", "INELIGIBLE") == (early.state, early.code)
    assert "EXECUTED" == late.state


@pytest.mark.parametrize("stop_at", ["at once", "copied"])
def test_decommissioning_can_be_cancelled_at_any_time(
    world: ScmWorld, made: Container, stop_at: str
) -> None:
    """Copies made meanwhile are removed again, and nothing else."""
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
    assert [] == world.control.departures.departures()


def test_a_node_the_cluster_cannot_do_without_is_refused(world: ScmWorld, made: Container) -> None:
    """With the reason; `force` does it all the same, and a dry run changes nothing."""
    both = ("dn1", "dn2")
    request = OpStateRequest(both, OpState.DECOMMISSIONING)
    decisions = world.control.departure_requests.submit(request)
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
    copies = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
    run_turns(world, 60)

    assert (OpState.IN_MAINTENANCE, (OpState.IN_MAINTENANCE, end_ms)) == (during, kept)
    assert [] == copies
    assert OpState.IN_SERVICE is state_of(world, node)


def test_two_of_three_cannot_rest_without_a_copy(world: ScmWorld, made: Container) -> None:
    """The cluster makes copies although the nodes only enter maintenance."""
    two = [r.datanode_id for r in world.state.replicas.of(made.container_id)][:2]
    ask(world, OpState.ENTERING_MAINTENANCE, *two)
    run_turns(world)
    during = [state_of(world, node) for node in two]
    copy_all(world, made)
    run_turns(world, 5)

    assert [OpState.ENTERING_MAINTENANCE] * 2 == during
    assert [OpState.IN_MAINTENANCE] * 2 == [state_of(world, node) for node in two]


def test_open_container_on_a_leaving_node_is_closed(world: ScmWorld) -> None:
    """No new block is placed on a node that leaves."""
    world.control.clients.allocate("b", [10])
    (opened,) = world.state.containers.open_all()
    ask(world, OpState.ENTERING_MAINTENANCE, opened.pipeline[0])

    closing = world.state.containers.get(opened.container_id)
    assert closing is not None
    assert ("CLOSING", "one of its nodes is to leave") == (closing.state, closing.close_reason)
    blocks = world.control.clients.allocate("c", [10])
    assert opened.pipeline[0] not in [e.datanode_id for e in blocks[0].replicas]


def test_states_survive_both_restarts(world: ScmWorld, made: Container) -> None:
    """The datanode remembers what the control plane decided, and each side reminds the other."""
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


def test_decommissioning_with_a_full_scm_disk_stays_in_progress(
    world: ScmWorld, made: Container
) -> None:
    """The disk of the state is full when the last copy is there. The node keeps leaving, its
    replicas count, and no event permits to switch it off.
    """
    ask(world, OpState.DECOMMISSIONING, "dn1")
    run_turns(world)
    copy_all(world, made)
    run_turns(world, 1)
    with logged() as logs:
        with unwritable():
            for _ in range(5):
                world.clock.advance_s(1)
                with suppress(UnavailableError):  # what changes nothing is not written
                    world.control.tick()
        early = {line["event"] for line in logs}
        run_turns(world)

    assert {"state_write_failed"} == early
    assert "node_safe_to_stop" in [line["event"] for line in logs]
    assert state_of(world, "dn1") is OpState.DECOMMISSIONED


def test_an_unknown_node_is_named_and_nothing_is_done(world: ScmWorld) -> None:
    """All or none."""
    assert ["WRONG_DATANODE"] == ask(world, OpState.DECOMMISSIONING, "dn1", "dn9")
    assert OpState.IN_SERVICE is state_of(world, "dn1")


def test_s5_12_what_is_locked_out_is_said_before_and_meanwhile(world: ScmWorld) -> None:
    """The only whole replicas are on nodes that enter maintenance together."""
    made = world.made_closed()
    two = [r.datanode_id for r in world.state.replicas.of(made.container_id)][:2]
    third = world.state.replicas.of(made.container_id)[2].datanode_id
    world.beat(third, full=True)
    request = OpStateRequest(tuple(two), OpState.ENTERING_MAINTENANCE, is_dry_run=True)

    before = world.control.departure_requests.submit(request)
    one = world.control.departure_requests.submit(
        OpStateRequest((two[0],), OpState.ENTERING_MAINTENANCE, is_dry_run=True)
    )
    world.beat(two[1], full=True)
    ask(world, OpState.ENTERING_MAINTENANCE, two[0], is_forced=True)
    world.control.tick()
    (meanwhile,) = world.control.departures.departures()

    locked = f"1 containers cannot be read without them until they are copied: {made.container_id}"
    assert [("OK", locked)] * 2 == [(d.code, d.message) for d in before]
    assert [("OK", "")] == [(d.code, d.message) for d in one]
    assert (1, (made.container_id,)) == (meanwhile.locked_count, meanwhile.required)


def test_s2_17_all_holders_may_leave_at_once(tmp_path: Path) -> None:
    """Three flows; each of the three is only off when three others have copies."""
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*(f"dn{i}" for i in range(1, 7)))
        made = world.made_closed()
        holders = [r.datanode_id for r in world.state.replicas.of(made.container_id)]
        others = {f"dn{i}" for i in range(1, 7)} - set(holders)
        assert ["OK"] * 3 == ask(world, OpState.DECOMMISSIONING, *holders)
        for _ in range(3):
            world.clock.advance_s(1)
            world.control.tick()
        copies = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
        early = [state_of(world, node) for node in holders]
        copy_all(world, made)
        for _ in range(6):
            for node in holders:
                world.kept[node] = (state_of(world, node), 0)
                world.call(node)
            world.control.tick()

        assert others == {c.target_id for c in copies}
        assert [OpState.DECOMMISSIONING] * 3 == early
        assert [OpState.DECOMMISSIONED] * 3 == [state_of(world, node) for node in holders]


def test_s2_18_a_decommissioned_node_that_comes_back_is_like_a_new_one(
    world: ScmWorld, made: Container
) -> None:
    """An operator recommissions the node. Its replicas then count, and one of them is excess."""
    node = first_holder(world, made)
    ask(world, OpState.DECOMMISSIONING, node)
    run_turns(world)
    copy_all(world, made)
    run_turns(world)
    held = next(r for r in world.state.replicas.of(made.container_id) if r.datanode_id == node)
    world.join(node, boot_id=2)
    world.beat(node, held, full=True, boot_id=2)
    still = state_of(world, node)
    ask(world, OpState.IN_SERVICE, node)
    for other in NODES:
        mine = [r for r in world.state.replicas.values() if r.datanode_id == other]
        world.beat(other, *mine, full=True, boot_id=2 if other == node else 1)
    world.clock.advance_s(1)
    world.control.tick()

    deletes = [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]
    assert OpState.DECOMMISSIONED is still
    assert OpState.IN_SERVICE is state_of(world, node)
    assert 4 == len(world.state.replicas.of(made.container_id))
    assert [made.container_id] == [c.container_id for c in deletes]


def test_a_node_waits_until_the_last_commits_it_alone_has_are_elsewhere(world: ScmWorld) -> None:
    """A damaged replica that is ahead of three others is copied as it is, from its own node."""
    blocks = world.write("writer", "key", 10, 10)
    behind, *others = sorted(endpoint.datanode_id for endpoint in blocks[0].replicas)
    world.control.clients.finish("writer", close=True)
    (spare,) = set(NODES) - {behind, *others}
    world.join("dn5")
    container_id, last = blocks[0].container_id, blocks[-1].bcsid
    for node in (*others, spare):
        held = replica(
            node, ReplicaState.QUASI_CLOSED, container_id=container_id, bcsid=last - 1, root=6
        )
        world.beat(node, held, full=True)
    ahead = replica(behind, ReplicaState.UNHEALTHY, container_id=container_id, bcsid=last)
    world.beat(behind, ahead, full=True)
    world.beat("dn5", full=True)
    ask(world, OpState.DECOMMISSIONING, behind)
    run_turns(world, 5)
    (copy,) = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
    before = state_of(world, behind)

    world.beat(copy.datanode_id, outcomes=(outcome(copy),))
    copied = replace(ahead, datanode_id="dn5")
    world.beat("dn5", copied)
    run_turns(world, 5)

    assert (behind, "dn5") == (copy.datanode_id, copy.target_id)
    assert OpState.DECOMMISSIONING is before
    assert OpState.DECOMMISSIONED is state_of(world, behind)


@pytest.mark.parametrize("container_id", [77, 2**62])
@pytest.mark.parametrize("op_state", [OpState.DECOMMISSIONING, OpState.ENTERING_MAINTENANCE])
def test_a_container_that_was_never_made_here_holds_no_node_back(
    world: ScmWorld, op_state: OpState, container_id: int
) -> None:
    """Nothing may be ordered about it, so that waiting for it has no end; a datanode may report any
    number, and the control plane must not make room for all numbers below. The answer names it."""
    world.beat("dn1", replica("dn1", container_id=container_id), full=True)
    (decision,) = world.control.departure_requests.submit(OpStateRequest(("dn1",), op_state))
    run_turns(world, 5)

    told = f"1 containers on them are not known here, no copy is made of them: {container_id}"
    assert ("OK", told) == (decision.code, decision.message)
    assert DONE[op_state] is state_of(world, "dn1")


def test_a_container_that_was_given_up_while_a_node_left_holds_it_back_no_more(
    world: ScmWorld,
) -> None:
    """Its only replica is damaged. After the operator has forgotten the container, it is not
    repaired.
    """
    made = world.made_closed()
    held, *others = world.state.replicas.of(made.container_id)
    for other in others:
        world.beat(other.datanode_id, full=True)
    world.beat(held.datanode_id, replace(held, load_error="descriptor lost"), full=True)
    ask(world, OpState.DECOMMISSIONING, held.datanode_id, is_forced=True)
    run_turns(world, 5)
    (before,) = world.control.departures.departures()
    fates = world.control.forgetting.forget([made.container_id], worlds=(), is_dry_run=False)
    run_turns(world, 5)

    assert (made.container_id,) == before.required
    assert ["OK"] == [fate.code for fate in fates]
    assert OpState.DECOMMISSIONED is state_of(world, held.datanode_id)


def test_progress_is_told_as_what_is_left() -> None:
    """The numbers of each node and of the whole cluster go down to 0."""
    going = scm_pb2.Departure(
        datanode_id="a" * 32, op_state="DECOMMISSIONING", required_count=402, copying_count=12
    )
    gone = scm_pb2.Departure(datanode_id="b" * 32, op_state="IN_MAINTENANCE", safe_to_stop=True)

    assert (
        "may be switched off now: bbbbbbbb\n"
        "1 datanode not ready: 402 replicas to make elsewhere, 12 under way"
    ) == progress_text([going, gone])


@pytest.mark.parametrize("state", [OpState.DECOMMISSIONING, OpState.ENTERING_MAINTENANCE])
@pytest.mark.parametrize("is_sent", [False, True])
def test_a_copy_that_comes_to_a_node_that_leaves_is_ordered_elsewhere(
    tmp_path: Path, state: OpState, is_sent: bool
) -> None:
    """The copy counted as one that stays. The pending copy is dropped."""
    nodes = (*NODES, "dn5")
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*nodes)
        made = world.made_closed()
        first, *others = [r.datanode_id for r in world.state.replicas.of(made.container_id)]
        for node in nodes:
            mine = [r for r in world.state.replicas.values() if r.datanode_id == node]
            world.beat(node, *(() if node == first else mine), full=True)
        world.control.tick()
        (copy,) = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
        if is_sent:
            world.call(copy.datanode_id)
        ask(world, state, copy.target_id, is_forced=True)
        for _ in range(3):
            world.clock.advance_s(1)
            world.control.tick()
        now = [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]
        found, _pending = world.control.queries.outcomes([copy.command_id], 1)

    assert [f"{copy.target_id} is to leave"] == [o.message for o in found]
    assert 1 == len(now)
    assert now[0].target_id not in {*others, copy.target_id}


def test_readers_are_sent_to_those_that_leave_or_are_silent_last(tmp_path: Path) -> None:
    """Nodes in service come first, then those that leave or enter maintenance, then silent ones."""
    options = OPTIONS.model_copy(update={"stale_after_ms": 20_000, "dead_after_ms": 200_000})
    with ScmWorld(tmp_path, options).running() as world:
        world.join(*NODES)
        world.made_closed()
        for node in NODES:
            mine = replica(node, bcsid=1)
            world.beat(node, mine, full=True)
        ask(world, OpState.DECOMMISSIONING, "dn1", is_forced=True)
        ask(world, OpState.ENTERING_MAINTENANCE, "dn3", is_forced=True)
        world.clock.advance_s(21)
        world.keep_alive("dn1", "dn3", "dn4")

        _key, [found] = world.control.clients.lookup("setup-1-0")

    assert ["dn4", "dn1", "dn3", "dn2"] == [e.datanode_id for e in found.endpoints]
    assert 1 == found.equal_count


def test_readers_are_told_how_many_replicas_promise_the_same(tmp_path: Path) -> None:
    """Those in service that have all of it; not one that is damaged."""
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*NODES)
        world.made_closed()
        for node in NODES:
            world.beat(node, replica(node, bcsid=1), full=True)
        _key, [before] = world.control.clients.lookup("setup-1-0")
        bad = replace(replica(NODES[0], bcsid=1), state=ReplicaState.UNHEALTHY)
        world.beat(NODES[0], bad, full=True)
        _key, [after] = world.control.clients.lookup("setup-1-0")

    assert 4 == before.equal_count
    assert 3 == after.equal_count
    assert NODES[0] == after.endpoints[-1].datanode_id


def test_key_lookup_without_replicas_names_no_datanodes(tmp_path: Path) -> None:
    """The key is found all the same, because its replicas may come back."""
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        world.join(*NODES)
        world.made_closed()
        with world.state.change() as change:
            for one in world.state.containers.values():
                change.put(world.state.containers, replace(one, pipeline=()))
        for node in NODES:
            world.beat(node, full=True)
        key, [found] = world.control.clients.lookup("setup-1-0")
        with world.state.change() as change:
            change.remove(world.state.containers, found.container_id)
        assert [found] == world.control.clients.lookup("setup-1-0")[1]

    assert ("setup-1-0", (), 0) == (key.name, found.endpoints, found.equal_count)
