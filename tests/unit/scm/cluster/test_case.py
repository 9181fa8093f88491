"""Which replicas count as there, and which as good."""

from dataclasses import replace

import pytest

from merkle.replica import ReplicaState
from scm.cluster.container_context import (
    ContainerContext,
    is_bad,
    needed_bytes,
    neighbours,
    present,
)
from scm.state.entities import ContainerState
from tests.support.control.replica_words import case, placed
from tests.support.control.scm_world import container, replica


def test_replica_on_a_dead_node_does_not_count_as_present() -> None:
    """A node in maintenance is an exception, because it comes back with all its replicas."""
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


def test_case_has_no_pending_commands_by_default() -> None:
    """By default no delete is pending, no repair is expected, and the cluster is one rack."""
    plain = ContainerContext(container(), ())

    assert ((), ()) == (plain.adds, plain.deletes)
    assert (frozenset(), 1) == (plain.healable_holders, plain.cluster_rack_count)


@pytest.mark.parametrize(
    ("words", "more", "used", "out"),
    [
        ("C C C", {}, "dn1 dn2 dn3", ""),
        ("C C? C", {}, "dn1 dn2 dn3", ""),  # silent, but not gone
        ("C C! C/m!", {}, "dn1", ""),  # dead nodes are offered to nobody anyway
        ("C C/m C/e", {}, "dn1 dn2 dn3", ""),  # they come back
        ("C C/d C/D", {}, "dn1", "dn2 dn3"),
        ("C U Q@4", {}, "dn1", "dn2 dn3"),
        ("C C C", {"adds": ("dn9",)}, "dn1 dn2 dn3 dn9", ""),
        ("C C C", {"deletes": ("dn2",)}, "dn1 dn3", "dn2"),
        ("C!", {"adds": ("dn9",), "deletes": ("dn1",)}, "dn9", ""),
    ],
)
def test_no_copy_goes_where_one_is_or_was(
    words: str, more: dict[str, tuple[str, ...]], used: str, out: str
) -> None:
    """Bad, leaving and deleting replicas count for no rack."""
    assert (set(used.split()), set(out.split())) == neighbours(case(words, **more))


def test_a_copy_needs_twice_the_space_of_the_largest_replica() -> None:
    """During an import the replica exists twice. An empty container needs no space."""
    sizes = [
        replace(each, replica=replace(each.replica, used_bytes=used))
        for each, used in zip(placed("C C C"), (7, 30, 11), strict=True)
    ]

    assert 60 == needed_bytes(ContainerContext(container(), tuple(sizes)))
    assert 0 == needed_bytes(ContainerContext(container(), ()))
