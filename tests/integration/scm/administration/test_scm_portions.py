"""Requests about nodes with many containers: others have the lock in between, and what they do
there is not lost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.administration.container_pages import PAGE
from scm.administration.decommission import OpStateRequest
from scm.administration.node_removal import LOOKS_PER_TURN
from scm.administration.replica_orders import NodeDecision
from scm.state.entities import OpState, Replica
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, container, replica

NODES = ("dn1", "dn2", "dn3", "dn4")
HOLDERS = NODES[:3]
COUNT = 2 * max(PAGE, LOOKS_PER_TURN) + 10
OPTIONS = ScmOptions(stale_after_ms=10_000, dead_after_ms=20_000, heal=False)
LEAVE, REST, STAY = OpState.DECOMMISSIONING, OpState.ENTERING_MAINTENANCE, OpState.IN_SERVICE


@contextmanager
def filled(path: Path, count: int) -> Iterator[ScmWorld]:
    """Let three nodes of four have so many closed containers."""
    with ScmWorld(path, OPTIONS).running() as made:
        made.join(*NODES)
        with made.state.change() as change:
            for number in range(1, count + 1):
                change.put(made.state.containers, container(container_id=number))
                change.next_id("next_container_id")
        for node in HOLDERS:
            made.beat(
                node, *(replica(node, container_id=n) for n in range(1, count + 1)), full=True
            )
        confirm(made, "dn4")
        made.control.tick()
        yield made


def in_between(world: ScmWorld, do: Callable[[int], object]) -> None:
    """Have something done whenever the lock was let go from now on; it is told how often it was."""
    lock = world.control.access.lock
    told, count, is_doing = lock._held, 0, False

    def held(seconds: float, spent_s: float) -> None:
        nonlocal count, is_doing
        told(seconds, spent_s)
        if is_doing:
            return
        is_doing, count = True, count + 1
        do(count)
        is_doing = False

    lock._held = held


def ask(world: ScmWorld, op_state: OpState, *nodes: str, **more: bool) -> NodeDecision:
    """Ask for a state of nodes; return what was decided on the first."""
    return world.control.departure_requests.submit(OpStateRequest(nodes, op_state, **more))[0]


def fall_silent(world: ScmWorld, *nodes: str) -> None:
    """Let nodes be silent until they are dead."""
    for _ in range(5):
        world.clock.advance_s(5)
        world.keep_alive(*(other for other in NODES if other not in nodes))
        world.control.tick()


@pytest.mark.parametrize("op_state", [LEAVE, REST])
@pytest.mark.parametrize("is_dry_run", [False, True])
def test_heartbeats_are_taken_in_while_it_is_found_out_what_leaving_means(
    tmp_path: Path, op_state: OpState, is_dry_run: bool
) -> None:
    """With hundreds of thousands of containers that takes longer than makes a node look silent:
    then all would."""
    with filled(tmp_path, COUNT) as world:
        called: list[bool] = []
        in_between(world, lambda _: called.append(world.call("dn4").is_known))
        decision = ask(world, op_state, "dn1", is_dry_run=is_dry_run)

    assert "OK" == decision.code
    assert all(called)
    assert len(called) > COUNT / PAGE + 3, "before, in between and after"


def test_maintenance_check_counts_all_pages(tmp_path: Path) -> None:
    """Containers that become unreadable without the nodes are on the first page and on the last."""
    with filled(tmp_path, COUNT) as world:
        for node in HOLDERS[1:]:
            kept = (replica(node, container_id=n) for n in range(2, COUNT))
            world.beat(node, *kept, full=True)
        decision = ask(world, REST, "dn1", is_dry_run=True)

    locked = f"2 containers cannot be read without them until they are copied: 1, {COUNT}"
    assert ("OK", locked) == (decision.code, decision.message)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_nodes_that_begin_to_leave_meanwhile_are_not_counted_on(tmp_path: Path, at: int) -> None:
    """One of four nodes may leave. Of two concurrent requests only one is permitted."""
    with filled(tmp_path, 1) as world:
        others: list[str] = []

        def leave_too(count: int) -> None:
            if count == at:
                others.append(ask(world, LEAVE, "dn2").code)

        in_between(world, leave_too)
        decision = ask(world, LEAVE, "dn1")

    assert ["OK"] == others
    assert "PRECHECK_FAILED" == decision.code
    assert "3 nodes in service are needed for 1 containers, 2 would be left" in decision.message


def test_maintenance_check_that_never_settles_is_refused_unless_forced(tmp_path: Path) -> None:
    """Other nodes leave and return without end, so the check gives up."""
    with filled(tmp_path, 1) as world:

        def turn_about(_: int) -> None:
            row = world.state.nodes.get("dn4")
            assert row is not None
            with world.state.change() as change:
                state = REST if row.op_state is STAY else STAY
                change.put(world.state.nodes, replace(row, op_state=state))

        in_between(world, turn_about)
        decision = ask(world, REST, "dn1")
        forced = ask(world, REST, "dn1", is_forced=True)

    message = "other datanodes began to leave or to return meanwhile: ask again"
    assert ("PRECHECK_FAILED", message) == (decision.code, decision.message)
    assert ("OK", f"in spite of: {message}") == (forced.code, forced.message)


def test_a_node_that_is_removed_meanwhile_is_not_known(tmp_path: Path) -> None:
    """The removed node is not recorded again."""
    with filled(tmp_path, 1) as world:

        def remove(count: int) -> None:
            if count == 2:
                with world.state.change() as change:
                    change.remove(world.state.nodes, "dn1")

        in_between(world, remove)
        decision = ask(world, LEAVE, "dn1", is_forced=True)

    assert "WRONG_DATANODE" == decision.code


class TestRemoved:
    def test_heartbeats_are_taken_in_while_a_node_is_struck_off(self, tmp_path: Path) -> None:
        """While it is found out what that means, and while it is done."""
        with filled(tmp_path, COUNT) as world:
            fall_silent(world, "dn1")
            called: list[bool] = []
            in_between(world, lambda _: called.append(world.call("dn4").is_known))
            (shown,) = world.control.parting.remove_nodes(["dn1"], is_forced=False, is_dry_run=True)
            shown_in = len(called)
            (done,) = world.control.parting.remove_nodes(["dn1"], is_forced=False, is_dry_run=False)
            left = world.state.replicas.on("dn1")
            node = world.state.nodes.get("dn1")

        told = f"{COUNT} replicas leave the books; {COUNT} containers have fewer replicas than they"
        assert all(called)
        assert shown_in > COUNT / PAGE + 1
        assert len(called) - 2 * shown_in > COUNT / LOOKS_PER_TURN + 1
        assert ("OK", True) == (shown.code, shown.message.startswith(told))
        assert shown == done
        assert (frozenset(), None) == (left, node)

    def test_a_removal_that_was_cut_off_goes_on_when_it_is_asked_for_again(
        self, tmp_path: Path
    ) -> None:
        """The control plane dies half way: until then the node is dead, and what is left of
        it is known."""
        with filled(tmp_path, COUNT) as world:
            fall_silent(world, "dn1")

            def die_when_some_is_gone(_: int) -> None:
                if len(world.state.replicas.on("dn1")) < COUNT:
                    raise KeyboardInterrupt

            in_between(world, die_when_some_is_gone)
            with pytest.raises(KeyboardInterrupt):
                world.control.parting.remove_nodes(["dn1"], is_forced=False, is_dry_run=False)
            world.restart()
            for node in ("dn2", "dn3", "dn4"):
                world.join(node)
            confirm(world, "dn2", "dn3", "dn4")
            fall_silent(world, "dn1")
            left = len(world.state.replicas.on("dn1"))
            (done,) = world.control.parting.remove_nodes(["dn1"], is_forced=False, is_dry_run=False)
            held = world.state.replicas.on("dn1")
            node = world.state.nodes.get("dn1")

        assert 0 < left < COUNT
        assert ("OK", True) == (done.code, done.message.startswith(f"{left} replicas leave"))
        assert (frozenset(), None) == (held, node)

    def test_node_that_registers_during_its_removal_stays(self, tmp_path: Path) -> None:
        """The node has to register, and then all replicas that it reports are recorded again."""
        with filled(tmp_path, COUNT) as world:
            fall_silent(world, "dn1")
            known: list[bool] = []

            def call_when_some_is_gone(_: int) -> None:
                if not known and len(world.state.replicas.on("dn1")) < COUNT:
                    known.append(world.call("dn1").is_known)
                    world.join("dn1")

            in_between(world, call_when_some_is_gone)
            (decision,) = world.control.parting.remove_nodes(
                ["dn1"], is_forced=False, is_dry_run=False
            )
            kept = len(world.state.replicas.on("dn1"))
            mine = (replica("dn1", container_id=n) for n in range(1, COUNT + 1))
            world.beat("dn1", *mine, full=True)
            named = len(world.state.replicas.on("dn1"))

        assert [False] == known
        assert "INELIGIBLE" == decision.code
        assert 0 < kept < COUNT == named

    @pytest.mark.parametrize(
        ("other", "is_needed"),
        [
            (replica("dn2"), False),
            (replica("dn2", bcsid=4), True),
            (replica("dn2", ReplicaState.UNHEALTHY), True),
            (replica("dn2", load_error="descriptor lost"), True),
            (replica("dn2", ReplicaState.RECOVERING), True),
        ],
        ids=["whole", "behind", "unhealthy", "unreadable", "recovering"],
    )
    def test_incomplete_replica_does_not_permit_the_removal_of_a_node(
        self, tmp_path: Path, other: Replica, is_needed: bool
    ) -> None:
        """Another replica must be whole and have all commits."""
        with filled(tmp_path, 1) as world:
            world.beat("dn2", other, full=True)
            world.beat("dn3", full=True)
            fall_silent(world, "dn1")

            assert is_needed is is_refused(world, "dn1")

    @pytest.mark.parametrize(("gone", "is_needed"), [(("dn1",), False), (("dn1", "dn2"), True)])
    def test_shards_are_counted_by_index(
        self, tmp_path: Path, gone: tuple[str, ...], is_needed: bool
    ) -> None:
        """One shard of xor-2-1 may go. A second copy of another shard does not replace it."""
        with filled(tmp_path, 1) as world:
            with world.state.change() as change:
                row = replace(container(), scheme="xor-2-1-64k")
                change.put(world.state.containers, row)
            for node, index in zip(NODES, (1, 2, 3, 3), strict=True):
                world.beat(node, replica(node, replica_index=index), full=True)
            fall_silent(world, *gone)

            assert is_needed is is_refused(world, *gone)


def is_refused(world: ScmWorld, *nodes: str) -> bool:
    """Whether these dead nodes may not be removed together, as somebody needs one of them."""
    found = world.control.parting.remove_nodes(nodes, is_forced=False, is_dry_run=True)
    assert {"OK", "PRECHECK_FAILED"} >= {d.code for d in found}
    return "OK" not in {d.code for d in found}
