"""The page of a datanode: names are text, and findings that are not shown are counted."""

from collections import Counter
from types import SimpleNamespace
from typing import cast

from agent.observe.datanode_page import FINDINGS_SHOWN_MAX, status_page
from agent.observe.datanode_status import DatanodeStatus
from agent.observe.replica_totals import HostSummary
from agent.store.index.replica_history import Changes
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault, ScanFinding, Verdict
from suture.wire.v1 import datanode_pb2 as pb

HOSTILE = "<b>\u202e"
SHOWN = "&lt;b&gt;\\u202e"


def page(status: pb.StatusResponse, *findings: ScanFinding) -> str:
    """Return the page of a datanode without changes and commands."""
    observer = SimpleNamespace(
        status=lambda: status,
        changes=lambda _since_ms, **_: Changes([]),
        queues=lambda: (),
        summary=lambda: HostSummary({}, Counter(), 0, (), 0),
    )
    scrub = pb.ScrubStatusResponse()
    return status_page(cast(DatanodeStatus, observer), scrub, 1_000, findings).decode()


def finding(evidence: str) -> ScanFinding:
    """Return a finding of a replica."""
    return ScanFinding(
        *(ContainerId(1), Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, BlockId(2), 0, 4096, 1),
        evidence=evidence,
    )


def test_names_and_evidence_are_text() -> None:
    """A path, an error and evidence that look like HTML are shown as they are."""
    volume = pb.VolumeStatus(path=HOSTILE, failed=True, error=HOSTILE)

    text = page(pb.StatusResponse(datanode_id=HOSTILE, volumes=[volume]), finding(HOSTILE))

    assert f"<h1>Datanode {SHOWN}</h1>" in text
    assert f'data-l="evidence">{SHOWN}</td>' in text
    assert f"volume {SHOWN} failed: {SHOWN}" in text
    assert "<b>" not in text
    assert "\u202e" not in text


def test_findings_that_are_not_shown_are_counted() -> None:
    """The page shows the first findings, and the number of all of them below."""
    status = pb.StatusResponse(finding_count=1234)

    text = page(status, *(finding(f"chunk {n}") for n in range(FINDINGS_SHOWN_MAX + 1)))

    assert "<p>1,234 in all.</p>" in text
    assert f"chunk {FINDINGS_SHOWN_MAX - 1}<" in text
    assert f"chunk {FINDINGS_SHOWN_MAX}<" not in text
