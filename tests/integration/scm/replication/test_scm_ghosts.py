"""Nodes that died: what they last said blocks nobody, and what they have is never mistaken."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    Container,
    ContainerState,
    OpState,
    PendingCommand,
    Replica,
)
from scm.state.options import ScmOptions
from suture.observe.audit import AuditLog
from tests.support.control.scm_world import ScmWorld, confirm, outcome, pass_time, replica, summary

NODES = ("dn1", "dn2", "dn3", "dn4")
OPTIONS = ScmOptions(
    stale_after_ms=5_000,
    dead_after_ms=10_000,
    close_retry_ms=1_000,
    check_interval_ms=1_000,
    replication_factor=3,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes; whoever does not call for ten seconds is dead."""
    audit = AuditLog(tmp_path / "audit.log")
    with ScmWorld(tmp_path / "state", OPTIONS, audit=audit).running() as made:
        made.join(*NODES)
        confirm(made, *NODES)
        yield made
    audit.close()


def state_of(world: ScmWorld, container_id: int = 1) -> ContainerState:
    """Return the state of a container."""
    container = world.state.containers.get(container_id)
    assert container is not None
    return container.state


def holders(world: ScmWorld, container_id: int = 1) -> list[str]:
    """Return who has a replica, by the books."""
    return [r.datanode_id for r in world.state.replicas.of(container_id)]


def others(*dead: str) -> list[str]:
    """Return the nodes that live."""
    return [node for node in NODES if node not in dead]


def die(world: ScmWorld, *dead: str) -> None:
    """Let nodes be silent until they are dead."""
    pass_time(world, 12, *others(*dead))


def replace_copies(world: ScmWorld, *dead: str) -> list[str]:
    """Let nodes be dead, and all copies arrive that replace what they had; return the holders."""
    die(world, *dead)
    for command in world.state.commands.values():
        if command.kind is CommandKind.REPLICATE:
            world.call(command.datanode_id)  # sends it
            world.beat(command.datanode_id, outcomes=(outcome(command),))
            world.beat(command.target_id, replica(command.target_id, bcsid=1))
    return [node for node in holders(world) if node not in dead]


def deletes_sent(world: ScmWorld, node: str, *reports: Replica) -> list[PendingCommand]:
    """Let a node call; return its deletes of blocks."""
    commands = [command for command, _named in world.beat(node, *reports).commands]
    return [command for command in commands if command.kind is CommandKind.DELETE_BLOCKS]


def done(command: PendingCommand) -> CommandOutcome:
    """Answer a command as done."""
    acknowledged = tuple((t.container_id, t.transaction_id) for t in command.transactions)
    return replace(outcome(command), acknowledged=acknowledged)


def delete_all(world: ScmWorld, *nodes: str, reports: bool = False) -> None:
    """Delete the only key; these nodes do what they are told, and say that nothing is left."""
    world.control.deletions.delete_keys(
        [key.name for key in world.state.keys.values()], dry_run=False
    )
    for node in nodes:
        for command in deletes_sent(world, node):
            world.beat(node, outcomes=(done(command),))
        if reports:
            world.beat(node, emptied(node))


def emptied(node: str) -> Replica:
    """A replica all blocks of which are deleted."""
    return replace(replica(node, bcsid=1), is_empty=True, tree=summary(7, tombstones=3))


def made_on(world: ScmWorld) -> tuple[Container, list[str]]:
    """Make a closed container; return it and its nodes."""
    made = world.made_closed()
    return made, holders(world, made.container_id)


def test_dead_open_replica_does_not_prevent_a_reconcile(world: ScmWorld) -> None:
    """Its last report was OPEN, and a closed container cannot be reconciled with an open
    replica.
    """
    blocks = world.write("client", "key", 10)
    dead, *living = sorted(endpoint.datanode_id for endpoint in blocks[0].replicas)
    die(world, dead)
    world.control.clients.finish("client", close=True)
    for node in living:
        world.beat(node, replica(node, bcsid=1, root=1 if node == living[0] else 2))

    (decision,) = world.control.admin.reconcile([1])

    assert ContainerState.CLOSED is state_of(world)
    assert ("OK", 2) == (decision.code, len(decision.command_ids))


def test_a_container_closes_though_a_dead_node_has_it_open(world: ScmWorld) -> None:
    """Those that are damaged do not wait for one that is gone."""
    blocks = world.write("client", "key", 10)
    dead, *living = sorted(endpoint.datanode_id for endpoint in blocks[0].replicas)
    world.control.clients.finish("client", close=True)
    for node in living:
        world.beat(node, replica(node, ReplicaState.UNHEALTHY, bcsid=1))
    before = state_of(world)
    die(world, dead)

    assert (ContainerState.CLOSING, ContainerState.QUASI_CLOSED) == (before, state_of(world))


def test_a_container_that_was_never_written_ends_though_its_nodes_died(world: ScmWorld) -> None:
    """The nodes were chosen, never reported, and are not awaited."""
    world.control.clients.allocate("client", [10])
    (opened,) = world.state.containers.open_all()
    die(world, *opened.pipeline)
    world.control.clients.finish("client", close=True)

    assert ContainerState.DELETED is state_of(world)


def test_a_delete_that_only_the_dead_owe_is_told_them_when_they_return(world: ScmWorld) -> None:
    """The transaction is kept, keeps nothing from happening, and ends when all have answered."""
    _made, (dead, *_living) = made_on(world)
    delete_all(world, *replace_copies(world, dead))
    kept = len(world.state.transactions)
    world.join(dead)
    told = world.beat(dead, replica(dead, bcsid=1), full=True).commands
    (command,) = [c for c, _named in told if c.kind is CommandKind.DELETE_BLOCKS]
    world.beat(dead, outcomes=(done(command),))

    assert (1, 0) == (kept, len(world.state.transactions))


def test_an_emptied_container_goes_though_a_dead_node_had_data(world: ScmWorld) -> None:
    """The dead node deletes its data when it returns, because all of it is known to be deleted."""
    _made, (dead, *_living) = made_on(world)
    living = replace_copies(world, dead)
    delete_all(world, *living, reports=True)
    pass_time(world, 2, *others(dead))
    deleting = state_of(world)
    for node in living:
        world.beat(node, replace(emptied(node), state=ReplicaState.DELETED))
    pass_time(world, 2, *others(dead))
    deleted = state_of(world)
    world.join(dead)
    world.beat(dead, replica(dead, bcsid=1), full=True)
    pass_time(world, 2, *others(dead))
    orders = world.call(dead).commands

    assert (ContainerState.DELETING, ContainerState.DELETED) == (deleting, deleted)
    assert [(CommandKind.DELETE, True)] == [(c.kind, c.force) for c, _ in orders]


def test_replica_of_a_dead_node_creates_no_surplus(world: ScmWorld) -> None:
    """Four replicas, one of them on a dead node, count as three, so none is removed."""
    made, held = made_on(world)
    (fourth,) = set(NODES) - set(held)
    world.beat(fourth, replica(fourth, bcsid=made.sequence_id))
    die(world, held[0])

    assert [] == [c for c in world.state.commands.values() if c.kind is CommandKind.DELETE]


class TestDecommissioned:
    @pytest.fixture
    def gone(self, world: ScmWorld) -> str:
        """A dead node that is decommissioned; the fourth has got a copy of what it had."""
        _made, (dead, *_living) = made_on(world)
        replace_copies(world, dead)
        node = world.state.nodes.get(dead)
        assert node is not None
        with world.state.change() as change:
            change.put(world.state.nodes, replace(node, op_state=OpState.DECOMMISSIONED))
        return dead

    def test_decommissioned_nodes_replicas_are_dropped_and_reported_again(
        self, world: ScmWorld, gone: str
    ) -> None:
        """Only replicas that the container does not need are dropped."""
        pass_time(world, 3, *others(gone))
        struck = holders(world)
        world.join(gone)
        world.beat(gone, replica(gone, bcsid=1), full=True)

        assert gone not in struck
        assert 3 == len(struck)
        assert gone in holders(world)

    def test_the_only_copy_stays_in_the_books(self, world: ScmWorld, gone: str) -> None:
        """An operator may want to know where it was."""
        for node in others(gone):
            world.beat(node, full=True)
        pass_time(world, 3, *others(gone))

        assert [gone] == holders(world)

    def test_blocks_deleted_meanwhile_are_deleted_in_what_comes_back(
        self, world: ScmWorld, gone: str
    ) -> None:
        """No delete is pending, but its tombstones differ from the others'."""
        pass_time(world, 3, *others(gone))
        delete_all(world, *others(gone))
        for node in others(gone):
            world.beat(node, replace(replica(node, bcsid=1), tree=summary(7, tombstones=3)))
        owed = len(world.state.transactions)
        world.join(gone)
        world.beat(gone, replica(gone, bcsid=1), full=True)
        pass_time(world, 3, *NODES)

        ordered = {
            c.datanode_id for c in world.state.commands.values() if c.kind is CommandKind.RECONCILE
        }
        assert 0 == owed
        assert gone in ordered


class TestRemoved:
    def test_a_node_that_lives_is_not_removed(self, world: ScmWorld) -> None:
        """The node would register again."""
        (decision,) = world.control.parting.remove_nodes(["dn1"], is_forced=True, is_dry_run=False)

        assert "INELIGIBLE" == decision.code
        assert world.state.nodes.get("dn1") is not None

    def test_the_last_that_has_a_container_is_not_removed_unless_told(
        self, world: ScmWorld
    ) -> None:
        """The consequences are shown. With force the container is missing and the node is gone."""
        _made, held = made_on(world)
        die(world, *held)
        shown = world.control.parting.remove_nodes(held, is_forced=False, is_dry_run=False)
        still = holders(world)
        forced = world.control.parting.remove_nodes(held, is_forced=True, is_dry_run=False)

        assert ["PRECHECK_FAILED"] * 3 == [d.code for d in shown]
        assert all("1 containers can be read from nobody else: 1" in d.message for d in shown)
        assert held == still
        assert ["OK"] * 3 == [d.code for d in forced]
        assert [] == holders(world)
        assert 1 == len(world.control.queries.nodes())
        written = (world.path.parent / "audit.log").read_text()
        assert 3 == written.count('"node removed"')

    def test_removed_node_has_no_pending_work_and_may_return(self, world: ScmWorld) -> None:
        """Its commands and transactions end. When the node is back, so are its replicas."""
        _made, (dead, *_living) = made_on(world)
        delete_all(world, *replace_copies(world, dead))
        owed = len(world.state.transactions)
        (decision,) = world.control.parting.remove_nodes([dead], is_forced=False, is_dry_run=False)
        left = len(world.state.transactions)
        commands = world.state.commands.of_node(dead)
        refused = world.call(dead)
        world.join(dead)
        world.beat(dead, replica(dead, bcsid=1), full=True)

        assert ("OK", 1, 0) == (decision.code, owed, left)
        assert [] == commands
        assert not refused.is_known
        assert dead in holders(world)

    def test_a_dry_run_changes_nothing(self, world: ScmWorld) -> None:
        """The dry run reports how many replicas would be removed."""
        _made, (dead, *_living) = made_on(world)
        die(world, dead)
        (decision,) = world.control.parting.remove_nodes([dead], is_forced=False, is_dry_run=True)

        assert decision.message.startswith("1 replicas leave the books")
        assert dead in holders(world)
        assert world.state.nodes.get(dead) is not None
