"""Blocks that have no intact row although the replica may have their bytes.

The row of a peer, or an operator, can restore such a block. Therefore, a task that removes a
replica needs the list of these blocks. The findings of a scan name the blocks, up to a limit. If
the index has lost the replica itself, there are no such findings yet. In this case, every file
without a row counts as a block without a row.
"""

import os
from collections.abc import Mapping, Sequence

from agent.store.files.layout import ReplicaPaths, block_id_of
from agent.store.index.transactions import IndexView
from agent.store.replica.packs import place_of
from merkle.blockrow import is_intact
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault, ScanFinding
from scanner.finding_collector import FINDINGS_PER_REPLICA_MAX
from suture.runtime.durable import block_errors


def is_unread_loss(finding: ScanFinding) -> bool:
    """Return whether the finding reports lost rows without the ids of their blocks.

    Only a scan can determine these ids.
    """
    is_about_rows = finding.is_damage and finding.fault is DamageFault.BLOCK_ROW_MISSING
    return is_about_rows and finding.block_id < 1


def is_cut_short(damage: Sequence[ScanFinding]) -> bool:
    """Return whether the number of stored findings has reached its limit.

    The scan may then have found more damage than is stored.
    """
    return len(damage) >= FINDINGS_PER_REPLICA_MAX


def blocks_without_row(
    rows: IndexView, paths: ReplicaPaths, container_id: ContainerId
) -> Mapping[BlockId, int]:
    """Return the blocks without an intact row, with the size of their data in bytes.

    The blocks are in ascending order of ids. The size is `blockfile.ABSENT` if there is no file.
    Deleted blocks are omitted. Raise SutureError if the size cannot be determined.
    """
    damage = [one for one in rows.findings(container_id) if one.is_damage]
    named = {one.block_id for one in damage if one.block_id > 0}
    if is_cut_short(damage) or any(map(is_unread_loss, damage)):
        named |= _with_file(rows, paths, container_id)
    buried = rows.tombstones(container_id)
    lost = {}
    for block_id in sorted(named - buried.keys()):
        row = rows.block(container_id, block_id)
        if row is None or not is_intact(block_id, row):
            place = place_of(rows, paths, container_id, block_id)
            with block_errors(place.name):
                lost[block_id] = place.size_bytes()
    return lost


def _with_file(rows: IndexView, paths: ReplicaPaths, container_id: ContainerId) -> set[BlockId]:
    """Return the ids of the blocks that have a file of their own or a part of the pack file."""
    found = {BlockId(key) for key in rows.packed_blocks(container_id).block_ids.tolist()}
    if paths.chunks.is_dir():
        with block_errors(paths.chunks), os.scandir(paths.chunks) as entries:
            ids = [block_id_of(entry.name) for entry in entries]
        found.update(block_id for block_id in ids if block_id is not None)
    return found
