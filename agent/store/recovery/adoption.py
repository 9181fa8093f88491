"""Recovery of replicas that lost their row, or their directory.

The files of a replica without a row are never changed. The replica becomes UNHEALTHY with its
remaining block rows. Reconcile may salvage its bytes with a peer's metadata. The replica cannot be
deleted as empty.
"""

from dataclasses import replace

import numpy as np

from agent.store.index.rows import DescriptorEntry, ReplicaRow
from agent.store.index.transactions import IndexChange
from agent.store.operations.closing import follow_state, unhealthy
from agent.store.operations.write_rules import recounted
from agent.store.options import StoreOptions
from agent.store.replica.contradictions import replace_scanned
from agent.store.replica.descriptor import Descriptor, read_descriptor
from agent.store.replica.packs import recover_pack_index
from agent.store.replica.trees import read_tree
from agent.store.volumes.volume import Volume
from merkle.replica import ContainerId, ReplicaState
from scanner.finding import DamageFault, replica_damage
from suture.runtime.durable import disk_errors, make_directories


def adopt_directory(volume: Volume, options: StoreOptions, container_id: ContainerId) -> str:
    """Record a replica that is not in the index, from its descriptor. Return a description of the
    step.

    Raise `DamagedData` or OSError, with nothing changed, if the descriptor is unreadable.
    """
    paths = volume.paths(container_id)
    descriptor = read_descriptor(paths.descriptor, container_id)
    with volume.index.read() as rows:
        has_rows = next(rows.blocks(container_id), None) is not None
    has_files = not paths.chunks.is_dir() or next(paths.chunks.iterdir(), None) is not None
    if descriptor.state is ReplicaState.OPEN and not has_rows and not has_files:
        row = _row_of(descriptor, ReplicaState.OPEN, None)
        volume.index.write(lambda rows: rows.put_replica(container_id, row))
        return "creation finished"
    former = None if descriptor.state is ReplicaState.RECOVERING else ReplicaState.QUASI_CLOSED
    row = _row_of(descriptor, ReplicaState.UNHEALTHY, former)
    finding = replica_damage(
        container_id,
        DamageFault.BLOCK_ROW_MISSING,
        options.now_ms(),
        "the index lost this replica; it was loaded from its descriptor, "
        f"which says {descriptor.state} with bcsid {descriptor.bcsid}",
    )
    tree = read_tree(volume, container_id)
    dead_ids = np.empty(0, np.uint64) if tree is None else tree.block_ids[tree.deleted]
    recalled = recover_pack_index(volume, container_id, dead_ids)

    def change(rows: IndexChange) -> None:
        rows.put_packed(container_id, recalled)
        if tree is not None:
            for block_id, checksum in tree.tombstones().items():
                rows.put_tombstone(container_id, block_id, checksum)
        rows.put_replica(container_id, recounted(rows, container_id, row))
        rows.replace_findings(container_id, [finding])
        rows.begin_work(container_id, DescriptorEntry())

    volume.index.write(change)
    follow_state(volume, container_id)
    return "index row is lost: loaded from its descriptor as UNHEALTHY"


def lost_directory(volume: Volume, options: StoreOptions, container_id: ContainerId) -> None:
    """Mark a replica whose directory is missing as UNHEALTHY, and create an empty directory for its
    repair."""
    finding = replica_damage(
        container_id,
        DamageFault.CHUNKS_DIRECTORY_MISSING,
        options.now_ms(),
        f"{volume.paths(container_id).root} does not exist",
    )

    def change(rows: IndexChange) -> None:
        row = rows.replica(container_id)
        altered = unhealthy(container_id, row, finding_count=1)
        # The replica counts as never read. It is scanned soon, and the scan finds the exact loss.
        rows.put_replica(
            container_id, replace(altered, data_scan_at_ms=0, generation=row.generation + 1)
        )
        replace_scanned(rows, container_id, [finding])
        rows.begin_work(container_id, DescriptorEntry())

    volume.index.write(change)
    paths = volume.paths(container_id)
    with disk_errors(paths.root):
        make_directories(paths.chunks, below=volume.layout.current)
        make_directories(paths.descriptor.parent, below=volume.layout.current)
    follow_state(volume, container_id)


def _row_of(
    descriptor: Descriptor, state: ReplicaState, former_state: ReplicaState | None
) -> ReplicaRow:
    return ReplicaRow(
        state=state,
        former_state=former_state,
        replica_index=descriptor.replica_index,
        origin_datanode_id=descriptor.origin_datanode_id,
        created_at_ms=descriptor.created_at_ms,
        finding_count=0 if state is ReplicaState.OPEN else 1,
    )
