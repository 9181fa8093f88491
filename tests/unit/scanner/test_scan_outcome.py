"""What a scan learned may be committed only when it learned all."""

import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from merkle.tree_building import TreeBuilder
from scanner.finding import Fault, Finding, Verdict
from scanner.scan_outcome import ScanOutcome

TREE = TreeBuilder(Algorithm.XXH3_64).build()


@pytest.mark.parametrize(
    ("stopped_because", "undecided_count", "is_complete"),
    [("", 0, True), ("stopped", 0, False), ("", 1, False), ("changed", 2, False)],
)
def test_only_a_whole_scan_is_complete(
    stopped_because: str, undecided_count: int, is_complete: bool
) -> None:
    """
    Cut off nowhere, and with the content of every chunk known.
    """
    outcome = ScanOutcome(TREE, (), 0, 0, 0, 0, stopped_because, undecided_count)

    assert is_complete is outcome.complete
    assert (0, 0) == (outcome.wavering_count, outcome.disagreement_count)


def test_nothing_is_undecided_unless_it_is_said() -> None:
    """
    And nothing was stopped.
    """
    assert ScanOutcome(TREE, (), 0, 0, 0, 0).complete


@pytest.mark.parametrize("verdict", list(Verdict))
def test_one_finding_of_damage_is_damage(verdict: Verdict) -> None:
    """
    Among others.
    """
    findings = tuple(
        Finding(ContainerId(1), each, Fault.CHUNK_CHECKSUM, BlockId(1), 0, 1, 0, "")
        for each in (Verdict.SUSPECT_HOST, verdict, Verdict.OK)
    )

    is_damaged = verdict in (Verdict.CORRUPT, Verdict.UNREADABLE)
    assert is_damaged is ScanOutcome(TREE, findings, 3, 0, 0, 0).is_damaged
