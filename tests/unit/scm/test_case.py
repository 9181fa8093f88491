"""Which replicas count as there, and which as good."""

from dataclasses import replace

import pytest

from merkle.replica import ReplicaState
from scm.cluster.case import is_bad, present
from scm.state.facts import ContainerState
from tests.support.replica_words import placed
from tests.support.scm_world import container, replica


def test_what_died_with_its_node_is_not_there() -> None:
    """
    Unless the node is in maintenance: it comes back with all it has.
    """
    here = present(placed("C C! C? C/m! C/e! C/D! C/d"))

    assert ["dn1", "dn3", "dn4", "dn7"] == [each.datanode_id for each in here]


@pytest.mark.parametrize(
    ("state", "of_replica", "bcsid", "load_error", "expected"),
    [
        (ContainerState.CLOSED, ReplicaState.CLOSED, 5, "", False),
        (ContainerState.CLOSED, ReplicaState.CLOSED, 5, "no descriptor", True),
        (ContainerState.CLOSED, ReplicaState.UNHEALTHY, 5, "", True),
        (ContainerState.CLOSED, ReplicaState.QUASI_CLOSED, 5, "", False),
        (ContainerState.CLOSED, ReplicaState.QUASI_CLOSED, 4, "", True),
        (ContainerState.QUASI_CLOSED, ReplicaState.QUASI_CLOSED, 4, "", False),
        (ContainerState.QUASI_CLOSED, ReplicaState.UNHEALTHY, 5, "", True),
    ],
)
def test_a_bad_replica_says_so_or_is_behind(
    state: ContainerState, of_replica: ReplicaState, bcsid: int, load_error: str, expected: bool
) -> None:
    """
    Quasi-closed behind is bad only once its container is closed.
    """
    box = replace(container(), state=state, sequence_id=5)
    held = replace(replica("dn1", of_replica, bcsid=bcsid), load_error=load_error)

    assert expected is is_bad(box, held)
