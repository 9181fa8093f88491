"""Where this replica and its peers contradict each other: findings that no scan makes or ends.

They are kept among the findings of the replica, with their count in its row, until a reconcile
that heard every holder finds them no more, or the block is deleted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agent.store.index.transactions import Change
from merkle.replica import ContainerId
from scanner.finding import Finding

KEPT_MAX: Final = 1_000  # of one replica: a person looks at the first few


def replace_scanned(rows: Change, container_id: ContainerId, findings: Sequence[Finding]) -> None:
    """Put these findings in the place of all that a scan of the replica has found."""
    own = [finding for finding in findings if not finding.is_contradiction]
    kept = [finding for finding in rows.findings(container_id) if finding.is_contradiction]
    rows.replace_findings(container_id, own + kept)


def note_contradictions(
    rows: Change, container_id: ContainerId, found: Sequence[Finding], *, is_complete: bool
) -> bool:
    """Keep what a reconcile found; if it did not hear every holder, beside what was known before.

    What is known already keeps its time. Returns whether anything is different now.
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


def place_of(finding: Finding) -> tuple[int, int, str]:
    """Return what makes two findings the same fault."""
    return (finding.block_id, finding.offset, finding.fault)
