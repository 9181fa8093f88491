"""Contradictions between this replica and its peers, which reconcile stores as findings.

Scans neither add nor remove contradictions. A contradiction is removed when its block is deleted.
It is also removed when a reconcile that had an answer from every peer no longer finds it. The
replica row has the number of contradictions.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agent.store.index.transactions import IndexChange
from merkle.replica import ContainerId
from scanner.finding import ScanFinding

KEPT_MAX: Final = 1_000  # per replica; an operator reads only the first few


def replace_scanned(
    rows: IndexChange, container_id: ContainerId, findings: Sequence[ScanFinding]
) -> None:
    """Replace the findings of scans by `findings`, and keep the stored contradictions."""
    own = [finding for finding in findings if not finding.is_contradiction]
    kept = [finding for finding in rows.findings(container_id) if finding.is_contradiction]
    rows.replace_findings(container_id, own + kept)


def note_contradictions(
    rows: IndexChange, container_id: ContainerId, found: Sequence[ScanFinding], *, is_complete: bool
) -> bool:
    """Store the contradictions that a reconcile found. Return True if the stored ones have changed.

    If `is_complete` is False, some peers did not answer. Stored contradictions that were not found
    again are then kept. A known contradiction keeps the time at which it was first found.
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
    """Return the key of a finding: (block id, offset, kind of fault)."""
    return (finding.block_id, finding.offset, finding.fault)
