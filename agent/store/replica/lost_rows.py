"""Blocks that have no readable row although the replica may have their bytes.

A peer's row, or an operator, can restore such a block. A task that removes a replica therefore
needs the list of these blocks. A scan's findings name the blocks, up to a limit. If the index lost
the replica itself, there are no such findings yet, so every file without a row counts.
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
    """Return whether the finding reports lost rows without naming the blocks. Only a scan can name
    them."""
    is_about_rows = finding.is_damage and finding.fault is DamageFault.BLOCK_ROW_MISSING
    return is_about_rows and finding.block_id < 1


def is_cut_short(damage: Sequence[ScanFinding]) -> bool:
    """Return whether the stored findings reach their limit, so that the scan may have found more
    damage."""
    return len(damage) >= FINDINGS_PER_REPLICA_MAX


def blocks_without_row(
    rows: IndexView, paths: ReplicaPaths, container_id: ContainerId
) -> Mapping[BlockId, int]:
    """Return the blocks without a readable row, by ascending id, with the size of their files in
    bytes. The size is `blockfile.ABSENT` if there is no file. Raise SutureError if a file cannot be
    examined."""
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
    """Return the blocks that have a file of their own or a part of the pack."""
    found = {BlockId(key) for key in rows.packed_blocks(container_id).block_ids.tolist()}
    if paths.chunks.is_dir():
        with block_errors(paths.chunks), os.scandir(paths.chunks) as entries:
            ids = [block_id_of(entry.name) for entry in entries]
        found.update(block_id for block_id in ids if block_id is not None)
    return found
