"""The breaker: one sick host must not look like many dead replicas."""

from collections.abc import Callable

import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from merkle.tree_building import TreeBuilder
from scanner.breaker import Breaker, BreakerLimits
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.scan_outcome import ScanOutcome

LIMITS = BreakerLimits(window_s=100.0, damaged_max=4, suspects_max=2)


def outcome(*verdicts: Verdict, disagreement_count: int = 0) -> ScanOutcome:
    """Return the outcome of a scan with one finding per verdict."""
    findings = tuple(
        ScanFinding(ContainerId(1), verdict, DamageFault.CHUNK_CHECKSUM, BlockId(1), 0, 1, 0, "")
        for verdict in verdicts
    )
    return ScanOutcome(
        TreeBuilder(Algorithm.XXH3_64).build(),
        findings,
        len(findings),
        0,
        0,
        0,
        disagreement_count=disagreement_count,
    )


CLEAN = outcome()
DAMAGED = outcome(Verdict.CORRUPT)


def observed(
    breaker: Breaker,
    count: int,
    result: ScanOutcome,
    *,
    first_id: int = 1,
    volume_of: Callable[[int], str] = lambda number: f"volume-{number % 2}",
    at_s: float = 0.0,
) -> str:
    """Observe `count` scans of different replicas; return the last answer."""
    answer = ""
    for number in range(count):
        container_id = ContainerId(first_id + number)
        answer = breaker.record_scan(at_s, volume_of(number), container_id, result)
    return answer


class TestMassDamage:
    def test_some_damage_is_marked(self) -> None:
        """Below the limit, damage is damage."""
        assert "" == observed(Breaker(LIMITS), 3, DAMAGED)

    def test_many_damaged_replicas_on_two_volumes_hold(self) -> None:
        """The reason has the numbers."""
        assert "4 of 4 replicas on 2 volumes look damaged in 100 s" == observed(
            Breaker(LIMITS), 4, DAMAGED
        )

    def test_dying_disk_is_marked_and_does_not_trip_the_breaker(self) -> None:
        """Much damage on one volume is typical of a dying disk."""
        assert "" == observed(Breaker(LIMITS), 40, DAMAGED, volume_of=lambda _: "volume-1")

    def test_a_volume_that_is_clean_does_not_count(self) -> None:
        """One dying disk beside a healthy one is one dying disk."""
        breaker = Breaker(LIMITS)
        observed(breaker, 4, CLEAN, first_id=1_000, volume_of=lambda _: "volume-2")

        assert "" == observed(breaker, 4, DAMAGED, volume_of=lambda _: "volume-1")

    def test_damage_among_many_clean_replicas_is_marked(self) -> None:
        """A host that reads most replicas right is not the cause."""
        breaker = Breaker(LIMITS)
        observed(breaker, 20, CLEAN, first_id=1_000)

        assert "" == observed(breaker, 8, DAMAGED)

    def test_replica_scanned_often_counts_once_for_the_breaker(self) -> None:
        """A damaged replica that is scanned again and again does not add up."""
        breaker = Breaker(LIMITS)

        answers = {
            breaker.record_scan(float(at), f"volume-{at % 2}", ContainerId(1), DAMAGED)
            for at in range(20)
        }

        assert {""} == answers

    def test_breaker_closes_when_its_window_has_passed(self) -> None:
        """No operator has to reset it."""
        breaker = Breaker(LIMITS)
        assert observed(breaker, 4, DAMAGED)

        assert breaker.tripped_reason(99.9)
        assert "" == breaker.tripped_reason(100.0)

    @pytest.mark.parametrize(("clean_count", "is_held"), [(0, True), (4, True), (5, False)])
    def test_half_of_what_was_scanned_is_too_much(self, clean_count: int, is_held: bool) -> None:
        """Four damaged of eight hold, four of nine do not."""
        breaker = Breaker(LIMITS)
        observed(breaker, clean_count, CLEAN, first_id=1_000)

        assert is_held is bool(observed(breaker, 4, DAMAGED))


class TestSuspectHost:
    def test_single_library_disagreement_trips_the_breaker(self) -> None:
        """With one checksum library wrong, no verdict can be trusted."""
        answer = observed(Breaker(LIMITS), 1, outcome(disagreement_count=1))

        assert "checksum libraries disagreed on 1 chunks in 100 s" == answer

    def test_a_host_that_often_reads_wrong_holds(self) -> None:
        """Once may be a cosmic ray; more is a machine to repair."""
        breaker, wrong = Breaker(LIMITS), outcome(Verdict.SUSPECT_HOST)

        assert "" == observed(breaker, 1, wrong)
        assert "2 reads were wrong here" in observed(breaker, 1, wrong)


class TestLimits:
    def test_without_a_word_it_is_twenty_replicas_or_three_reads_in_ten_minutes(self) -> None:
        """These are the documented defaults."""
        damaged, suspect = Breaker(), Breaker()
        wrong = outcome(Verdict.SUSPECT_HOST)

        assert "" == observed(damaged, 19, DAMAGED)
        assert "20 of 20" in observed(damaged, 1, DAMAGED, first_id=20)
        assert "" == observed(suspect, 2, wrong)
        assert "3 reads" in observed(suspect, 1, wrong, first_id=3)
        assert damaged.tripped_reason(599.0)
        assert "" == damaged.tripped_reason(600.0)

    def test_the_strictest_limits_are_allowed(self) -> None:
        """Two replicas, one read, any time at all."""
        limits = BreakerLimits(window_s=0.5, damaged_max=2, suspects_max=1)

        assert "1 reads" in observed(Breaker(limits), 1, outcome(Verdict.SUSPECT_HOST))

    @pytest.mark.parametrize("wrong", [{"window_s": 0.0}, {"damaged_max": 1}, {"suspects_max": 0}])
    def test_limits_that_hold_always_are_refused(self, wrong: dict[str, float]) -> None:
        """A breaker that never lets anything pass is a configuration error."""
        with pytest.raises(ValueError, match="out of range"):
            BreakerLimits(**wrong)  # type: ignore[arg-type]
