"""Which SCM leads, and what is remembered of those that were seen."""

from collections.abc import Sequence

from agent.host.term_tracker import KEEP_SPACING_S, STARTS_KEPT_MAX, TermTracker
from agent.store.volumes.op_state_file import SeenStart
from suture.errors import Code, VolumeFailed
from tests.support.clock import FakeClock


class Volumes:
    """Where starts are kept."""

    def __init__(self) -> None:
        self.kept: list[tuple[tuple[SeenStart, ...], bool]] = []

    def keep(self, starts: Sequence[SeenStart], is_everywhere: bool) -> None:
        """Keep them."""
        self.kept.append((tuple(starts), is_everywhere))


def test_first_of_two_scms_of_one_term_leads() -> None:
    """The first SCM of a term leads, also after a restart of the agent. A higher term leads from
    its first call.
    """
    terms = TermTracker()

    assert terms.observe_term(4, "first", 1)
    assert not terms.observe_term(4, "second", 9)
    assert terms.observe_term(4, "first", 2)
    again = TermTracker(terms.seen())
    assert not again.observe_term(4, "second", 10)
    assert again.observe_term(4, "first", 2)
    assert again.observe_term(5, "second", 11)
    assert not again.observe_term(4, "first", 3)


def test_new_start_is_kept_everywhere_and_a_number_on_one_volume_now_and_then() -> None:
    """Each write is synced."""
    clock, volumes = FakeClock(), Volumes()
    terms = TermTracker((), volumes.keep, clock)

    terms.observe_term(4, "first", 1)
    terms.observe_term(4, "first", 2)
    clock.advance_s(KEEP_SPACING_S)
    terms.observe_term(4, "first", 3)
    terms.observe_term(5, "first", 3)

    assert [
        ((SeenStart("first", 4, 1),), True),
        ((SeenStart("first", 4, 3),), False),
        ((SeenStart("first", 5, 3),), True),
    ] == volumes.kept


def test_highest_number_and_the_highest_terms_are_remembered() -> None:
    """An answer may be late, and starts are many."""
    terms = TermTracker()

    for term in range(1, STARTS_KEPT_MAX + 3):
        terms.observe_term(term, f"start{term}", 7)
    terms.observe_term(STARTS_KEPT_MAX + 2, f"start{STARTS_KEPT_MAX + 2}", 6)

    found = terms.seen()
    assert list(range(3, STARTS_KEPT_MAX + 3)) == [start.term for start in found]
    assert {7} == {start.state_number for start in found}


def test_volumes_that_fail_do_not_keep_an_scm_from_being_heard() -> None:
    """The volume check deals with them."""

    def fail(_starts: Sequence[SeenStart], _is_everywhere: bool) -> None:
        raise VolumeFailed(Code.IO_EXCEPTION, "no volume")

    terms = TermTracker((), fail)

    assert terms.observe_term(4, "first", 1)
    assert (SeenStart("first", 4, 1),) == terms.seen()
