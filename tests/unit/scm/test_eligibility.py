"""Who may be reconciled, in Ozone's order of checks, and with whom."""

import pytest

from merkle.replica import ReplicaState
from scm.replication.eligibility import Eligibility, Participants, judge
from scm.state.facts import Container, ContainerState, Replica
from tests.support.scm_world import container, replica


def judged(
    made: Container | None, *replicas: Replica, unreachable: tuple[str, ...] = ()
) -> Participants:
    """Judge with every node reachable but these."""
    return judge(made, replicas, lambda node: node not in unreachable)


class TestOrder:
    @pytest.mark.parametrize(
        ("made", "replicas", "expected"),
        [
            (None, [], Eligibility.CONTAINER_NOT_FOUND),
            (container(ContainerState.OPEN), [], Eligibility.INELIGIBLE_CONTAINER_STATE),
            (container(ContainerState.CLOSING), [], Eligibility.INELIGIBLE_CONTAINER_STATE),
            (container(ContainerState.DELETED), [], Eligibility.INELIGIBLE_CONTAINER_STATE),
            (container(replication_factor=1), [], Eligibility.NO_REPLICAS_FOUND),
            (
                container(replication_factor=1),
                [replica("a"), replica("b", ReplicaState.OPEN, replica_index=1)],
                Eligibility.INELIGIBLE_REPLICA_STATES,
            ),
            (
                container(replication_factor=1),
                [replica("a", replica_index=1)],
                Eligibility.INELIGIBLE_REPLICATION_TYPE,
            ),
            (
                container(replication_factor=1),
                [replica("a")],
                Eligibility.NOT_ENOUGH_REQUIRED_NODES,
            ),
            (container(), [replica("a")], Eligibility.NO_REACHABLE_PEER),
            (container(), [replica("a"), replica("b")], Eligibility.OK),
            (container(ContainerState.QUASI_CLOSED), [replica("a"), replica("b")], Eligibility.OK),
        ],
    )
    def test_the_first_failing_check_answers(
        self, made: Container | None, replicas: list[Replica], expected: Eligibility
    ) -> None:
        """Each case also fails the checks behind the one that answers."""
        assert expected is judged(made, *replicas).eligibility

    @pytest.mark.parametrize("state", [ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY])
    def test_damaged_and_late_replicas_take_part(self, state: ReplicaState) -> None:
        """They are what reconcile is for, and what is good in them may help others."""
        found = judged(container(), replica("a", state), replica("b"))

        assert ("a", "b") == found.targets
        assert ("a",) == found.peers_of("b")


class TestPeers:
    def test_a_peer_is_reachable_has_a_tree_and_can_be_loaded(self) -> None:
        """One without a tree is still a target: it may build one and be repaired."""
        found = judged(
            container(),
            replica("dead"),
            replica("treeless", root=None),
            replica("unloadable", ReplicaState.UNHEALTHY, load_error="damaged"),
            replica("good"),
            unreachable=("dead",),
        )

        assert ("good",) == found.peers
        assert ("treeless",) == found.targets
        assert () == found.peers_of("good")

    def test_without_any_peer_nothing_is_ordered(self) -> None:
        """The only tree is of the only reachable node."""
        found = judged(container(), replica("a"), replica("b"), unreachable=("b",))

        assert Eligibility.NO_REACHABLE_PEER is found.eligibility
        assert "2 replicas, 1 on reachable nodes" in found.message
