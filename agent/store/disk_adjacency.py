"""Distance on the disk between block files and damaged chunks.

The kernel's FIEMAP ioctl returns the extents of the damaged chunks and of every block file of the
volume. The distance of a replica is the distance in bytes between a damaged extent and the nearest
extent of the replica's files.

The sectors next to a bad sector are the most likely to be bad, too (Bairavasundaram et al., "An
Analysis of Latent Sector Errors in Disk Drives", SIGMETRICS 2007). No file system can map a sector
to its file. Therefore, this module maps every block file of the volume.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from agent.store.files.fiemap import Extent, extents_of
from agent.store.files.layout import PACK_NAME, holds_data
from agent.store.replica_store import ReplicaStore
from merkle.replica import TREE_STATES, BlockId, ContainerId
from suture.errors import SutureError

OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class DamagedExtent:
    """A damaged chunk: its container, its block, and its byte range in the block."""

    container_id: ContainerId
    block_id: BlockId
    offset: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class MappedFile:
    """The extents (ranges on the device) of one block file or pack file."""

    container_id: ContainerId
    extents: tuple[Extent, ...]


class StoreDiskMap:
    """Reads the extents of the block files of a store from the file system."""

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store

    def replicas(self, volume_id: str) -> list[ContainerId]:
        """Return the container ids of a volume's replicas that can be scanned, ascending."""
        return [
            ContainerId(container_id)
            for _, replicas in self._store.columns(volume_id)
            for container_id in replicas.where(replicas.are(TREE_STATES)).container_ids.tolist()
        ]

    def bad(self, places: Iterable[DamagedExtent]) -> list[Extent]:
        """Return the extents on the device of these damaged chunks.

        Omit chunks whose files no longer exist. Raise OSError if the extents cannot be read. Its
        errno is one of `fiemap.NOT_SUPPORTED` if the file system has no FIEMAP.
        """
        found: list[Extent] = []
        for place in places:
            try:
                chunks = self._store.paths(place.container_id).chunks
                packed = self._store.pack(place.container_id).of(place.block_id)
            except SutureError:  # deleted in the meantime
                continue
            name = f"{place.block_id}.block" if packed is None else PACK_NAME
            start = place.offset + (0 if packed is None else packed.offset)
            with suppress(FileNotFoundError, NotADirectoryError):
                found += _mapped(chunks / name, start, place.length_bytes)
        return found

    def files(self, container_ids: Iterable[ContainerId]) -> Iterator[MappedFile]:
        """Yield the extents of every block file and pack file of these replicas.

        Omit files that no longer exist. Raise OSError if the extents of a file cannot be read.
        """
        for container_id in container_ids:
            try:
                chunks = self._store.paths(container_id).chunks
            except SutureError:
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                names = sorted(entry.name for entry in os.scandir(chunks) if holds_data(entry.name))
                for name in names:
                    with suppress(FileNotFoundError):
                        yield MappedFile(container_id, tuple(_mapped(chunks / name)))


def _mapped(path: os.PathLike[str], offset: int = 0, length_bytes: int = 1 << 62) -> list[Extent]:
    fd = os.open(path, OPEN_FLAGS)
    try:
        return list(extents_of(fd, offset, length_bytes))
    finally:
        os.close(fd)


def distance(bad: Sequence[Extent], extents: Iterable[Extent]) -> int:
    """Return the smallest distance between an extent in `bad` and one in `extents`.

    The unit is bytes on the device. Return 0 if two extents overlap or touch. Neither argument may
    be empty. No I/O.
    """
    return min(_between(one, other) for one in extents for other in bad)


def _between(one: Extent, other: Extent) -> int:
    return max(0, one.physical - other.physical_end, other.physical - one.physical_end)
