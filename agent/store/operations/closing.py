"""Creation and closing of replicas, and updates of the descriptor file.

To close an OPEN replica, the agent first sets the state CLOSING, which stops writes. Then it moves
uncommitted bytes to quarantine, and builds the tree from the metadata. One commit records the tree
and the state CLOSED or QUASI_CLOSED.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from agent.store.files import blockfile, extents
from agent.store.files.layout import ReplicaPaths, block_id_of, replica_paths
from agent.store.index.packformat import PackedBlocks
from agent.store.index.rows import DescriptorEntry, ReplicaRow
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.replica import quarantine
from agent.store.replica.contradictions import replace_scanned
from agent.store.replica.descriptor import descriptor_of, encode_descriptor, write_descriptor
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.packs import size_in, unpack
from agent.store.replica.path_conflicts import (
    clear_place,
    make_home,
    remove_abandoned,
    remove_failed_replica,
    set_aside_existing,
)
from agent.store.replica.quarantine import QuarantineEntry
from agent.store.replica.states import FORMER_STATE, ReplicaEvent, next_state
from agent.store.replica.trees import commit_tree, rebuilt_tree
from agent.store.volumes.volume import Volume, check_space_of_block
from merkle.blockrow import is_intact
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from merkle.tree import Tree
from scanner.finding import DamageFault, ScanFinding, replica_damage
from suture.errors import SutureError
from suture.runtime.durable import (
    block_errors,
    disk_errors,
    make_directories,
    move,
    remove_file,
    remove_tree,
    replace_files,
    sync_directory,
)

BEHIND_STATES: Final = frozenset({ReplicaState.RECOVERING, ReplicaState.QUASI_CLOSED})
"""States in which a healthy replica may have a lower BCSID than its container."""


def create_replica(volume: Volume, container_id: ContainerId, row: ReplicaRow) -> None:
    """Create an empty replica durably: build it in tmp/, rename it into place, then record it.

    If a step fails, remove the directory and raise the error.
    """
    paths = volume.paths(container_id)
    building = replica_paths(volume.layout.importing / str(container_id), container_id)

    def record(rows: IndexChange) -> None:
        rows.delete_container(container_id)  # rows of an import whose rollback failed
        rows.put_replica(container_id, row)

    with disk_errors(paths.root):
        try:
            remove_tree(building.root)
            for directory in (building.root, building.chunks, building.descriptor.parent):
                make_directories(directory, below=volume.layout.importing)
            write_descriptor(building.descriptor, descriptor_of(container_id, row))
            make_directories(paths.root.parent, below=volume.layout.current)
            set_aside_existing(volume, container_id)
            move(building.root, paths.root)
            volume.index.write(record)
        except (OSError, SutureError):
            remove_failed_replica(volume, container_id)  # if this fails, the next start loads it
            raise
        finally:
            remove_abandoned(volume, building.root)


def close_replica(replica: ReplicaHandle, *, bcsid: int, force: bool) -> None:
    """Close a replica. Continue an earlier close if it was interrupted, at whichever step.

    `bcsid` is the BCSID of the container at the control plane. A replica with a lower BCSID becomes
    QUASI_CLOSED instead of CLOSED, unless `force` is set. CLOSED and UNHEALTHY replicas keep their
    state.

    With `force`, a RECOVERING or QUASI_CLOSED replica takes over `bcsid` if it is higher. A
    reconstructed replica needs this: if the last blocks were deleted, its own BCSID is lower than
    that of its sources. For a QUASI_CLOSED replica, the missing commits were abandoned or never
    acknowledged.
    """
    volume, container_id = replica.volume, replica.container_id
    with volume.index.read() as rows:
        row = rows.replica(container_id)
        lags = any(isinstance(work, DescriptorEntry) for _, work in rows.journal(container_id))
    if lags:  # an earlier close had no room for the descriptor
        follow_state(volume, container_id)
    if row.state in {ReplicaState.CLOSED, ReplicaState.UNHEALTHY}:
        return
    if force and row.state in BEHIND_STATES and bcsid > row.bcsid:
        claim = Bcsid(bcsid)
        volume.index.write(
            lambda rows: rows.put_replica(
                container_id, replace(rows.replica(container_id), bcsid=claim)
            )
        )
    whole = force or row.bcsid >= bcsid
    event = ReplicaEvent.CLOSED_WHOLE if whole else ReplicaEvent.CLOSED_SHORT
    if row.state is ReplicaState.QUASI_CLOSED:
        if whole:
            move_state(volume, container_id, event)
        return
    if row.state is not ReplicaState.CLOSING:
        move_state(volume, container_id, ReplicaEvent.CLOSE_BEGAN)
    put_first_tree(replica, event)
    follow_state(volume, container_id)


def put_first_tree(replica: ReplicaHandle, event: ReplicaEvent) -> None:
    """Build the first tree of a replica from its metadata, and commit it.

    The same commit records the new state of the replica. The tree omits blocks with damaged rows.
    If there are any, the same commit makes the replica UNHEALTHY.
    """
    container_id = replica.container_id
    with replica.volume.index.read() as rows:
        row = rows.replica(container_id)
        tree = rebuilt_tree(rows, replica.options.algorithm, container_id, row)
        findings = []
        if tree.block_count != row.block_count:
            findings = damaged_rows(rows, container_id, replica.options.now_ms())
    quarantine_uncommitted(replica, tree)

    def alter(rows: IndexChange, row: ReplicaRow) -> ReplicaRow:
        rows.delete_pending(container_id)
        rows.begin_work(container_id, DescriptorEntry())
        altered = replace(
            row,
            state=next_state(row.state, event, container_id),
            used_bytes=int(tree.chunk_lengths.sum(dtype=np.uint64)),
        )
        if not findings:
            return altered
        replace_scanned(rows, container_id, findings)
        return unhealthy(container_id, altered, finding_count=len(findings))

    commit_tree(replica, tree, base_generation=row.generation, alter=alter)


def damaged_rows(rows: IndexView, container_id: ContainerId, now_ms: int) -> list[ScanFinding]:
    """Return a finding for every damaged block row of a container."""
    return [
        replica_damage(
            container_id,
            DamageFault.BLOCK_ROW_DAMAGED,
            now_ms,
            "the row fails its checksum",
            block_id,
        )
        for block_id, row in rows.blocks(container_id)
        if not is_intact(block_id, row)
    ]


def unhealthy(container_id: ContainerId, row: ReplicaRow, *, finding_count: int) -> ReplicaRow:
    """Return the replica row with the state UNHEALTHY, its former state, and `finding_count`."""
    former = row.former_state
    if row.state is not ReplicaState.UNHEALTHY:
        former = FORMER_STATE[row.state]
    return replace(
        row,
        state=next_state(row.state, ReplicaEvent.DAMAGE_FOUND, container_id),
        former_state=former,
        finding_count=finding_count,
    )


def move_state(volume: Volume, container_id: ContainerId, event: ReplicaEvent) -> None:
    """Apply `event` to the state of a replica durably, then rewrite the descriptor."""

    def change(rows: IndexChange) -> None:
        row = rows.replica(container_id)
        state = next_state(row.state, event, container_id)
        rows.put_replica(container_id, replace(row, state=state))
        rows.begin_work(container_id, DescriptorEntry())

    volume.index.write(change)
    follow_state(volume, container_id)


def follow_state(volume: Volume, container_id: ContainerId) -> None:
    """Rewrite the descriptor from the replica row, then remove the descriptor's journal entry."""
    with volume.index.read() as rows:
        row = rows.replica(container_id)
    paths = volume.paths(container_id)
    with block_errors(paths.root):
        make_home(volume, container_id, paths.descriptor)
    write_descriptor(paths.descriptor, descriptor_of(container_id, row))
    volume.index.write(lambda rows: rows.end_work(container_id, DescriptorEntry()))


def follow_states(volume: Volume, container_ids: Sequence[ContainerId]) -> None:
    """Rewrite the descriptors of many replicas, and remove their journal entries.

    This does the work of `follow_state` with two syncs of the file system, instead of two syncs for
    each replica.
    """
    with volume.index.read() as rows:
        known = [(container_id, rows.replica(container_id)) for container_id in container_ids]
    contents = {}
    for container_id, row in known:
        paths = volume.paths(container_id)
        with block_errors(paths.root):
            make_home(volume, container_id, paths.descriptor)
        contents[paths.descriptor] = encode_descriptor(descriptor_of(container_id, row))
    replace_files(contents, below=volume.layout.current)

    def end(rows: IndexChange) -> None:
        for container_id in container_ids:
            rows.end_work(container_id, DescriptorEntry())

    volume.index.write(end)


def quarantine_uncommitted(replica: ReplicaHandle, tree: Tree) -> None:
    """Move uncommitted bytes of the block files to quarantine. Delete empty files without a row.

    A client that died may have left such bytes. A closed replica must contain only its blocks. A
    file whose row is damaged is not changed, because its correct content is unknown.
    """
    paths = replica.paths
    with replica.volume.index.read() as rows:
        packed = rows.packed_blocks(replica.container_id)
    with disk_errors(paths.chunks):
        sizes_bytes = data_sizes(paths, packed)
    ends = block_ends(tree)
    tails = [block_id for block_id, size in sizes_bytes.items() if size > ends.get(block_id, -1)]
    with replica.volume.index.read() as rows:
        known = {
            block_id for block_id in tails if rows.block(replica.container_id, block_id) is not None
        }
    unwritten = [one for one in tails if one not in known and not sizes_bytes[one]]
    remove_unwritten(paths, unwritten)
    for block_id in tails:
        if block_id in ends or block_id not in known:
            end = ends.get(block_id, 0)
            quarantine_tail(
                replica,
                block_id,
                end,
                why="never committed",
                reserve_bytes=0,  # a close may use the reserve: it moves only client bytes
            )


def remove_unwritten(paths: ReplicaPaths, block_ids: Sequence[BlockId]) -> None:
    """Remove the empty files of these blocks, which have no rows."""
    for block_id in block_ids:
        path = paths.block_file(block_id)
        with block_errors(path):
            remove_file(path)
    if block_ids:
        with disk_errors(paths.chunks):
            sync_directory(paths.chunks)


def block_ends(tree: Tree) -> dict[int, int]:
    """Return the length in bytes of each block of the tree that is not deleted, by block id."""
    counts = tree.chunk_counts
    ends = np.zeros(len(counts), dtype=np.uint64)
    last = tree.chunk_starts[1:][counts > 0].astype(np.int64) - 1
    ends[counts > 0] = tree.chunk_offsets[last] + tree.chunk_lengths[last]
    live = ~tree.deleted
    return dict(zip(tree.block_ids[live].tolist(), ends[live].tolist(), strict=True))


def data_sizes(paths: ReplicaPaths, packed: PackedBlocks) -> dict[BlockId, int]:
    """Return the size in bytes of every block that has data on the disk, by block id.

    The data is in a file, or in a part of the pack file. Ignore other files in the directory,
    because the scan reports them.
    """
    sizes_bytes = {}
    with suppress(FileNotFoundError), os.scandir(paths.chunks) as entries:
        for entry in entries:
            block_id = block_id_of(entry.name)
            if block_id is not None and entry.is_file(follow_symlinks=False):
                sizes_bytes[block_id] = entry.stat(follow_symlinks=False).st_size
    pack_bytes = blockfile.size_bytes(paths.pack)
    if pack_bytes != blockfile.ABSENT:
        sizes_bytes.update((block_id, size_in(pack_bytes, place)) for block_id, place in packed)
    return sizes_bytes


def quarantine_tail(
    replica: ReplicaHandle, block_id: BlockId, end: int, *, why: str, reserve_bytes: int
) -> int:
    """Move the bytes of a block file from `end` on to quarantine. Return the number of moved bytes.

    The copy is durable before the file is truncated. Holes take no space in the copy. If `end` is
    0, the complete file is renamed instead of copied. Raise `BlockFailed(DISK_OUT_OF_SPACE)`, with
    nothing changed, if the copy would leave less than `reserve_bytes` of free space.
    """
    volume = replica.volume
    path = replica.paths.block_file(block_id)
    unpack(volume, replica.container_id, block_id)
    with block_errors(path):
        size = blockfile.size_bytes(path)
        if size <= max(end, blockfile.ABSENT):
            return 0
        note = QuarantineEntry(
            replica.container_id, block_id, end, size - end, replica.options.now_ms(), why
        )
        if end == 0:
            quarantine.keep_file(volume.layout, note, path)
            return size
        with blockfile.opened(path, os.O_RDONLY) as fd:
            tail_bytes = extents.data_bytes(fd, end, size)
        check_space_of_block(volume, tail_bytes, reserve_bytes=reserve_bytes)
        quarantine.keep_tail(volume.layout, note, path)
        clear_place(replica, block_id, reserve_bytes=reserve_bytes, end=end)
        blockfile.truncate(path, end)
    return size - end
