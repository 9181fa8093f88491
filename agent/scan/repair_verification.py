"""Verification of a replica after a repair.

If a complete scan was recent, only the repaired chunks and the chunks with findings are read, and
all rows are compared with the tree of that scan. If the rows of all other chunks are unchanged and
the read finds no fault, the result is committed. The time of the last complete scan stays the same,
so that the other chunks are read at their scheduled time.

The other chunks can be skipped, because the recent scan found them healthy and their rows still
match its tree. In all other cases, for example after one finding, the complete replica is read.
"""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import structlog

from agent.plan.reconcile_outcome import ReadBack
from agent.scan.container_scan import StoreScanDeps, ignore, scan_container
from agent.store.index.facts import ScanBase
from agent.store.operations.scans import NO_DOUBT
from agent.store.replica_store import FINDINGS_MAX
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from scanner.finding import ScanFinding
from scanner.replica_scan import scan_replica
from scanner.resume import Doubt, ScanMark, all_but
from scanner.scan_outcome import ScanOutcome
from suture.errors import VolumeFailed

log = structlog.get_logger()


def verify_repair(
    tools: StoreScanDeps,
    container_id: ContainerId,
    changed: Collection[Doubt],
    *,
    age_max_s: float,
    stop: Callable[[], bool],
) -> ReadBack:
    """Verify a replica after a repair of the ranges in `changed`, and commit the result.

    Return CHANGED if only the changed chunks were read, and WHOLE if the complete replica was read.
    A partial read requires a complete scan at most `age_max_s` seconds ago. If `age_max_s` is 0,
    always read the complete replica. Raise the same errors as
    `agent.scan.container_scan.scan_container`.
    """
    if _prove_changed(tools, container_id, changed, age_max_s, stop):
        return ReadBack.CHANGED
    scan_container(tools, container_id, stop=stop)
    return ReadBack.WHOLE


def _prove_changed(
    tools: StoreScanDeps,
    container_id: ContainerId,
    changed: Collection[Doubt],
    age_max_s: float,
    stop: Callable[[], bool],
) -> bool:
    """Read only the changed chunks, and commit the result.

    Return False, with nothing committed, if the complete replica must be read.
    """
    with tools.leases.hold(container_id, tools.lease_wait_s, writes_chunks=False):
        base = tools.store.begin_scan(container_id)
        known = tools.store.view(container_id).tree()
    findings = tools.store.findings(container_id)
    is_known = base.facts.tree == known.summary() and len(findings) < FINDINGS_MAX
    if not (is_known and was_read_lately(base, tools.clock.now_ms(), age_max_s)):
        return False
    mark = all_but([*changed, *unverified_ranges(findings)])
    try:
        outcome = _read(tools, base, mark, stop)
    except VolumeFailed:
        return False  # the complete read reports the error
    tools.store.log_verdict(base, outcome, why="", is_whole=False)
    if not (is_clean(outcome) and is_as_read(known, outcome.tree, mark)):
        return False
    with tools.leases.hold(container_id, tools.lease_wait_s, writes_chunks=False):
        commit = tools.store.commit_scan(base, outcome, is_whole=False)
    if commit.committed:
        log.info(
            "repair_verified",
            container_id=container_id,
            bytes_read=outcome.bytes_read,
            read_whole_at_ms=base.facts.data_scan_at_ms,
            state_after=commit.state_after.value,
        )
    return commit.committed


def was_read_lately(base: ScanBase, now_ms: int, age_max_s: float) -> bool:
    """Return whether the last complete scan ended less than `age_max_s` seconds ago.

    Return False if a read has failed since then.
    """
    read_at_ms = base.facts.data_scan_at_ms
    if not read_at_ms or base.doubts.are_noted():
        return False
    return 0 <= now_ms - read_at_ms < age_max_s * 1000


def unverified_ranges(findings: Collection[ScanFinding]) -> Iterator[Doubt]:
    """Yield the ranges that the last scan did not find healthy.

    A range is (block id, offset, length in bytes).
    """
    for finding in findings:
        if finding.block_id > 0 and not finding.is_contradiction:
            yield finding.block_id, finding.offset, finding.length_bytes


def is_clean(outcome: ScanOutcome) -> bool:
    """Return whether the read was complete and found no fault.

    A chunk whose repeated reads differ counts as a fault.
    """
    return (
        outcome.complete
        and not outcome.wavering_count
        and all(finding.verdict in NO_DOUBT for finding in outcome.findings)
    )


def is_as_read(known: Tree, now: Tree, mark: ScanMark) -> bool:
    """Return whether the blocks and chunks that were not read again are unchanged.

    They must be the same as in the last scan. `known` is the tree of the last scan, and `now` that
    of this read. The checksums of both are compared. `mark` has the ranges that were read again.
    """
    again = np.array(sorted({block_id for block_id, _, _ in mark.doubts}), dtype=np.uint64)
    before, after = ~np.isin(known.block_ids, again), ~np.isin(now.block_ids, again)
    return all(
        np.array_equal(had[before], has[after])
        for had, has in (
            (known.block_ids, now.block_ids),
            (known.block_checksums, now.block_checksums),
            (known.deleted, now.deleted),
        )
    ) and all(_is_block_as_read(known, now, mark, BlockId(block)) for block in again.tolist())


def _is_block_as_read(known: Tree, now: Tree, mark: ScanMark, block_id: BlockId) -> bool:
    """Return whether the chunks of a block that were not read again are unchanged.

    They must be the same as in the last scan.
    """
    unlike = set(known.leaves(block_id)) ^ set(now.leaves(block_id))
    return not any(mark.covers_range(block_id, leaf.offset, leaf.end) for leaf in unlike)


def _read(
    tools: StoreScanDeps, base: ScanBase, mark: ScanMark, stop: Callable[[], bool]
) -> ScanOutcome:
    reader = tools.open_reader(base, buffers=None, pieces=None, insists=False)
    try:
        return scan_replica(
            reader,
            algorithm=tools.store.algorithm,
            now_ms=tools.clock.now_ms,
            stop=stop,
            progress=ignore,
            pace=ignore,
            resume=mark,
        )
    finally:
        reader.close()
