"""Recording of the result of a scan: its tree, its findings and the new state of the replica."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from agent.store.index.facts import ScanBase, ScanCommit, facts_of
from agent.store.index.rows import DescriptorEntry, ReplicaRow, ScanCursor
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.index.unreadable_rows import UnreadableRow
from agent.store.operations.closing import follow_state, unhealthy
from agent.store.operations.write_rules import recounted
from agent.store.options import StoreOptions
from agent.store.replica.contradictions import place_of, replace_scanned
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.states import healing_event, next_state
from agent.store.replica.trees import Alter, commit_tree, tree_replica, with_index_tombstones
from agent.store.volumes.volume import Volume
from merkle.replica import ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary
from scanner.finding import ScanFinding, Verdict
from scanner.scan_outcome import ScanOutcome
from suture.errors import BlockFailed, Code, SutureError, UnavailableError

NO_DOUBT: Final = frozenset({Verdict.OK, Verdict.GONE})
"""Verdicts of findings that report no damage. A replica with only such findings is clean."""


def begin_scan(volume: Volume, container_id: ContainerId) -> ScanBase:
    """Return the state of a replica at the start of a scan.

    Raise RefusedError if it has no tree.
    """
    with volume.index.read() as rows:
        row = tree_replica(rows, container_id)
    facts = facts_of(container_id, volume.volume_id, row)
    return ScanBase(row.generation, facts, UnreadableRow(volume.index, container_id))


def keep_cursor(volume: Volume, container_id: ContainerId, cursor: ScanCursor) -> None:
    """Store the progress of a scan durably, unless the replica has changed since the scan began."""

    def change(rows: IndexChange) -> None:
        if rows.replica(container_id).generation == cursor.generation:
            rows.put_cursor(container_id, cursor)

    volume.index.write(change)


def kept_cursor(volume: Volume, container_id: ContainerId) -> ScanCursor | None:
    """Return the progress of an interrupted scan.

    Return None if there is none, or if the replica has changed since that scan began.
    """
    with volume.index.read() as rows:
        cursor = rows.cursor(container_id)
        if cursor is None or rows.replica(container_id).generation != cursor.generation:
            return None
    return cursor


def commit_scan(
    replica: ReplicaHandle, base_generation: int, outcome: ScanOutcome, *, is_whole: bool = True
) -> ScanCommit:
    """Make the result of a scan durable, unless the replica has changed since the scan began.

    `is_whole` is False if the scan continued an interrupted scan. The time of the last full scan
    then stays the same. A complete scan replaces the tree and the findings. A scan that was stopped
    only adds its findings, because it did not read the rest of the replica.

    If the tree file cannot be written, for example on a full disk, damage is recorded without it. A
    scan without damage then counts as complete if the tree is unchanged. Otherwise, the error of
    the write is raised.
    """
    volume, container_id = replica.volume, replica.container_id
    findings, complete = outcome.findings, outcome.complete
    with volume.index.read() as rows:
        before = tree_replica(rows, container_id)
        merged = (
            with_index_tombstones(rows, container_id, outcome.tree) if complete else outcome.tree
        )
        true = counted(rows, container_id, before) if complete else before

    def alter(rows: IndexChange, row: ReplicaRow) -> ReplicaRow:
        # This is called only if the generation is unchanged: no block was added or deleted since
        # the count.
        row = replace(row, block_count=true.block_count, used_bytes=true.used_bytes)
        after = apply_scan_result(
            replica.options, container_id, row, findings, complete=complete, is_whole=is_whole
        )
        replace_scanned(rows, container_id, findings)
        rows.delete_cursor(container_id)
        rows.put_unreadable_row(container_id, None)
        if after.state is not row.state:
            rows.begin_work(container_id, DescriptorEntry())
        return after

    def add() -> bool:
        return _add_findings(replica, base_generation, findings)

    if complete:
        try:
            committed = commit_tree(replica, merged, base_generation=base_generation, alter=alter)
        except (BlockFailed, UnavailableError) as error:
            if not _is_without_place(error):
                raise
            if any(finding.is_damage for finding in findings):
                committed = add()
            elif not differs(before.tree, merged.summary()):
                committed = _keep_tree(replica, base_generation, alter)
            else:
                raise
    else:
        committed = add()
    if not committed:
        return _unchanged(before)
    with volume.index.read() as rows:
        after = rows.replica(container_id)
    if after.state is not before.state:
        # if this fails, a later close or start writes the descriptor, because of the journal entry
        with suppress(BlockFailed, UnavailableError):
            follow_state(volume, container_id)
    return ScanCommit(
        committed=True,
        state_before=before.state,
        state_after=after.state,
        root_changed=differs(before.tree, after.tree),
    )


def apply_scan_result(
    options: StoreOptions,
    container_id: ContainerId,
    row: ReplicaRow,
    findings: Sequence[ScanFinding],
    *,
    complete: bool,
    is_whole: bool = True,
) -> ReplicaRow:
    """Return the replica row after a scan with these findings.

    With damage, the state becomes UNHEALTHY. If a complete scan finds no damage in an UNHEALTHY
    replica, the replica returns to its former state. Otherwise, the state stays the same.
    """
    damage_count = sum(finding.is_damage for finding in findings)
    if complete and is_whole:
        row = replace(row, data_scan_at_ms=options.now_ms())
    if damage_count:
        return unhealthy(container_id, row, finding_count=damage_count)
    row = replace(row, finding_count=0)
    is_clean = complete and all(finding.verdict in NO_DOUBT for finding in findings)
    event = healing_event(row.former_state)
    if row.state is not ReplicaState.UNHEALTHY or not is_clean or event is None:
        return row
    state = next_state(row.state, event, container_id)
    return replace(row, state=state, former_state=None)


def counted(rows: IndexView, container_id: ContainerId, row: ReplicaRow) -> ReplicaRow:
    """Return the replica row with the block and byte counts of its block rows.

    The counts in the row are outdated if block rows were lost and later restored by a repair. The
    BCSID stays the same, because a count cannot show that every block up to it is present. For a
    large replica this takes seconds, so it must not run in a write transaction.
    """
    if row.block_count == sum(1 for _ in rows.blocks(container_id)):
        return row
    true = recounted(rows, container_id, row)
    return replace(row, block_count=true.block_count, used_bytes=true.used_bytes)


def differs(before: TreeSummary | None, after: TreeSummary | None) -> bool:
    """Return whether two trees differ in a property that reports show.

    These are the root, the algorithm and the tombstones.
    """
    if before is None or after is None:
        return before is not after
    return replace(before, generation=0) != replace(after, generation=0)


def _is_without_place(error: SutureError) -> bool:
    """Return whether the tree file was not written because there is no place for it.

    This is the case if the disk is full, or if the directory of the file is unusable.
    """
    return isinstance(error, BlockFailed) or error.code is Code.DISK_OUT_OF_SPACE


def _keep_tree(replica: ReplicaHandle, base_generation: int, alter: Alter) -> bool:
    def change(rows: IndexChange) -> bool:
        row = rows.replica(replica.container_id)
        if row.generation != base_generation:
            return False
        rows.put_replica(replica.container_id, alter(rows, row))
        return True

    return replica.volume.index.write(change)


def _add_findings(
    replica: ReplicaHandle, base_generation: int, findings: Sequence[ScanFinding]
) -> bool:
    container_id = replica.container_id

    def change(rows: IndexChange) -> bool:
        row = rows.replica(container_id)
        if row.generation != base_generation:
            return False
        known = {place_of(finding): finding for finding in rows.findings(container_id)}
        known.update({place_of(finding): finding for finding in findings})
        together = sorted(known.values(), key=place_of)
        replace_scanned(rows, container_id, together)
        after = apply_scan_result(replica.options, container_id, row, together, complete=False)
        rows.put_replica(container_id, after)
        if after.state is not row.state:
            rows.begin_work(container_id, DescriptorEntry())
        return True

    return replica.volume.index.write(change)


def _unchanged(row: ReplicaRow) -> ScanCommit:
    return ScanCommit(
        committed=False, state_before=row.state, state_after=row.state, root_changed=False
    )
