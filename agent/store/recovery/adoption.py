"""Recovery of replicas that lost their index row or their directory.

The files of a replica without a row are never changed. The replica becomes UNHEALTHY, and keeps the
block rows that it still has. Reconcile may restore other blocks with the metadata of a peer. The
replica cannot be deleted as empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from agent.store.index.packformat import PackedBlocks
from agent.store.index.rows import DescriptorEntry, ReplicaRow
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.operations.closing import follow_state, follow_states, unhealthy
from agent.store.operations.write_rules import recounted
from agent.store.options import StoreOptions
from agent.store.replica.contradictions import replace_scanned
from agent.store.replica.descriptor import Descriptor, read_descriptor
from agent.store.replica.packs import recover_pack_index
from agent.store.replica.trees import read_tree
from agent.store.volumes.volume import Volume
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId, ReplicaState
from scanner.finding import DamageFault, ScanFinding, replica_damage
from suture.runtime.durable import disk_errors, make_directories, raise_shortage

CREATED: Final = "creation finished"
ADOPTED: Final = "index row is lost: loaded from its descriptor as UNHEALTHY"


@dataclass(frozen=True, slots=True)
class _Remains:
    """The rows that the index still has of a replica whose replica row is lost."""

    has_blocks: bool
    packed: PackedBlocks
    tombstones: Mapping[BlockId, int]


@dataclass(frozen=True, slots=True)
class _Adoption:
    """A replica whose replica row is lost, as its files describe it.

    `finding` reports the lost rows. It is None if nothing was lost.
    """

    container_id: ContainerId
    row: ReplicaRow
    finding: ScanFinding | None = None
    packed: PackedBlocks = field(default_factory=PackedBlocks.none)
    tombstones: Mapping[BlockId, int] = field(default_factory=dict)

    def record(self, rows: IndexChange) -> None:
        """Write the rows of the replica to the index."""
        container_id = self.container_id
        if self.finding is None:
            rows.put_replica(container_id, self.row)
            return
        rows.put_packed(container_id, self.packed)
        for block_id, checksum in self.tombstones.items():
            rows.put_tombstone(container_id, block_id, checksum)
        rows.put_replica(container_id, recounted(rows, container_id, self.row))
        rows.replace_findings(container_id, [self.finding])
        rows.begin_work(container_id, DescriptorEntry())


def adopt_directories(
    volume: Volume, options: StoreOptions, container_ids: Sequence[ContainerId]
) -> dict[ContainerId, str | DamagedData | OSError]:
    """Record replicas that are not in the index, from their descriptor files, in one commit.

    Return a description of what was done, by container id. If a descriptor cannot be read, the
    replica is not changed, and the error is returned instead.

    After a crash, either none of the replicas are recorded, or all of them. In the second case, the
    next start rewrites their descriptors from the journal.
    """
    with volume.index.read() as rows:
        remains = [_remains(rows, container_id) for container_id in container_ids]
    told: dict[ContainerId, str | DamagedData | OSError] = {}
    found: list[_Adoption] = []
    for container_id, left in zip(container_ids, remains, strict=True):
        try:
            found.append(_described(volume, options, container_id, left))
        except (DamagedData, OSError) as error:
            raise_shortage(error, volume.paths(container_id).root)
            told[container_id] = error

    def change(rows: IndexChange) -> None:
        for adoption in found:
            adoption.record(rows)

    volume.index.write(change)
    if changed := [one.container_id for one in found if one.finding is not None]:
        follow_states(volume, changed)
    return told | {one.container_id: CREATED if one.finding is None else ADOPTED for one in found}


def _remains(rows: IndexView, container_id: ContainerId) -> _Remains:
    return _Remains(
        next(rows.blocks(container_id), None) is not None,
        rows.packed_blocks(container_id),
        rows.tombstones(container_id),
    )


def _described(
    volume: Volume, options: StoreOptions, container_id: ContainerId, left: _Remains
) -> _Adoption:
    """Return the replica that a directory contains.

    Raise `DamagedData` or OSError if its descriptor cannot be read.
    """
    paths = volume.paths(container_id)
    descriptor = read_descriptor(paths.descriptor, container_id)
    names = _names_in(paths.chunks)
    if descriptor.state is ReplicaState.OPEN and not left.has_blocks and names == frozenset():
        return _Adoption(container_id, _row_of(descriptor, ReplicaState.OPEN, None))
    former = None if descriptor.state is ReplicaState.RECOVERING else ReplicaState.QUASI_CLOSED
    finding = replica_damage(
        container_id,
        DamageFault.BLOCK_ROW_MISSING,
        options.now_ms(),
        "the index lost this replica; it was loaded from its descriptor, "
        f"which says {descriptor.state} with bcsid {descriptor.bcsid}",
    )
    tree = read_tree(volume, container_id)
    tombstones = {} if tree is None else tree.tombstones()
    return _Adoption(
        container_id,
        _row_of(descriptor, ReplicaState.UNHEALTHY, former),
        finding,
        recover_pack_index(paths, left.packed, {*tombstones, *left.tombstones}, names or ()),
        tombstones,
    )


def _names_in(chunks: Path) -> frozenset[str] | None:
    """Return the names in a directory of block files, or None if there is no such directory."""
    try:
        return frozenset(path.name for path in chunks.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return None


def lost_directory(volume: Volume, options: StoreOptions, container_id: ContainerId) -> None:
    """Mark a replica whose directory is missing as UNHEALTHY.

    Create an empty directory, so that a repair can write to it.
    """
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
