"""The breaker: one sick host must not look like many dead replicas."""

from collections.abc import Callable

import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from merkle.tree import TreeBuilder
from scanner.breaker import Breaker, BreakerLimits
from scanner.finding import Fault, Finding, Verdict
from scanner.verify import ScanOutcome

LIMITS = BreakerLimits(window_s=100.0, damaged_max=4, suspects_max=2)


def outcome(*verdicts: Verdict, disagreement_count: int = 0) -> ScanOutcome:
    """Return the outcome of a scan with one finding per verdict."""
    findings = tuple(
        Finding(ContainerId(1), verdict, Fault.CHUNK_CHECKSUM, BlockId(1), 0, 1, 0, "")
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
        answer = breaker.observe(at_s, volume_of(number), container_id, result)
    return answer


class TestMassDamage:
    def test_some_damage_is_marked(self) -> None:
        """Below the limit, damage is damage."""
        assert "" == observed(Breaker(LIMITS), 3, DAMAGED)

    def test_many_damaged_replicas_on_two_volumes_hold(self) -> None:
        """The reason is said in words that name the numbers."""
        assert "4 of 4 replicas on 2 volumes look damaged in 100 s" == observed(
            Breaker(LIMITS), 4, DAMAGED
        )

    def test_one_dying_disk_is_marked(self) -> None:
        """Much damage on one volume is what a dying disk looks like."""
        assert "" == observed(Breaker(LIMITS), 40, DAMAGED, volume_of=lambda _: "volume-1")

    def test_damage_among_many_clean_replicas_is_marked(self) -> None:
        """A host that reads most replicas right is not the cause."""
        breaker = Breaker(LIMITS)
        observed(breaker, 20, CLEAN, first_id=1_000)

        assert "" == observed(breaker, 8, DAMAGED)

    def test_one_replica_scanned_often_is_one_replica(self) -> None:
        """A damaged replica that is scanned again and again does not add up."""
        breaker = Breaker(LIMITS)

        answers = {
            breaker.observe(float(at), f"volume-{at % 2}", ContainerId(1), DAMAGED)
            for at in range(20)
        }

        assert {""} == answers

    def test_it_lets_go_when_the_window_has_passed(self) -> None:
        """Nobody has to reset it."""
        breaker = Breaker(LIMITS)
        assert observed(breaker, 4, DAMAGED)

        assert "" == breaker.held_because(100.0)


class TestSuspectHost:
    def test_one_disagreement_of_the_libraries_holds_at_once(self) -> None:
        """With one checksum library wrong, no verdict can be trusted."""
        answer = observed(Breaker(LIMITS), 1, outcome(disagreement_count=1))

        assert "checksum libraries disagreed on 1 chunks in 100 s" == answer

    def test_a_host_that_often_reads_wrong_holds(self) -> None:
        """Once may be a cosmic ray; more is a machine to repair."""
        breaker, wrong = Breaker(LIMITS), outcome(Verdict.SUSPECT_HOST)

        assert "" == observed(breaker, 1, wrong)
        assert "2 reads were wrong here" in observed(breaker, 1, wrong)


class TestLimits:
    @pytest.mark.parametrize("wrong", [{"window_s": 0.0}, {"damaged_max": 1}, {"suspects_max": 0}])
    def test_limits_that_hold_always_are_refused(self, wrong: dict[str, float]) -> None:
        """A breaker that never lets anything pass is a configuration error."""
        with pytest.raises(ValueError, match="out of range"):
            BreakerLimits(**wrong)  # type: ignore[arg-type]
