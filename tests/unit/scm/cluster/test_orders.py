"""Commands: queued once, sent within limits, repeated until reports show it, answered once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.call_values import HeartbeatAnswer
from scm.cluster.commands import command_limits
from scm.cluster.commands.command_limits import RECONCILE_LIMIT
from scm.cluster.commands.pending_ops import LOST_AFTER_S
from scm.replication.reconcile.plan_check import PlanReplica, PlanRow
from scm.replication.reconcile.reconcile_scheduler import TRIES_MAX
from scm.state.entities import CommandKind, Container, ContainerState, OutcomeState
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, outcome, replica

OPTIONS = ScmOptions(
    heal=False,  # what people and plans order is looked at here
    close_retry_ms=1_000,
    command_deadline_ms=100_000,
    stale_after_ms=1_000_000,
    dead_after_ms=2_000_000,
)
NODES = ("dn1", "dn2", "dn3")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes that stay healthy without calling."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


def kinds(answer: HeartbeatAnswer) -> list[tuple[CommandKind, int]]:
    """Return the commands of an answer as kind and container."""
    return [(command.kind, command.container_id) for command, _peers in answer.commands]


def plan_row(world: ScmWorld, container_id: int) -> PlanRow:
    """Build the row a plan made now would have."""
    return PlanRow(
        container_id,
        tuple(
            PlanReplica(r.datanode_id, r.state, r.tree.root if r.tree else None)
            for r in world.state.replicas.of(container_id)
        ),
        "roots differ",
    )


class TestClose:
    def test_every_replica_is_told_the_last_committed_bcsid(self, world: ScmWorld) -> None:
        """Each replica is told once while it has not answered."""
        world.write("a", "k", 1, 2)
        world.control.clients.finish("a", close=True)

        for node in NODES:
            answer = world.call(node)
            assert [(CommandKind.CLOSE, 1)] == kinds(answer)
            command, _peers = answer.commands[0]
            assert (2, False) == (command.bcsid, command.force)
            assert [] == kinds(world.call(node))

    def test_close_is_repeated_with_growing_pauses_until_reported(self, world: ScmWorld) -> None:
        """EXECUTED is a claim, and the report is the proof."""
        world.write("a", "k", 1)
        world.control.clients.finish("a", close=True)
        sent_after_s = []
        for second in range(20):
            world.control.tick()
            answer = world.call("dn1")
            if answer.commands:
                sent_after_s.append(second)
                world.execute("dn1", answer)
            world.clock.advance_s(1)

        world.beat("dn1", replica("dn1", container_id=1, bcsid=1))
        world.clock.advance_s(600)
        world.control.tick()

        assert [0, 1, 3, 7, 15] == sent_after_s
        assert [] == kinds(world.call("dn1"))

    def test_replaced_command_has_an_outcome(self, world: ScmWorld) -> None:
        """A caller that has its id can look the outcome up."""
        world.write("a", "k", 1, 2)
        world.control.clients.finish("a", close=True)
        (first,) = world.state.commands.of_node("dn2")

        world.beat("dn1", replica("dn1", ReplicaState.OPEN, container_id=1, bcsid=3, root=None))
        (second,) = world.state.commands.of_node("dn2")
        outcomes, pending = world.control.queries.outcomes([first.command_id], 10)

        assert (2, 3) == (first.bcsid, second.bcsid)
        assert first.command_id not in pending
        assert [("SKIPPED", "INELIGIBLE")] == [(o.state, o.code) for o in outcomes]

    def test_an_unanswered_one_is_not_ordered_again(self, world: ScmWorld) -> None:
        """The command is not ordered again, however long the datanode takes."""
        world.write("a", "k", 1)
        world.control.clients.finish("a", close=True)
        world.queues["dn1"] = (("close", 1),)
        first = world.call("dn1")
        for _ in range(9):
            world.clock.advance_s(10)
            world.control.tick()
            assert [] == kinds(world.call("dn1"))

        (pending,) = world.state.commands.of_node("dn1")

        assert first.commands[0][0].command_id == pending.command_id

    def test_a_node_that_never_got_a_replica_is_struck_off(self, world: ScmWorld) -> None:
        """Three such nodes and no commit: the container never was."""
        world.control.clients.allocate("a", [1])
        world.control.clients.finish("a", close=True)
        for node in NODES:
            (command, _peers), *_rest = world.call(node).commands
            lost = outcome(command, OutcomeState.FAILED, code="CONTAINER_NOT_FOUND")
            world.beat(node, outcomes=(lost,))

        assert "DELETED" == world.control.views.container(1).state

    def test_a_caught_up_quasi_closed_replica_is_closed_by_force(self, world: ScmWorld) -> None:
        """First behind, then reconciled to the same root: nothing speaks against it any more."""
        made = world.made_closed()
        number, bcsid = made.container_id, made.sequence_id
        behind = replica("dn3", ReplicaState.QUASI_CLOSED, container_id=number, bcsid=bcsid, root=8)
        world.beat("dn3", behind)
        different = kinds(world.call("dn3"))

        world.beat(
            "dn3",
            replica("dn3", ReplicaState.QUASI_CLOSED, container_id=number, bcsid=bcsid, root=7),
        )
        (command,) = world.state.commands.of_node("dn3")

        assert [] == different
        assert (CommandKind.CLOSE, True) == (command.kind, command.force)


class TestReconcile:
    def test_reconcile_goes_to_each_replica_with_all_its_peers(self, world: ScmWorld) -> None:
        """The addresses are current. The replica that differs comes before its two good peers."""
        made = world.made_closed(roots=(7, 7, 8))

        (decision,) = world.control.admin.reconcile([made.container_id])

        assert "OK" == decision.code
        assert 3 == len(set(decision.command_ids))
        assert [] == [command for node in ("dn1", "dn2") for command in world.call(node).commands]
        for node in ("dn3", "dn1", "dn2"):
            answer = world.call(node)
            ((command, peers),) = answer.commands
            world.execute(node, answer)
            assert CommandKind.RECONCILE is command.kind
            assert {(n, f"{n}:9859") for n in NODES if n != node} == {
                (p.datanode_id, p.address) for p in peers
            }
            assert 50_000 == command.lifetime_ms
            assert world.clock.now_ms() + 50_000 == command.deadline_ms

    def test_asking_twice_orders_once(self, world: ScmWorld) -> None:
        """The second answer names the same commands."""
        made = world.made_closed()

        first = world.control.admin.reconcile([made.container_id])[0]
        second = world.control.admin.reconcile([made.container_id])[0]

        assert first.command_ids == second.command_ids
        assert "3 of 3 were ordered before" == second.message

    def test_a_command_whose_world_changed_before_its_turn_is_dropped(
        self, world: ScmWorld
    ) -> None:
        """The command is answered as skipped, so that no caller waits for it."""
        made = world.made_closed()
        (decision,) = world.control.admin.reconcile([made.container_id])
        world.beat("dn2", full=True)
        world.beat("dn3", full=True)

        answer = world.call("dn1")
        outcomes, pending = world.control.queries.outcomes(decision.command_ids, 10)

        assert [] == kinds(answer)
        assert [] == pending
        assert {("SKIPPED", "INELIGIBLE")} == {(o.state, o.code) for o in outcomes}

    def test_the_budget_holds_and_every_answer_makes_room(self, world: ScmWorld) -> None:
        """There are more containers than the limit, and the rest waits."""
        made = [world.made_closed().container_id for _ in range(RECONCILE_LIMIT + 3)]
        world.control.admin.reconcile(made)

        first = world.call("dn1")
        second = world.call("dn1")
        world.execute("dn1", type(first)(True, first.commands[:2]))
        sent = [c for c in world.state.commands.of_node("dn1") if c.sent_at_s is not None]

        assert RECONCILE_LIMIT == len(first.commands)
        assert () == second.commands
        assert RECONCILE_LIMIT == len(sent)

    def test_a_full_queue_refuses_and_says_whose(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """None of the container's replicas is ordered then."""
        monkeypatch.setattr(command_limits, "QUEUE_MAX", 2)
        made = [world.made_closed().container_id for _ in range(3)]

        decisions = world.control.admin.reconcile(made)

        assert ["OK", "OK", "BUSY"] == [decision.code for decision in decisions]
        assert "the queue of dn1 is full" == decisions[2].message
        assert 6 == len(world.state.commands)


class TestAnswers:
    def test_an_outcome_ends_a_command_and_is_kept(self, world: ScmWorld) -> None:
        """The outcome is kept over a restart."""
        command_ids = self.ordered(world)
        ((command, _peers),) = world.call("dn1").commands
        world.beat("dn1", outcomes=(outcome(command, OutcomeState.FAILED, code="BUSY"),))
        world.restart()

        outcomes, pending = world.control.queries.outcomes(command_ids, 10)

        assert [("FAILED", "BUSY")] == [(o.state, o.code) for o in outcomes]
        assert 2 == len(pending)

    def test_an_answer_of_another_node_is_not_believed(self, world: ScmWorld) -> None:
        """Ids are easy to guess."""
        command_ids = self.ordered(world)
        ((command, _peers),) = world.call("dn1").commands
        forged = type(command)(
            command.command_id, command.kind, command.container_id, datanode_id="dn2"
        )
        world.beat("dn2", outcomes=(outcome(forged),))

        early = world.control.queries.outcomes(command_ids, 10)
        world.beat("dn1", outcomes=(outcome(command, OutcomeState.SKIPPED),))
        world.beat("dn2", outcomes=(outcome(forged),))
        late = world.control.queries.outcomes(command_ids, 10)

        assert command.command_id in early[1]
        assert [("dn1", "SKIPPED")] == [(o.datanode_id, o.state) for o in late[0]]

    def test_an_answer_to_a_command_never_given_is_ignored(self, world: ScmWorld) -> None:
        """A datanode of a restored backup may still hold commands of a lost future."""
        self.ordered(world)
        ((command, _peers),) = world.call("dn1").commands
        foreign = type(command)(9_999, CommandKind.CLOSE, 1, "dn1")
        world.beat("dn1", outcomes=(outcome(foreign),))

        assert ([], []) == world.control.queries.outcomes([9_999], 10)

    @pytest.mark.parametrize("code", ["DUPLICATE", "STALE_TERM"])
    def test_command_skipped_as_a_repetition_has_not_ended(
        self, world: ScmWorld, code: str
    ) -> None:
        """The first of two duplicates is still running. A command of an old term is sent again
        under the new one, but not at once: another control plane may lead.
        """
        command_ids = self.ordered(world)
        ((command, _peers),) = world.call("dn1").commands
        answer = world.beat("dn1", outcomes=(outcome(command, OutcomeState.SKIPPED, code=code),))

        outcomes, pending = world.control.queries.outcomes(command_ids, 10)

        assert [] == outcomes
        assert command.command_id in pending
        assert [] == kinds(answer)
        world.clock.advance_s(LOST_AFTER_S + 1)
        assert [(CommandKind.RECONCILE, command.container_id)] == kinds(world.call("dn1"))

    def test_a_real_answer_replaces_a_skipped_one(self, world: ScmWorld) -> None:
        """The real answer counts, whichever of the two comes first."""
        command_ids = self.ordered(world)
        ((command, _peers),) = world.call("dn1").commands
        world.beat("dn1", outcomes=(outcome(command, OutcomeState.SKIPPED),))
        world.beat("dn1", outcomes=(outcome(command, OutcomeState.EXECUTED),))
        world.beat("dn1", outcomes=(outcome(command, OutcomeState.SKIPPED),))

        (found,), _pending = world.control.queries.outcomes(command_ids, 10)

        assert OutcomeState.EXECUTED is found.state

    def test_no_answer_in_time_ends_a_command(self, world: ScmWorld) -> None:
        """After the datanode's own deadline, so that nothing runs unwatched."""
        command_ids = self.ordered(world)
        for node in NODES:
            world.call(node)
        world.clock.advance_s(100.1)
        world.control.tick()

        outcomes, pending = world.control.queries.outcomes(command_ids, 10)

        assert [] == pending
        assert {("FAILED", "DEADLINE_PASSED")} == {(o.state, o.code) for o in outcomes}

    def test_a_restarted_datanode_gets_its_commands_again(self, world: ScmWorld) -> None:
        """Its queue was in memory."""
        self.ordered(world)
        first = world.call("dn1")
        world.join("dn1", boot_id=2)

        again = world.call("dn1", boot_id=2)

        assert [c.command_id for c, _ in first.commands] == [
            c.command_id for c, _ in again.commands
        ]

    def test_a_restarted_scm_sends_again_what_was_not_answered(self, world: ScmWorld) -> None:
        """Under a new term; the datanode drops what it has by its id."""
        self.ordered(world)
        first = world.call("dn1")
        world.clock.advance_s(100_000)  # a queue's age is counted again, too
        world.restart()
        world.join(*NODES)
        world.control.tick()

        in_safe_mode = world.call("dn1")
        world.control.safe_mode.leave()
        again = world.call("dn1")

        assert () == in_safe_mode.commands
        assert [c.command_id for c, _ in first.commands] == [
            c.command_id for c, _ in again.commands
        ]

    def test_a_lost_answer_is_repeated_unless_the_datanode_is_at_it(self, world: ScmWorld) -> None:
        """A command that the datanode reports as queued or running has arrived."""
        self.ordered(world)
        first = world.call("dn1")
        world.queues["dn1"] = (("reconcile", 1),)
        world.clock.advance_s(11)
        busy = world.call("dn1")
        world.queues["dn1"] = ()
        idle = world.call("dn1")

        assert [] == kinds(busy)
        assert kinds(first) == kinds(idle)

    @staticmethod
    def ordered(world: ScmWorld) -> tuple[int, ...]:
        """Order a container reconciled on three nodes; return the command ids."""
        made = world.made_closed()
        (decision,) = world.control.admin.reconcile([made.container_id])
        return decision.command_ids


class TestPlan:
    def test_a_true_plan_is_ordered(self, world: ScmWorld) -> None:
        """The plan gives the same order as the operator's own command."""
        made = world.made_closed(roots=(7, 7, 8))

        (decision,) = world.control.plans.apply_plan(
            [plan_row(world, made.container_id)], dry_run=False
        )

        assert ("OK", 3) == (decision.code, len(decision.command_ids))

    def test_a_dry_run_says_the_same_and_orders_nothing(self, world: ScmWorld) -> None:
        """No command is sent."""
        made = world.made_closed()

        (decision,) = world.control.plans.apply_plan(
            [plan_row(world, made.container_id)], dry_run=True
        )

        assert ("OK", ()) == (decision.code, decision.command_ids)
        assert list(NODES) == [order.datanode_id for order in decision.commands]
        assert [] == [c for node in NODES for c in kinds(world.call(node))]

    def test_a_stale_row_is_refused_and_the_others_go_on(self, world: ScmWorld) -> None:
        """One changed container does not stop a plan."""
        moved, still = world.made_closed(), world.made_closed()
        rows = [plan_row(world, c.container_id) for c in (moved, still)]
        world.beat("dn1", replica("dn1", container_id=moved.container_id, root=99))

        stale, good = world.control.plans.apply_plan(rows, dry_run=False)

        assert ("STALE_PLAN", ()) == (stale.code, stale.command_ids)
        assert "dn1 had root 0000000000000007" in stale.message
        assert "OK" == good.code

    def test_a_plan_may_not_repeat_itself_at_once_but_an_operator_may(
        self, world: ScmWorld
    ) -> None:
        """Otherwise the next plan would order a failed reconcile again and again."""
        made = world.made_closed()
        row = plan_row(world, made.container_id)
        world.control.plans.apply_plan([row], dry_run=False)
        self.finish_all(world)

        again = world.control.plans.apply_plan([row], dry_run=False)[0].code
        operator = world.control.admin.reconcile([made.container_id])[0].code
        self.finish_all(world)
        world.clock.advance_s(31)
        later = world.control.plans.apply_plan([row], dry_run=False)[0].code

        assert ["COOLDOWN", "OK", "OK"] == [again, operator, later]

    @pytest.mark.parametrize(("root", "commits"), [(9, 0), (8, 1)], ids=["root", "commit id"])
    def test_a_container_that_does_not_change_is_not_reconciled_for_ever(
        self, world: ScmWorld, root: int, commits: int
    ) -> None:
        """Three times, each after a longer pause; then an operator or a change begins again."""
        made = world.made_closed(roots=(7, 7, 8))
        row = plan_row(world, made.container_id)
        seconds_of_orders, last = [], ""
        for second in range(0, 600, 10):
            (decision,) = world.control.plans.apply_plan([row], dry_run=False)
            if decision.code == "OK":
                seconds_of_orders.append(second)
            last = decision.code
            for _ in range(2):
                self.finish_all(world)
            world.clock.advance_s(10)
            world.control.tick()

        world.beat("dn3", replica("dn3", bcsid=made.sequence_id - commits, root=root))
        row = plan_row(world, made.container_id)
        (changed,) = world.control.plans.apply_plan([row], dry_run=False)

        assert [0, 30, 90] == seconds_of_orders
        assert ("NO_PROGRESS", "OK") == (last, changed.code)

    @pytest.mark.parametrize(
        ("state", "is_complete"),
        [(OutcomeState.FAILED, True), (OutcomeState.SKIPPED, True), (OutcomeState.EXECUTED, False)],
        ids=["failed", "came too late", "stopped or missed a peer"],
    )
    def test_reconcile_that_was_not_carried_out_is_not_counted(
        self, world: ScmWorld, state: OutcomeState, is_complete: bool
    ) -> None:
        """A source that is away for an hour must not leave the container unrepaired for ever."""
        made = world.made_closed(roots=(7, 7, 8))
        row = plan_row(world, made.container_id)
        codes = set()
        for _ in range(2 * TRIES_MAX):
            codes.add(world.control.plans.apply_plan([row], dry_run=False)[0].code)
            for node in 2 * NODES:
                commands = [command for command, _ in world.call(node).commands]
                ends = [replace(outcome(c, state), is_complete=is_complete) for c in commands]
                world.beat(node, outcomes=tuple(ends))
            world.clock.advance_s(31)

        assert {"OK"} == codes

    def test_old_reconciles_are_forgotten(self, world: ScmWorld) -> None:
        """The memory is bounded by recent work."""
        made = world.made_closed()
        world.control.admin.reconcile([made.container_id])
        self.finish_all(world)
        lately = set(world.control.reconciles._ordered_at_s)

        world.clock.advance_s(31)
        world.control.tick()

        assert ({made.container_id}, {}) == (lately, world.control.reconciles._ordered_at_s)

    @staticmethod
    def finish_all(world: ScmWorld) -> None:
        """Let every node execute what it is given."""
        for node in NODES:
            world.execute(node, world.call(node))


class TestOperatorClose:
    def test_operator_close_names_its_commands(self, world: ScmWorld) -> None:
        """There is one command for each replica. An unknown container is reported as unknown."""
        world.write("a", "k", 1)

        decisions = world.control.closures.close_containers([1, 99])

        assert ["OK", "CONTAINER_NOT_FOUND"] == [d.code for d in decisions]
        assert 3 == len(decisions[0].command_ids)
        assert "container is CLOSING: close is ordered on dn1, dn2, dn3" == decisions[0].message

    def test_a_closed_container_is_left_alone(self, world: ScmWorld) -> None:
        """Nothing to do is not an error."""
        made: Container = world.made_closed()

        (decision,) = world.control.closures.close_containers([made.container_id])

        assert ("OK", ()) == (decision.code, decision.command_ids)
        assert decision.message.startswith("container is CLOSED, nothing is ordered: ")
        assert ContainerState.CLOSED is made.state
