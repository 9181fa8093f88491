"""Contradictions between this replica and its peers: findings that scans neither make nor remove.

They are kept among the replica's findings, with their count in its row, until a reconcile with
answers from every holder no longer finds them, or the block is deleted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agent.store.index.transactions import IndexChange
from merkle.replica import ContainerId
from scanner.finding import ScanFinding

KEPT_MAX: Final = 1_000  # per replica: an operator reads only the first few


def replace_scanned(
    rows: IndexChange, container_id: ContainerId, findings: Sequence[ScanFinding]
) -> None:
    """Replace all findings of scans of the replica."""
    own = [finding for finding in findings if not finding.is_contradiction]
    kept = [finding for finding in rows.findings(container_id) if finding.is_contradiction]
    rows.replace_findings(container_id, own + kept)


def note_contradictions(
    rows: IndexChange, container_id: ContainerId, found: Sequence[ScanFinding], *, is_complete: bool
) -> bool:
    """Record the contradictions found by a reconcile; keep the known ones if not every holder
    answered.

    Known ones keep their time. Return whether anything has changed.
    """
    known = list(rows.findings(container_id))
    before = {place_of(finding): finding for finding in known if finding.is_contradiction}
    after = {} if is_complete else dict(before)
    for finding in found:
        had = before.get(place_of(finding))
        is_same = had is not None and had.evidence == finding.evidence
        after[place_of(finding)] = had if had is not None and is_same else finding
    if after == before:
        return False
    kept = [after[place] for place in sorted(after)][:KEPT_MAX]
    own = [finding for finding in known if not finding.is_contradiction]
    rows.replace_findings(container_id, own + kept)
    row = rows.replica(container_id)
    rows.put_replica(container_id, replace(row, contradiction_count=len(kept)))
    return True


def place_of(finding: ScanFinding) -> tuple[int, int, str]:
    """Return the identity of a finding's fault."""
    return (finding.block_id, finding.offset, finding.fault)
