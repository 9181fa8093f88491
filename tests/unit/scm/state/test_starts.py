"""The starts of control planes on a state, and what of them a datanode may have seen later."""

import pytest

from scm.state.starts import LINEAGE, STARTS, STARTS_MAX, Lineage, ReportedStart


def lineage(count: int = 3) -> Lineage:
    """Return a history of starts with terms from 1: each ended at ten times its term."""
    made = Lineage()
    for term in range(1, count + 1):
        made = made.with_new_start(
            term=term, number=10 * (term - 1), now_ms=1_000 * term, first_container_id=term
        )
    return made


def seen(known: Lineage, term: int, number: int) -> ReportedStart:
    """Return a start of the history as a datanode saw it."""
    (start,) = (one for one in known.starts if one.term == term)
    return ReportedStart(start.start_id, term, number)


@pytest.mark.parametrize(
    ("term", "number", "is_later"),
    [(1, 10, False), (1, 11, True), (2, 20, False), (2, 21, True), (3, 25, False), (3, 26, True)],
)
def test_start_that_went_on_beyond_its_end_is_later(term: int, number: int, is_later: bool) -> None:
    """The start under way is compared with the number of the state now."""
    known = lineage()

    one = seen(known, term, number)

    assert ([one] if is_later else []) == known.later([one], 25)


def test_unknown_start_is_later_unless_it_was_recovered() -> None:
    """Terms up to the floor are not compared."""
    one = ReportedStart("other", 7, 0)

    assert [one] == lineage().later([one], 25)
    assert [] == Lineage(7, lineage().starts).later([one], 25)


def test_comparison_begins_with_the_first_start_that_may_lack_state() -> None:
    """A known start went on while the next one began. An unknown start began beside its equal."""
    known = lineage()

    assert 2 == known.since([seen(known, 1, 11)]).term
    assert 2 == known.since([ReportedStart("other", 2, 5)]).term
    assert 3 == known.since([ReportedStart("other", 99, 5)]).term
    assert 2 == known.since([ReportedStart("other", 99, 5), seen(known, 1, 11)]).term


def test_row_holds_all_starts_up_to_a_bound() -> None:
    """Those that no longer fit are not compared any more."""
    known = lineage(STARTS_MAX + 2)

    read = Lineage.read({STARTS: LINEAGE.row(known)}.get)

    assert known == read
    assert STARTS_MAX == len(known.starts)
    assert 2 == known.floor_term
    assert Lineage.read({}.get) is None
