"""How many replicas lack, are to be made, may go or may still be lost."""

import pytest

from health.words import HealthState
from tests.support.control.judged_case import counts, needs
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.replica_words import case


def counted(
    *, available: int, leaving: int = 0, resting: int = 0, adds: int = 0, deletes: int = 0
) -> JudgedContainer:
    """Return a container that needs three, two of them online at least."""
    words = ["C"] * available + ["C/d"] * leaving + ["C/m"] * resting
    return case(
        " ".join(words),
        adds=tuple(f"new{i}" for i in range(adds)),
        deletes=tuple(f"dn{i + 1}" for i in range(deletes)),
    )


@pytest.mark.parametrize(
    ("given", "missing", "needed", "excess", "spare"),
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
    ],
)
def test_adds_fail_and_deletes_succeed(
    given: JudgedContainer, missing: int, needed: int, excess: int, spare: int
) -> None:
    """The counts are those of lacking, needed and surplus replicas, and of replicas that may
    still be lost.
    """
    assert (missing, needed, excess, spare) == counts(given)[:4]


@pytest.mark.parametrize(
    ("available", "missing", "excess"), [(5, -1, 1), (4, 0, 0), (2, 0, 0), (1, 1, 0)]
)
def test_inside_a_band_nothing_lacks_and_nothing_is_too_much(
    available: int, missing: int, excess: int
) -> None:
    """
    Two are enough, more than four are too many.
    """
    found = counts(counted(available=available), enough_copies=2, most_copies=4)

    assert (missing, max(0, missing), excess, available - 1) == found[:4]


@pytest.mark.parametrize(
    ("enough", "most", "missing_of_two", "excess_of_four"),
    [(0, 0, 1, 1), (2, 5, 0, 0), (5, 2, 1, 1), (0, 4, 1, 0)],
)
def test_a_band_widens_what_is_enough_and_narrows_nothing(
    enough: int, most: int, missing_of_two: int, excess_of_four: int
) -> None:
    """
    Nought means what is required.
    """
    band = {"enough_copies": enough, "most_copies": most}

    assert missing_of_two == counts(counted(available=2), **band)[0]
    assert excess_of_four == counts(counted(available=4), **band)[2]


@pytest.mark.parametrize(
    ("given", "is_due"),
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
def test_replica_that_lacks_during_a_departure_is_not_counted_lost(
    given: JudgedContainer, is_due: bool
) -> None:
    """A copy that is under way makes no difference."""
    assert is_due is counts(given)[4]


@pytest.mark.parametrize(("deletes", "need"), [((), 1), (("dn1",), 2), (("dn3",), 1)])
def test_the_delete_of_what_does_not_count_costs_nothing(
    deletes: tuple[str, ...], need: int
) -> None:
    """
    The unhealthy one is not counted, so its end changes nothing.
    """
    assert need == counts(case("C C U", deletes=deletes))[1]


@pytest.mark.parametrize(
    ("words", "adds", "deletes", "copies"),
    [
        ("C C U", (), (), 0),
        ("C U", (), (), 1),
        ("C U", ("dn9",), (), 0),  # the copy on its way is all that lacks beside it
        ("C C U", (), ("dn3",), 1),  # it will be gone before it is healed
        ("C C U/d", (), (), 1),  # healed or not, it leaves
    ],
)
def test_replica_that_may_be_repaired_is_not_copied_too(
    words: str, adds: tuple[str, ...], deletes: tuple[str, ...], copies: int
) -> None:
    """The unhealthy replica is expected to be repaired in place."""
    bad = frozenset({"dn2" if words == "C U" else "dn3"})

    assert copies == needs(case(words, adds=adds, deletes=deletes, healable_holders=bad)).copies


@pytest.mark.parametrize(
    ("words", "healable_holders", "deletes", "copies"),
    [
        ("C U U", ("dn2",), (), 1),
        ("C U U", ("dn2", "dn3"), (), 0),
        ("C U U", ("dn2",), ("dn3",), 1),  # nobody counted on the one that goes
        ("C U U", ("dn2",), ("dn2",), 2),  # it goes before it is healed
        ("C C U", ("dn3",), ("dn2",), 1),
    ],
)
def test_repairable_replica_is_copied_only_if_it_is_deleted(
    words: str, healable_holders: tuple[str, ...], deletes: tuple[str, ...], copies: int
) -> None:
    """Three replicas are required."""
    given = case(words, healable_holders=frozenset(healable_holders), deletes=deletes)

    assert copies == needs(given).copies


@pytest.mark.parametrize("fourth", ["C!", "C/d!", "C/d", "C/D", "C/e", "C/m!", "Q@4", "U"])
def test_the_delete_of_what_three_others_do_not_count_on_makes_no_copy(fourth: str) -> None:
    """
    A copy would be one too many at once, and the next delete would make one lack again, for ever.
    """
    given = case(f"C C C {fourth}", deletes=("dn4",))

    assert (0, 0) == (needs(given).copies, needs(given).surplus)
    assert HealthState.HEALTHY is needs(given).health or fourth in {"Q@4", "U"}


@pytest.mark.parametrize(
    ("words", "deletes", "need", "spare"),
    [
        ("C C C/m", (), 0, 2),
        ("C C C/m", ("dn3",), 1, 1),  # it is not expected back
        ("C C C/m", ("dn1",), 1, 1),
        ("C C C/d", ("dn3",), 1, 1),
        ("C C C!", ("dn3",), 1, 1),
    ],
)
def test_replica_under_deletion_counts_as_lost_on_any_node(
    words: str, deletes: tuple[str, ...], need: int, spare: int
) -> None:
    """No decision relies on a replica that is being deleted."""
    found = counts(case(words, deletes=deletes))

    assert (need, spare) == (found[1], found[3])
