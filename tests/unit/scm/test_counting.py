"""How many replicas a container has, lacks, or has too many of."""

from dataclasses import replace

import pytest

from merkle.replica import ReplicaState
from scm.counting import Band, Placed, Tally, is_bad, present, tally
from scm.facts import ContainerState
from tests.support.replica_words import placed
from tests.support.scm_world import container, replica


def counted(
    *,
    available: int,
    leaving: int = 0,
    resting: int = 0,
    adds: int = 0,
    deletes: int = 0,
    band: tuple[int, int] = (3, 3),
) -> Tally:
    """Return the tally of a container that needs three, two of them online at least."""
    total = available + leaving + resting
    return Tally(*band, 2, available, leaving, resting, adds, deletes, total)


@pytest.mark.parametrize(
    ("numbers", "missing", "needed", "excess", "spare"),
    [
        (counted(available=3), 0, 0, 0, 2),
        (counted(available=2), 1, 1, 0, 1),
        (counted(available=2, adds=1), 1, 0, 0, 1),
        (counted(available=2, adds=2), 1, 0, 0, 1),
        (counted(available=3, deletes=1), 0, 1, 0, 1),
        (counted(available=4), -1, 0, 1, 3),
        (counted(available=5), -2, 0, 2, 4),
        (counted(available=4, deletes=1), -1, 0, 0, 2),
        (counted(available=4, adds=1), -1, 0, 1, 3),
        (counted(available=1, resting=2), 1, 1, 0, 2),
        (counted(available=2, resting=1), 0, 0, 0, 2),
        (counted(available=0, resting=3), 2, 2, 0, 2),
        (counted(available=0, leaving=3), 3, 3, 0, 2),
        (counted(available=0), 3, 3, 0, 0),
        (counted(available=1, deletes=1), 2, 3, 0, 0),
        (counted(available=4, band=(2, 4)), 0, 0, 0, 3),
        (counted(available=5, band=(2, 4)), -1, 0, 1, 4),
        (counted(available=2, band=(2, 4)), 0, 0, 0, 1),
        (counted(available=1, band=(2, 4)), 1, 1, 0, 0),
    ],
)
def test_adds_fail_and_deletes_succeed(
    numbers: Tally, missing: int, needed: int, excess: int, spare: int
) -> None:
    """
    What lacks now, what to make, what may go, and how many may still be lost.
    """
    assert missing == numbers.missing_count
    assert needed == numbers.needed_count
    assert excess == numbers.excess_count(with_deletes=True)
    assert spare == numbers.remaining_redundancy
    assert (needed == 0) is numbers.is_sufficient(with_adds=True)


def test_what_is_on_its_way_out_is_no_excess_twice() -> None:
    """
    A pending delete counts where it is asked for, and not where it is not.
    """
    numbers = counted(available=4, deletes=1)

    assert (0, 1) == tuple(numbers.excess_count(with_deletes=each) for each in (True, False))
    assert not counted(available=2, adds=1).is_sufficient(with_adds=False)


@pytest.mark.parametrize(
    ("numbers", "is_due"),
    [
        (counted(available=2, leaving=1), True),
        (counted(available=0, leaving=3), True),
        (counted(available=0, leaving=2), False),
        (counted(available=1, leaving=1), False),
        (counted(available=0, resting=3), True),
        (counted(available=3, leaving=1), False),
        (counted(available=2, leaving=1, adds=1), True),
    ],
)
def test_nothing_is_lost_while_what_lacks_is_on_its_way_out(numbers: Tally, is_due: bool) -> None:
    """
    Whether or not a copy is under way already.
    """
    assert is_due is numbers.is_due_to_out_of_service


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


def worth(counts: Tally) -> tuple[int, int, int, int]:
    """Return what is there by its worth, and all that is there."""
    return (
        counts.available_count,
        counts.leaving_count,
        counts.resting_count,
        counts.total_count,
    )


class TestTally:
    replicas: tuple[Placed, ...] = placed("C U C/d C/D C/m C/e C!")

    def test_replicas_are_counted_by_what_their_node_does(self) -> None:
        """Leaving, resting or in service; the dead one is nowhere, the bad one in the total."""
        counts = tally(container(), self.replicas, with_unhealthy=False)

        assert (1, 2, 2, 6) == worth(counts)
        assert 2 == counts.maintenance_min_count

    def test_a_bad_one_counts_when_asked_for_or_hoped_for(self) -> None:
        """As one that a repair is expected to heal."""
        with_all = tally(container(), self.replicas, with_unhealthy=True)
        hoped = tally(container(), self.replicas, with_unhealthy=False, hopeful=["dn2"])

        assert (2, 2, 2, 6) == worth(with_all) == worth(hoped)

    @pytest.mark.parametrize(
        ("deletes", "with_unhealthy", "expected"),
        [
            (["dn1"], False, 1),
            (["dn2"], False, 0),
            (["dn2"], True, 1),
            (["dn9"], False, 1),
            (["dn1", "dn2", "dn3"], False, 2),
        ],
    )
    def test_the_delete_of_what_does_not_count_costs_nothing(
        self, deletes: list[str], with_unhealthy: bool, expected: int
    ) -> None:
        """One that nobody knows any more counts: it may be anything."""
        counts = tally(
            container(), self.replicas, deletes=deletes, adds=["dn8"], with_unhealthy=with_unhealthy
        )

        assert (expected, 1) == (counts.delete_count, counts.add_count)

    @pytest.mark.parametrize(
        ("band", "required", "allowed"),
        [(Band(), 3, 3), (Band(2, 5), 2, 5), (Band(5, 2), 3, 3), (Band(0, 4), 3, 4)],
    )
    def test_a_band_widens_what_is_enough_and_narrows_nothing(
        self, band: Band, required: int, allowed: int
    ) -> None:
        """Nought means what is required."""
        counts = tally(container(), self.replicas, with_unhealthy=False, band=band)

        assert (required, allowed) == (counts.required_count, counts.allowed_count)
