"""What a finding means for the replica."""

from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault, ScanFinding, Verdict


def of(verdict: Verdict) -> ScanFinding:
    """Return a finding."""
    return ScanFinding(ContainerId(1), verdict, DamageFault.CHUNK_CHECKSUM, BlockId(1), 0, 1, 0, "")


def test_only_what_the_medium_says_is_damage() -> None:
    """
    Nothing else calls a replica unhealthy.
    """
    assert {Verdict.CORRUPT, Verdict.UNREADABLE} == {
        verdict for verdict in Verdict if of(verdict).is_damage
    }


def test_only_a_contradiction_is_about_the_peers() -> None:
    """A contradiction outlives a scan."""
    assert [Verdict.CONTRADICTORY] == [
        verdict for verdict in Verdict if of(verdict).is_contradiction
    ]
