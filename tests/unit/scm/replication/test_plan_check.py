"""Plan rows are acted on only while the world is as the plan saw it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.replication.reconcile.eligibility import Eligibility, Participants
from scm.replication.reconcile.plan_check import (
    ContainerDecision,
    LostCommit,
    PlannedCommand,
    PlanReplica,
    PlanRow,
    check,
)
from scm.state.entities import CommandKind, Container, ContainerState, Replica
from tests.support.control.scm_world import container, replica, summary

NODES = ["dn1", "dn2", "dn3", "dn4"]


def row(*replicas: Replica) -> PlanRow:
    """Build the row of a plan made when these were the replicas."""
    return PlanRow(
        1,
        tuple(
            PlanReplica(r.datanode_id, r.state, None if r.tree is None else r.tree.root)
            for r in replicas
        ),
        "roots differ",
    )


def everybody(_node: str) -> bool:
    """Reach every node."""
    return True


SEEN = (replica("dn1"), replica("dn2", root=8), replica("dn3", ReplicaState.UNHEALTHY, root=None))


class TestCheck:
    def test_a_row_that_is_true_names_who_takes_part(self) -> None:
        """The world is as the plan saw it."""
        found = check(row(*SEEN), container(), SEEN, everybody)

        assert isinstance(found, Participants)
        assert ("dn1", "dn2", "dn3") == found.targets
        assert ("dn1", "dn2") == found.peers

    @pytest.mark.parametrize(
        ("live", "message"),
        [
            ((SEEN[0], SEEN[1]), "dn3 has no replica now"),
            ((*SEEN, replica("dn4")), "dn4 has a replica now"),
            (
                (SEEN[0], SEEN[1], replace(SEEN[2], state=ReplicaState.CLOSED)),
                "dn3 was UNHEALTHY, is CLOSED",
            ),
            (
                (replace(SEEN[0], tree=summary(9)), *SEEN[1:]),
                "dn1 had root 0000000000000007, has 0000000000000009",
            ),
            ((replace(SEEN[0], tree=None), *SEEN[1:]), "dn1 had root 0000000000000007, has none"),
            (
                (*SEEN[:2], replace(SEEN[2], tree=summary(0xABC))),
                "dn3 had root none, has 0000000000000abc",
            ),
            (
                (replica("dn4"), SEEN[0], replica("dn2", ReplicaState.QUASI_CLOSED, root=9)),
                "dn2 was CLOSED, is QUASI_CLOSED; "
                "dn2 had root 0000000000000008, has 0000000000000009; "
                "dn3 has no replica now; dn4 has a replica now",
            ),
        ],
    )
    def test_stale_plan_decision_names_the_change(
        self, live: Sequence[Replica], message: str
    ) -> None:
        """An operator can tell a changed cluster from a faulty planner."""
        found = check(row(*SEEN), container(), live, everybody)

        assert ContainerDecision(1, "STALE_PLAN", message) == found

    def test_a_container_that_may_not_be_reconciled_any_more_is_refused_as_that(self) -> None:
        """Eligibility is judged first, on live state."""
        found = check(row(*SEEN), container(ContainerState.DELETING), SEEN, everybody)

        assert isinstance(found, ContainerDecision)
        assert "INELIGIBLE_CONTAINER_STATE" == found.code

    def test_a_replica_on_an_unreachable_node_may_be_absent_from_the_plan(self) -> None:
        """The planner counts only nodes that can take part."""
        live = (*SEEN, replica("dn4"))

        found = check(row(*SEEN), container(), live, lambda node: node != "dn4")

        assert isinstance(found, Participants)
        assert "dn4" not in (*found.targets, *found.peers)

    def test_a_replica_that_the_plan_names_must_be_there_even_if_its_node_is_away(self) -> None:
        """The planner saw it, so that its absence is news."""
        found = check(row(*SEEN), container(), SEEN[:2], lambda node: node != "dn3")

        assert ContainerDecision(1, "STALE_PLAN", "dn3 has no replica now") == found

    @pytest.mark.parametrize(
        ("made", "live", "code", "message"),
        [
            (None, SEEN, Eligibility.CONTAINER_NOT_FOUND, "no such container"),
            (
                container(ContainerState.OPEN),
                SEEN,
                Eligibility.INELIGIBLE_CONTAINER_STATE,
                "container is OPEN, must be CLOSED or QUASI_CLOSED",
            ),
            (container(), (), Eligibility.NO_REPLICAS_FOUND, "no datanode reports a replica"),
        ],
    )
    def test_a_refusal_says_why(
        self, made: Container | None, live: Sequence[Replica], code: str, message: str
    ) -> None:
        """The refusal has the row's container and the judge's reason."""
        found = check(replace(row(*SEEN), container_id=7), made, live, everybody)

        assert ContainerDecision(7, code, message) == found

    @pytest.mark.parametrize(
        ("planned", "live"),
        [
            (SEEN[:2], (*SEEN[:2], replica("dead", ReplicaState.OPEN))),
            ((*SEEN[:2], replica("dead")), SEEN[:2]),
            ((*SEEN[:2], replica("dead")), (*SEEN[:2], replica("dead", root=99))),
        ],
    )
    def test_plan_check_ignores_replicas_on_dead_nodes(
        self, planned: Sequence[Replica], live: Sequence[Replica]
    ) -> None:
        """Such replicas are ignored in the cluster and in the row, and all other replicas count."""
        found = check(row(*planned), container(), live, everybody, {"dead"})
        alive = check(row(*planned), container(), live, everybody)
        moved = check(row(*planned), container(), (replica("dn1"),), everybody, {"dead"})

        assert Participants(Eligibility.OK, "", ("dn1", "dn2"), ("dn1", "dn2")) == found
        assert isinstance(alive, ContainerDecision)
        assert isinstance(moved, ContainerDecision)

    @settings(deadline=None)
    @given(
        seen=st.lists(st.sampled_from(NODES), min_size=2, unique=True),
        data=st.data(),
    )
    def test_plan_for_a_changed_cluster_is_refused(
        self, seen: list[str], data: st.DataObject
    ) -> None:
        """One change to any reachable replica is enough."""
        before = [replica(node, root=data.draw(st.integers(0, 3))) for node in seen]
        plan = row(*before)
        change = data.draw(st.sampled_from(CHANGES))
        after = change(before, data.draw(st.integers(0, len(before) - 1)))

        found = check(plan, container(), after, everybody)

        assert isinstance(found, ContainerDecision)
        assert found.code != "OK"
        assert () == found.command_ids


class TestWords:
    @pytest.mark.parametrize(
        ("reason", "expected"), [("roots differ", "plan: roots differ"), ("", "plan")]
    )
    def test_reason_of_a_command_includes_that_of_the_plan_row(
        self, reason: str, expected: str
    ) -> None:
        """A row without a reason has a default one."""
        assert expected == PlanRow(1, (), reason).why

    def test_a_row_asks_to_reconcile_and_nothing_else_unless_it_says_so(self) -> None:
        """No copies, nothing forced, no time at which it expires."""
        assert PlanRow(1, (), "why", "reconcile", (), (), 0, False, 0) == PlanRow(1, (), "why")
        assert PlanRow(1, (), "why").is_forced is False

    def test_optional_plan_fields_default_to_zero_or_empty(self) -> None:
        """The defaults are those of a command, of commits given up, and of a decision."""
        assert PlannedCommand(CommandKind.DELETE, "dn1", "", 0, 0, 0) == PlannedCommand(
            CommandKind.DELETE, "dn1"
        )
        assert LostCommit(5, 0, "") == LostCommit(5)
        assert ContainerDecision(1, "OK", "", (), (), 0, 0, 0, (), 0, 0) == ContainerDecision(
            1, "OK"
        )


def _gone(replicas: list[Replica], index: int) -> list[Replica]:
    return replicas[:index] + replicas[index + 1 :]


def _come(replicas: list[Replica], _index: int) -> list[Replica]:
    return [*replicas, replica("new")]


def _moved(replicas: list[Replica], index: int) -> list[Replica]:
    return [*_gone(replicas, index), replace(replicas[index], datanode_id="new")]


def _state(replicas: list[Replica], index: int) -> list[Replica]:
    return [*_gone(replicas, index), replace(replicas[index], state=ReplicaState.UNHEALTHY)]


def _root(replicas: list[Replica], index: int) -> list[Replica]:
    return [*_gone(replicas, index), replace(replicas[index], tree=summary(99))]


def _treeless(replicas: list[Replica], index: int) -> list[Replica]:
    return [*_gone(replicas, index), replace(replicas[index], tree=None)]


CHANGES: list[Callable[[list[Replica], int], list[Replica]]] = [
    _gone,
    _come,
    _moved,
    _state,
    _root,
    _treeless,
]
