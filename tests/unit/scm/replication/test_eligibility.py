"""Who may be reconciled, in Ozone's order of checks, and with whom."""

from dataclasses import replace

import pytest

from merkle.replica import ReplicaState
from scm.replication.reconcile.eligibility import Eligibility, Participants, judge
from scm.state.entities import Container, ContainerState, Replica
from tests.support.control.scm_world import container, replica


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
            (container(ContainerState.DELETING), [], Eligibility.INELIGIBLE_CONTAINER_STATE),
            (container(replication_factor=1), [], Eligibility.NO_REPLICAS_FOUND),
            (
                container(replication_factor=1),
                [replica("b", ReplicaState.OPEN, replica_index=1)],
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
            (container(replication_factor=2), [replica("a"), replica("b")], Eligibility.OK),
            (container(ContainerState.QUASI_CLOSED), [replica("a"), replica("b")], Eligibility.OK),
        ],
    )
    def test_the_first_failing_check_answers(
        self, made: Container | None, replicas: list[Replica], expected: Eligibility
    ) -> None:
        """Each case also fails the checks behind the one that answers."""
        assert expected is judged(made, *replicas).eligibility

    def test_shards_are_mended_where_their_code_is_known(self) -> None:
        """Shards are refused if the number of data shards is unknown."""
        shards = [replica("a", replica_index=1), replica("b", replica_index=2)]
        coded = replace(container(replication_factor=5), scheme="rs-3-2-1024k")

        assert Eligibility.OK is judged(coded, *shards).eligibility
        assert Eligibility.INELIGIBLE_REPLICATION_TYPE is judged(container(), *shards).eligibility

    @pytest.mark.parametrize(
        "state",
        [
            ReplicaState.OPEN,
            ReplicaState.CLOSING,
            ReplicaState.RECOVERING,
            ReplicaState.DELETED,
        ],
    )
    def test_a_replica_without_a_tree_to_come_is_left_out(self, state: ReplicaState) -> None:
        """The replica is left out at any position. A container that has only such replicas is
        refused.
        """
        found = judged(container(), replica("a"), replica("b", state), replica("c"))
        alone = judged(container(), replica("b", state), replica("c", state))

        assert (Eligibility.OK, ("a", "c")) == (found.eligibility, found.targets)
        assert ("a",) == found.peers_of("c")
        assert Eligibility.INELIGIBLE_REPLICA_STATES is alone.eligibility
        assert f"replica on b is {state}, c is {state}" == alone.message

    def test_refused_reconcile_has_no_targets_but_a_reason(self) -> None:
        """A refusal gives a reason and neither targets nor peers."""
        found = judged(container(ContainerState.OPEN), replica("a"), replica("b"))

        assert ((), ()) == (found.targets, found.peers)
        assert "container is OPEN, must be CLOSED or QUASI_CLOSED" == found.message
        single = judged(container(replication_factor=1), replica("a"))
        assert "replication factor is 1" == single.message

    @pytest.mark.parametrize("state", [ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY])
    def test_damaged_and_late_replicas_take_part(self, state: ReplicaState) -> None:
        """Reconcile exists for them, and their good chunks may help others."""
        found = judged(container(), replica("a", state), replica("b"))

        assert ("a", "b") == found.targets
        assert ("a",) == found.peers_of("b")


class TestPeers:
    def test_a_peer_is_reachable_has_a_tree_and_can_be_loaded(self) -> None:
        """A replica without a tree is still a target: it may build one and be repaired."""
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

    def test_replicas_without_a_tree_are_no_peers(self) -> None:
        """Replicas without a tree are reachable, but have nothing to compare."""
        found = judged(container(), replica("a", root=None), replica("b", root=None))

        assert Eligibility.NO_REACHABLE_PEER is found.eligibility
        assert "2 replicas, 0 on reachable nodes" in found.message

    def test_peers_of_a_replica_are_all_others(self) -> None:
        """No replica is its own peer."""
        found = judged(container(), replica("a"), replica("b"), replica("c"))

        assert (Eligibility.OK, "") == (found.eligibility, found.message)
        assert ("a", "b", "c") == found.targets
        assert ("a", "c") == found.peers_of("b")
        assert ("a", "b", "c") == found.peers_of("d")
