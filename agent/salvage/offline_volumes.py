"""Read-only access to volumes of stopped agents, read-only mounts, and copies of disks.

This module changes nothing on the volumes. It checks whether a running agent holds the lock of a
volume, but does not take the lock. It reads the LMDB index without a lock file.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.store.files.layout import VolumeLayout
from agent.store.index.environment import Index
from agent.store.index.transactions import IndexView
from agent.store.recovery.fsck import volume_layout
from agent.store.replica.packs import BlockBytes, place_of
from agent.store.volumes.volume import reading_lock
from merkle.blockrow import decode_block
from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, BlockId, ContainerId, ReplicaState
from suture.errors import Code, RefusedError, SutureError

MAP_BYTES: Final = 1024**3  # minimum; LMDB uses the size in the file if it is larger


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The record of a block in one replica, and the location of the block's bytes.

    `replica_index` is the number of the shard, or 0 for a complete replica.
    """

    volume: str
    replica_index: int
    block: BlockData
    place: BlockBytes


class OfflineVolume:
    """A volume whose files and index are only read. The index is read through one snapshot."""

    def __init__(self, layout: VolumeLayout, rows: IndexView) -> None:
        self.layout = layout
        self.name = str(layout.volume)
        self._rows = rows
        self.damaged_rows: list[str] = []

    def replicas(self) -> dict[ContainerId, int]:
        """Return the replica index of each container on this volume, without deleted replicas.

        Add the rows of replicas that cannot be decoded to `damaged_rows`.
        """
        found = {}
        for container_id, row in self._rows.replicas():
            if isinstance(row, DamagedData):
                self.damaged_rows.append(f"{self.name}: container {container_id}: {row}")
                found[container_id] = 0  # the block rows are enough to read it
            elif row.state is not ReplicaState.DELETED:
                found[container_id] = row.replica_index
        return found

    def blocks(self, container_id: ContainerId) -> Iterator[BlockData]:
        """Yield the records of a replica's blocks. Add records that cannot be decoded to
        `damaged_rows`."""
        for block_id, raw in self._rows.blocks(container_id):
            try:
                yield decode_block(block_id, raw)
            except DamagedData as damage:
                self.damaged_rows.append(f"{self.name}: container {container_id}: {damage}")

    def deleted_blocks(self, container_id: ContainerId) -> set[BlockId]:
        """Return the ids of a container's blocks that have a tombstone on this volume."""
        return set(self._rows.tombstones(container_id))

    def copy(self, container_id: ContainerId, block_id: BlockId, index: int) -> BlockCopy | None:
        """Return this volume's record of a block.

        Return None if the volume has no record of the block, or if the record is damaged.
        """
        raw = self._rows.block(container_id, block_id)
        if raw is None:
            return None
        try:
            block = decode_block(block_id, raw)
        except DamagedData:
            return None  # `blocks` has already reported the damaged row
        paths = self.layout.replica(container_id)
        return BlockCopy(
            self.name, index, block, place_of(self._rows, paths, container_id, block_id)
        )


@contextmanager
def opened(
    paths: Sequence[Path], unreadable: dict[str, str]
) -> Iterator[tuple[OfflineVolume, ...]]:
    """Open volumes of one cluster for a `with` block.

    If the index of a volume cannot be read, skip the volume and add the error to `unreadable`, by
    path. Raise RefusedError if a path is not a volume, is in use, or belongs to another cluster
    than the first path.
    """
    with ExitStack() as stack:
        volumes: list[OfflineVolume] = []
        for path in dict.fromkeys(Path(os.path.realpath(one)) for one in paths):
            layout = volume_layout(path)
            stack.enter_context(reading_lock(layout))
            if volumes and layout.cluster_id != volumes[0].layout.cluster_id:
                raise RefusedError(
                    Code.WRONG_CLUSTER,
                    f"cannot salvage two clusters at once: {path} belongs to "
                    f"{layout.cluster_id}, {volumes[0].name} to {volumes[0].layout.cluster_id}",
                    hint="salvage each cluster into its own directory",
                )
            try:
                index = Index(layout.database, map_bytes=MAP_BYTES, readonly=True)
                stack.callback(index.close)
                rows = stack.enter_context(index.read())
                rows.check_not_newer(layout.volume)
            except SutureError as error:
                unreadable[str(path)] = str(error)
                continue
            volumes.append(OfflineVolume(layout, rows))
        yield tuple(volumes)
