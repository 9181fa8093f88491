"""A state that is older than what datanodes saw is treated as restored, and deletes nothing."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.call_values import Heartbeat, HeartbeatAnswer
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import NodeReplicaReport
from scm.state.entities import CommandKind, ContainerState, Key, KeyBlock
from scm.state.options import ScmOptions
from scm.state.starts import ReportedStart
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.control.restored import recover
from tests.support.control.scm_world import ScmWorld, replica, volume

NODES = ("dn1", "dn2", "dn3")
OPTIONS = ScmOptions(close_retry_ms=50)
WRITER = "writer"


class Remembering:
    """Datanodes that remember what control planes showed them."""

    def __init__(self) -> None:
        self.seen: dict[str, ReportedStart] = {}

    def see(self, world: ScmWorld) -> None:
        """Look at a control plane."""
        shown = world.control.reported_start
        self.seen[shown.start_id] = shown

    def join(self, world: ScmWorld, *nodes: str, boot_id: int = 2) -> None:
        """Register, and name the replica of container 1 with all that was ever written."""
        for node in nodes:
            registration = Registration(
                node, f"{node}:9859", "/r", "0.1.0", "", boot_id, (volume(),)
            )
            world.control.datanodes.register(
                replace(registration, seen_starts=tuple(self.seen.values()))
            )
            self.beat(world, node, boot_id=boot_id)

    def beat(self, world: ScmWorld, node: str, *, boot_id: int = 2) -> HeartbeatAnswer:
        """Call with a full report."""
        mine = replica(node, ReplicaState.CLOSED, container_id=1, bcsid=2)
        report = NodeReplicaReport(True, 1, 0, is_last=True, replicas=(mine,))
        return world.control.datanodes.heartbeat(
            Heartbeat(
                node,
                boot_id,
                (volume(),),
                (report,),
                (),
                (),
                seen_starts=tuple(self.seen.values()),
            )
        )


@pytest.fixture
def nodes() -> Remembering:
    """The memory of all datanodes."""
    return Remembering()


@pytest.fixture
def world(tmp_path: Path, nodes: Remembering) -> Iterator[ScmWorld]:
    """A control plane that has promised two blocks of container 1, of which one is committed; its
    state was copied before the second was."""
    with ScmWorld(tmp_path / "data", OPTIONS).running() as made:
        made.join(*NODES)
        for node in NODES:
            made.beat(node, full=True)
        made.write(WRITER, "first", 10)
        (second,) = made.control.clients.allocate(WRITER, [10])
        nodes.see(made)
        copy(made, tmp_path / "older")
        block = KeyBlock(second.container_id, second.local_id, second.bcsid, 10)
        made.control.clients.commit(
            WRITER, [Key("second", 10, 1, (block,))], may_replace=False, failed=()
        )
        nodes.see(made)
        yield made


def copy(world: ScmWorld, to: Path) -> None:
    """Copy the state of a control plane that runs, as `cp -r` does."""
    shutil.copytree(world.path, to)


def put_back(world: ScmWorld) -> None:
    """Lose the state, put the older copy in its place, and start on it."""
    world.state.close()
    shutil.rmtree(world.path)
    shutil.move(world.path.parent / "older", world.path)
    world.start()


def deletes(world: ScmWorld, nodes: Remembering) -> list[tuple[str, int]]:
    """Let time pass with heartbeats and ticks; return the blocks that are ordered deleted, each
    with its datanode."""
    ordered = []
    for _turn in range(20):
        world.clock.advance_s(1)
        for node in NODES:
            for command, _named in nodes.beat(world, node).commands:
                assert command.kind is not CommandKind.DELETE
                ordered += [(node, one) for t in command.transactions for one in t.local_ids]
        world.control.tick()
    return ordered


def test_state_that_was_put_back_deletes_nothing(world: ScmWorld, nodes: Remembering) -> None:
    """The second block is promised and not committed in the older state: it stays."""
    put_back(world)

    nodes.join(world, *NODES)

    assert [] == deletes(world, nodes)
    assert world.state.restored is not None
    assert not world.control.safe_mode.status().is_open
    (trouble,) = world.control.queries.cluster_facts()[0].refused
    assert "dn1 has seen this state to number" in trouble
    assert world.control.queries.figures().is_older
    with pytest.raises(UnavailableError) as refused:
        world.control.clients.allocate(WRITER, [10])
    assert Code.SAFE_MODE is refused.value.code


def test_state_that_was_put_back_is_recovered(world: ScmWorld, nodes: Remembering) -> None:
    """The recovery brings the key back, ends safe mode, and no later call begins it again."""
    ids = {block.local_id for key in world.state.keys.values() for block in key.blocks}
    second = world.state.keys.get("second")
    assert second is not None
    put_back(world)
    nodes.join(world, *NODES)

    assert (1,) == world.control.queries.to_recover().container_ids
    made = recover(world, second, is_end=True, last_local_id=max(ids))

    assert [("second", "RECOVERED")] == [(one.name, one.code) for one in made.brought]
    assert [] == deletes(world, nodes)
    assert world.state.restored is None
    assert world.control.safe_mode.status().is_open
    assert () == world.control.queries.cluster_facts()[0].refused
    assert world.state.term > max(start.term for start in nodes.seen.values())
    (again,) = world.control.clients.allocate(WRITER, [10])
    assert again.local_id not in ids
    nodes.see(world)
    world.restart()
    nodes.join(world, *NODES, boot_id=3)
    assert world.state.restored is None


def test_state_that_is_newest_is_believed(world: ScmWorld, nodes: Remembering) -> None:
    """A kill and a restart on the same state is no older state."""
    for boot_id in (2, 3):
        world.restart()
        nodes.see(world)
        nodes.join(world, *NODES, boot_id=boot_id)

        assert world.state.restored is None
        assert world.control.safe_mode.status().is_open


def test_memory_of_one_datanode_is_enough(world: ScmWorld, nodes: Remembering) -> None:
    """One datanode's memory is enough even if it comes last, after the gate opened. What was
    given up is taken back.
    """
    put_back(world)
    unknowing = Remembering()
    unknowing.join(world, *NODES)
    assert world.control.safe_mode.status().is_open
    world.control.clients.finish(WRITER, close=True)
    for _turn in range(3):
        world.clock.advance_s(1)
        world.control.tick()
        for node in NODES[:2]:
            unknowing.beat(world, node)
    (given_up,) = world.state.transactions.values()
    assert given_up.is_unproven

    nodes.beat(world, "dn3")

    assert 0 == len(world.state.transactions)
    assert 0 == len(world.state.commands)
    assert not world.control.safe_mode.status().is_open
    assert [] == deletes(world, nodes)
    with pytest.raises(RefusedError, match="suture scm recover"):
        world.control.safe_mode.leave()


def test_two_control_planes_on_copies_of_one_state(world: ScmWorld, nodes: Remembering) -> None:
    """Each is notified of the other, neither deletes, and both report it."""
    world.state.close()
    other = ScmWorld(world.path.parent / "older", OPTIONS)
    world.start()
    assert other.state.term == world.state.term
    for one in (world, other):
        nodes.join(one, *NODES)
        nodes.see(one)

    for one in (other, world):
        assert [] == deletes(one, nodes)
        assert one.state.restored is not None
        (trouble,) = one.control.queries.cluster_facts()[0].refused
        assert "another control plane" in trouble
    other.state.close()


def test_copy_that_is_started_later_is_recognised(world: ScmWorld, nodes: Remembering) -> None:
    """Containers closed since the copy was made are recovered, too, because the other one may
    have stored data there.
    """
    other = ScmWorld(world.path.parent / "older", OPTIONS)
    nodes.see(other)
    nodes.join(world, *NODES)
    world.control.clients.finish(WRITER, close=True)
    for node in NODES:
        nodes.beat(world, node)

    container = world.state.containers.get(1)
    assert container is not None
    assert world.state.restored is not None
    assert ContainerState.CLOSED is container.state
    assert (1,) == world.control.queries.to_recover().container_ids
    other.state.close()


def test_machine_that_was_reset_to_a_snapshot_is_recognised(
    world: ScmWorld, nodes: Remembering
) -> None:
    """The process goes on, with an older memory and disk: its start is the same."""
    shown = world.control.reported_start
    nodes.seen = {shown.start_id: replace(shown, state_number=shown.state_number + 100)}

    nodes.join(world, *NODES)

    assert world.state.restored is not None


def test_a_memory_that_cannot_be_is_left_out() -> None:
    """A term near the end of numbers would leave none for the control plane's own."""
    from merkle.replica import ID_MAX
    from scm.api.datanode_wire import heartbeat_from
    from suture.wire.v1 import scm_pb2

    good, bad = (
        scm_pb2.SeenStart(start_id="one", term=term, state_number=5) for term in (4, ID_MAX)
    )
    message = scm_pb2.HeartbeatRequest(datanode_id="dn1", boot_id=1, seen_starts=[bad, good])

    call = heartbeat_from(message, now_ms=1)

    assert (ReportedStart("one", 4, 5),) == call.seen_starts
    assert "seen_starts[0].term" in call.refused[0]
