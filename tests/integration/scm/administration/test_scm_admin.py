"""Orders of operators and plans: shown, judged on the world of now, and aborted if it changed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.replication.reconcile.plan_check import PlannedCommand, PlanRow
from scm.state.entities import CommandKind, Container, OpState, PendingCommand
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, outcome, replica

NODES = ("dn1", "dn2", "dn3", "dn4")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes that stay healthy without calling."""
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000)
    with ScmWorld(tmp_path, options).running() as made:
        made.join(*NODES)
        yield made


@pytest.fixture
def made(world: ScmWorld) -> Container:
    """A closed container on three of them, confirmed by all."""
    container = world.made_closed()
    confirm(world, *NODES)
    world.control.tick()
    return container


def holders(world: ScmWorld, made: Container) -> list[str]:
    """Return the nodes with a replica."""
    return [r.datanode_id for r in world.state.replicas.of(made.container_id)]


def spare(world: ScmWorld, made: Container) -> str:
    """Return the node without one."""
    (node,) = set(NODES) - set(holders(world, made))
    return node


def kinds(world: ScmWorld) -> list[CommandKind]:
    """Return the kinds of what is pending."""
    return [command.kind for command in world.state.commands.values()]


def row(made: Container, action: str, **more: object) -> PlanRow:
    """Build a plan's row."""
    return replace(PlanRow(made.container_id, (), "because"), action=action, **more)  # type: ignore[arg-type]


class TestReplicate:
    def test_a_dry_run_shows_bytes_time_and_copies_and_changes_nothing(
        self, world: ScmWorld, made: Container
    ) -> None:
        """The same order is given when the world it was shown on comes back with it."""
        ids = [made.container_id]
        (shown,) = world.control.admin.replicate(ids, target_id="", worlds=[], dry_run=True)
        assert [] == kinds(world)
        (given,) = world.control.admin.replicate(
            ids, target_id="", worlds=[shown.world], dry_run=False
        )

        (order,) = shown.commands
        source = order.datanode_id
        assert PlannedCommand(CommandKind.REPLICATE, source, spare(world, made), 1_000) == order
        assert ("OK", 3, 4) == (shown.code, shown.copies_before, shown.copies_after)
        assert (shown.commands, 1) == (given.commands, len(given.command_ids))
        assert [CommandKind.REPLICATE] == kinds(world)

    @pytest.mark.parametrize("change", ["replica gone", "root changed", "another copy ordered"])
    def test_a_world_that_changed_aborts(
        self, world: ScmWorld, made: Container, change: str
    ) -> None:
        """The execution would differ from what was shown."""
        ids, first = [made.container_id], holders(world, made)[0]
        (shown,) = world.control.admin.replicate(ids, target_id="", worlds=[], dry_run=True)
        if change == "replica gone":
            world.beat(first, full=True)
        elif change == "root changed":
            world.beat(first, replica(first, bcsid=made.sequence_id, root=8))
        else:
            world.control.admin.replicate(ids, target_id="", worlds=[], dry_run=False)
        before = kinds(world)

        (decision,) = world.control.admin.replicate(
            ids, target_id="", worlds=[shown.world], dry_run=False
        )

        assert "STALE_PLAN" == decision.code
        assert before == kinds(world)

    def test_a_target_must_be_able_to_take_it(self, world: ScmWorld, made: Container) -> None:
        """A holder and an unknown datanode are refused as targets."""
        for target in (holders(world, made)[0], "dn9"):
            (decision,) = world.control.admin.replicate(
                [made.container_id], target_id=target, worlds=[], dry_run=False
            )
            assert "INELIGIBLE" == decision.code
            assert target in decision.message
        assert [] == kinds(world)


class TestDelete:
    def test_delete_order_keeps_two_of_three_replicas(
        self, world: ScmWorld, made: Container
    ) -> None:
        """Two whole replicas stay, whoever orders the delete. Then the lost one is copied again."""
        first, second, _third = holders(world, made)
        (one,) = self.order(world, made, first)
        (two,) = self.order(world, made, second)

        assert ("OK", 3, 2) == (one.code, one.copies_before, one.copies_after)
        assert "NOT_ENOUGH_REPLICAS" == two.code
        ((command, _named),) = world.call(first).commands
        assert (True, 2) == (command.force, command.keep_count)
        world.beat(first, full=True, outcomes=(outcome(command),))
        world.control.tick()
        assert [CommandKind.REPLICATE] == kinds(world)

    def test_a_bad_replica_may_go_and_the_last_good_ones_not(
        self, world: ScmWorld, made: Container
    ) -> None:
        """The last good replicas cannot be deleted by an order."""
        first, second, third = holders(world, made)
        for node in (first, second):
            bad = replica(node, ReplicaState.UNHEALTHY, bcsid=made.sequence_id, root=9)
            world.beat(node, bad)

        answers = [self.order(world, made, node)[0].code for node in (third, first)]

        assert ["NOT_ENOUGH_REPLICAS"] * 2 == answers

    @staticmethod
    def order(world: ScmWorld, made: Container, node: str) -> list:  # type: ignore[type-arg]
        """PlannedCommand a replica deleted."""
        return world.control.admin.delete(
            [made.container_id], datanode_id=node, worlds=[], dry_run=False
        )


class TestPlanRows:
    def test_a_container_that_is_whole_again_is_not_copied(
        self, world: ScmWorld, made: Container
    ) -> None:
        """The plan saw two replicas; there are three now."""
        nodes = holders(world, made)

        answer = world.control.plans.apply_plan(
            [row(made, "replicate", sources=tuple(nodes), copies=1)], dry_run=False
        )

        message = (
            "container is CLOSED, 0 copies are under way, and no replica of "
            f"{', '.join(nodes)} is to be copied now"
        )

        assert [("STALE_PLAN", message)] == [(d.code, d.message) for d in answer]
        assert [] == kinds(world)

    def test_a_copy_that_is_needed_is_ordered_once(self, world: ScmWorld, made: Container) -> None:
        """A plan that has expired orders nothing, and a second plan finds the copy in progress."""
        lost, *left = holders(world, made)
        world.beat(lost, full=True)
        planned = row(made, "replicate", sources=tuple(left), copies=1)
        plans = (replace(planned, expires_at_ms=1), planned, planned)

        codes = [world.control.plans.apply_plan([one], dry_run=False)[0].code for one in plans]

        assert ["STALE_PLAN", "OK", "STALE_PLAN"] == codes
        assert [CommandKind.REPLICATE] == kinds(world)

    def test_two_rows_of_one_plan_do_not_order_the_same_twice(
        self, world: ScmWorld, made: Container
    ) -> None:
        """The second is looked at in the world that the first made."""
        lost, *left = holders(world, made)
        world.beat(lost, full=True)
        planned = row(made, "replicate", sources=tuple(left), copies=1)

        codes = [d.code for d in world.control.plans.apply_plan([planned, planned], dry_run=False)]

        assert ["OK", "STALE_PLAN"] == codes
        assert [CommandKind.REPLICATE] == kinds(world)

    def test_plan_rows_are_executed_all_or_none(self, world: ScmWorld, made: Container) -> None:
        """One of two containers changes: the other is not touched either, and both have the
        reason.
        """
        second = world.made_closed()
        confirm(world, *NODES)
        rows = [
            row(c, "replicate", sources=tuple(holders(world, c)[1:]), copies=1)
            for c in (made, second)
        ]
        for container in (made, second):
            first = holders(world, container)[0]
            kept = [
                r
                for r in world.state.replicas.values()
                if (r.datanode_id, r.container_id) != (first, container.container_id)
                and r.datanode_id == first
            ]
            world.beat(first, *kept, full=True)
        shown = [d.world for d in world.control.plans.apply_plan(rows, dry_run=True)]
        left = world.state.replicas.of(second.container_id)[0]
        world.beat(left.datanode_id, replace(left, finding_count=1))

        aborted = world.control.plans.apply_plan(rows, worlds=shown, dry_run=False)
        before = kinds(world)
        world.beat(left.datanode_id, left)
        done = world.control.plans.apply_plan(rows, worlds=shown, dry_run=False)

        assert ["STALE_PLAN"] * 2 == [decision.code for decision in aborted]
        assert f"changed {second.container_id}" in aborted[0].message
        assert [] == before
        assert ["OK"] * 2 == [decision.code for decision in done]

    def test_only_the_replica_that_everyone_would_choose_is_deleted(
        self, world: ScmWorld, made: Container
    ) -> None:
        """With four replicas the plan may name one, and with three none."""
        node = spare(world, made)
        three = world.control.plans.apply_plan(
            [row(made, "delete", targets=(holders(world, made)[0],), is_forced=True)], dry_run=True
        )
        world.beat(node, replica(node, bcsid=made.sequence_id))
        confirm(world, *NODES)
        codes = {
            target: world.control.plans.apply_plan(
                [row(made, "delete", targets=(target,), is_forced=True)], dry_run=True
            )[0].code
            for target in holders(world, made)
        }

        assert "STALE_PLAN" == three[0].code
        assert ["OK", "STALE_PLAN", "STALE_PLAN", "STALE_PLAN"] == sorted(codes.values())

    def test_plan_does_not_delete_a_container_that_keys_need_as_empty(
        self, world: ScmWorld, made: Container
    ) -> None:
        """The container stays even if the plan saw that all replicas reported to be empty."""
        for node in holders(world, made):
            lost = replica(node, container_id=made.container_id, bcsid=made.sequence_id)
            world.beat(node, replace(lost, is_empty=True))

        (decision,) = world.control.plans.apply_plan(
            [row(made, "delete", targets=tuple(holders(world, made)))], dry_run=False
        )

        assert "STALE_PLAN" == decision.code

    def test_a_close_that_is_done_is_stale(self, world: ScmWorld, made: Container) -> None:
        """A finished close is stale, and an unfinished one is ordered."""
        world.write("b", "open", 5)
        (opened,) = world.state.containers.open_all()
        nodes = tuple(holders(world, opened))
        rows = [row(made, "close", targets=nodes[:1]), row(opened, "close", targets=nodes)]

        done, due = world.control.plans.apply_plan(rows, dry_run=False)

        assert ("STALE_PLAN", "OK") == (done.code, due.code)
        assert 3 == len(due.command_ids)

    @pytest.mark.parametrize(
        ("action", "more", "code"),
        [
            ("replicate", {"expires_at_ms": 1}, "STALE_PLAN"),
            ("replicate", {"sources": ("dn9",)}, "STALE_PLAN"),
            ("reconstruct", {}, "INELIGIBLE_REPLICATION_TYPE"),
        ],
    )
    def test_other_rows_are_refused_by_name(
        self, world: ScmWorld, made: Container, action: str, more: dict[str, object], code: str
    ) -> None:
        """Too late, about a replica that is not there, or not for this kind of container."""
        assert [code] == [
            d.code
            for d in world.control.plans.apply_plan([row(made, action, **more)], dry_run=False)
        ]

    def test_in_safe_mode_no_row_is_applied(self, world: ScmWorld, made: Container) -> None:
        """No datanode has reported yet."""
        world.restart()

        answers = world.control.plans.apply_plan(
            [row(made, "replicate"), row(made, "close"), row(made, "reconcile")], dry_run=False
        )

        assert ["SAFE_MODE"] * 3 == [d.code for d in answers]


def test_datanodes_are_told_to_measure_or_register_again(world: ScmWorld) -> None:
    """Those that can be reached; the others are named."""
    answers = world.control.admin.command_nodes(["dn1", "dn9"], CommandKind.REFRESH_VOLUME_USAGE)

    assert [("dn1", "OK"), ("dn9", "WRONG_DATANODE")] == [(d.datanode_id, d.code) for d in answers]
    ((command, _named),) = world.call("dn1").commands
    assert CommandKind.REFRESH_VOLUME_USAGE is command.kind


@pytest.mark.parametrize("dry_run", [True, False])
def test_reconcile_before_datanodes_call_is_refused_as_safe_mode(
    world: ScmWorld, made: Container, dry_run: bool
) -> None:
    """The SCM knows no peers before datanodes call, so that the refusal is not final."""
    before = world.control.admin.reconcile([made.container_id], dry_run=dry_run)
    world.restart()

    after = world.control.admin.reconcile([made.container_id, 99], dry_run=dry_run)

    assert ["OK"] == [d.code for d in before]
    assert ["SAFE_MODE", "CONTAINER_NOT_FOUND"] == [d.code for d in after]


def test_dead_datanode_is_not_one_that_may_call_soon(tmp_path: Path) -> None:
    """A silent datanode is UNAVAILABLE, for which commands wait; a dead one is refused."""
    options = ScmOptions(stale_after_ms=1_000, dead_after_ms=20_000)
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1")
        codes = []
        for seconds in (0, 5, 20):
            world.clock.advance_s(seconds)
            (answer,) = world.control.admin.command_nodes(["dn1"], CommandKind.REREGISTER)
            codes.append(answer.code)

    assert ["OK", "UNAVAILABLE", "INELIGIBLE"] == codes


def test_the_replication_limit_of_a_datanode_is_an_option(tmp_path: Path) -> None:
    """Three copies at once are sent to a node in service and twice as many to one that leaves.
    The rest waits. The cluster-wide limit follows, and the queues show it.
    """
    options = ScmOptions(replication_limit=3)
    with ScmWorld(tmp_path, options).running() as world:
        world.join("dn1", "dn2")
        confirm(world, "dn1", "dn2")
        with world.state.change() as change:
            node = world.state.nodes.get("dn2")
            assert node is not None
            change.put(world.state.nodes, replace(node, op_state=OpState.DECOMMISSIONING))
            for number in range(1, 13):
                kind = CommandKind.DELETE if number > 6 else CommandKind.REPLICATE
                change.put(world.state.commands, PendingCommand(number, kind, number, "dn1"))
        limits = {
            one.node.datanode_id: (one.replication_limit, one.delete_limit)
            for one in world.control.queries.queues().nodes
        }
        with world.state.change() as change:
            sent = world.control.commands.drain(change, "dn1", lambda _commands: {})
        in_flight = world.control.queries.queues().pending_add_limit

    assert {"dn1": (3, 40), "dn2": (6, 40)} == limits
    assert [CommandKind.REPLICATE] * 3 + [CommandKind.DELETE] * 6 == [
        command.kind for command in sent
    ]
    assert 5 == in_flight  # 75 % of two healthy datanodes' three


def test_queues_show_what_was_reported_sent_and_waits(world: ScmWorld) -> None:
    """With the limits, and who is at his."""
    world.queues["dn1"] = (("replicate", 20),)
    world.call("dn1")
    world.control.admin.command_nodes(["dn2"], CommandKind.REREGISTER)

    queues = world.control.queries.queues()

    first, second, *_rest = queues.nodes
    assert (20, 20, True) == (
        first.replication_load,
        first.replication_limit,
        first.is_excluded,
    )
    assert (("reregister", 1),) == second.waiting
    assert (0, 60) == (queues.pending_add_count, queues.pending_add_limit)
