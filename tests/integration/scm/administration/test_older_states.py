"""A state that is older than what datanodes saw is treated as restored, and deletes nothing."""

import shutil
import time
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
        self.bcsids = dict.fromkeys(NODES, 2)
        """By datanode: the last commit of its replica."""
        self.container_ids = [1]

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
        mine = tuple(
            replica(node, ReplicaState.CLOSED, container_id=one, bcsid=self.bcsids[node])
            for one in self.container_ids
        )
        report = NodeReplicaReport(True, 1, 0, is_last=True, replicas=mine)
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
    world.clock.set_wall_s(time.time())  # a start is dated by the real clock
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


def give_blocks_up(world: ScmWorld, nodes: Remembering) -> None:
    """End the writer, so that the state orders deleted the blocks whose commits it lacks."""
    world.control.clients.finish(WRITER, close=True)
    for _turn in range(3):
        world.clock.advance_s(1)
        world.control.tick()
        for node in NODES[:2]:
            nodes.beat(world, node)
    (given_up,) = world.state.transactions.values()
    assert given_up.is_unproven


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
    give_blocks_up(world, unknowing)

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


def store_third(world: ScmWorld) -> Key:
    """Store one more key in container 1 after the copy of the state was made."""
    (third,) = world.control.clients.allocate(WRITER, [10])
    block = KeyBlock(third.container_id, third.local_id, third.bcsid, 10)
    stored = Key("third", 10, 1, (block,))
    world.control.clients.commit(WRITER, [stored], may_replace=False, failed=())
    assert (1, 3) == (third.container_id, third.bcsid)
    return stored


def test_later_state_without_a_heartbeat_is_recognised_by_its_blocks(world: ScmWorld) -> None:
    """The copy, the last commits and the loss all fall between two heartbeats, so that no datanode
    has seen the later state. Blocks that it allocated are on two datanodes.
    """
    second, third = world.state.keys.get("second"), store_third(world)
    assert second is not None
    put_back(world)
    unknowing = Remembering()
    unknowing.bcsids.update(dn1=3, dn3=3)

    unknowing.join(world, *NODES)

    assert [] == deletes(world, unknowing)
    assert world.state.restored is not None
    assert not world.control.safe_mode.status().is_open
    (trouble,) = world.control.queries.cluster_facts()[0].refused
    assert "datanodes dn1 and dn3 have data of container 1" in trouble
    assert (1,) == world.control.queries.to_recover().container_ids
    last_local_id = third.blocks[0].local_id
    made = recover(world, second, third, is_end=True, last_local_id=last_local_id)
    assert ["RECOVERED", "RECOVERED"] == [one.code for one in made.brought]
    assert [] == deletes(world, unknowing)
    assert world.state.restored is None
    assert world.control.safe_mode.status().is_open


def test_later_state_is_recognised_after_it_gave_blocks_up(world: ScmWorld) -> None:
    """The second of two datanodes reports after the gate opened; pending deletes are dropped."""
    store_third(world)
    put_back(world)
    unknowing = Remembering()
    unknowing.bcsids["dn1"] = 3
    unknowing.join(world, *NODES)
    assert world.control.safe_mode.status().is_open
    give_blocks_up(world, unknowing)

    unknowing.bcsids["dn3"] = 3
    unknowing.beat(world, "dn3")

    assert 0 == len(world.state.transactions)
    assert [] == deletes(world, unknowing)


def test_later_state_is_recognised_by_its_containers(world: ScmWorld) -> None:
    """Two datanodes have a container whose id this state has not assigned."""
    put_back(world)
    unknowing = Remembering()
    unknowing.container_ids = [1, world.state.counters["next_container_id"]]

    unknowing.join(world, "dn1")
    assert world.state.restored is None
    unknowing.join(world, "dn2")

    assert world.state.restored is not None
    assert tuple(unknowing.container_ids) == world.control.queries.to_recover().container_ids


def test_invented_ids_do_not_stop_a_cluster(world: ScmWorld, nodes: Remembering) -> None:
    """One datanode that reports a commit which was never allocated proves nothing, and neither do
    containers with ids that no control plane can have assigned yet.
    """
    world.restart()
    nodes.bcsids["dn2"] = 1_000
    nodes.container_ids = [1, 2**40]

    nodes.join(world, *NODES)

    assert world.state.restored is None
    assert world.control.safe_mode.status().is_open


def test_containers_of_datanodes_that_join_a_new_cluster_are_no_later_state(
    tmp_path: Path, nodes: Remembering
) -> None:
    """A state that never had a container has no blocks that it could delete."""
    with ScmWorld(tmp_path / "new", OPTIONS).running() as world:
        nodes.join(world, *NODES)

        assert world.state.restored is None
        assert (1,) == world.control.queries.to_recover().container_ids


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
