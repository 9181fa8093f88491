"""Reader of one replica for a scan: its rows, files and descriptor.

Data is read past the page cache. Each scan runs in one thread, with its own reader and buffers.
"""

import contextlib
import errno
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from agent.store.direct_io import (
    BlockFile,
    ReadBuffers,
    is_cut,
    open_regular,
    read_aligned,
    read_at_once,
)
from agent.store.files.blockfile import read_past_cache
from agent.store.files.layout import PACK_NAME, QUARANTINE, block_id_of
from agent.store.index.facts import ScanBase
from agent.store.index.packformat import PackedBlocks, PackedPlace
from agent.store.replica.descriptor import read_descriptor
from agent.store.replica.lost_rows import is_cut_short, is_unread_loss
from agent.store.replica.quarantine import QuarantinedPieces
from agent.store.replica.trees import read_tree_file
from agent.store.replica_store import ReplicaStore
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from scanner.chunk_verdict import name_of, persistent_error, read_failure
from scanner.finding import DamageFault, Verdict
from scanner.ports import ReadSplitting, Structure, StructureFault
from scanner.scan_outcome import ScanOutcome
from suture.runtime.durable import block_errors, disk_errors
from suture.runtime.file_kinds import absence, kind_at

WINDOW_BYTES: Final = 512 * 1024  # read from a pack at once; small, so other readers wait briefly
FOREIGN_NAMES_MAX: Final = 100  # names of foreign files to report
ABSENT_FD: Final = -1
CLUSTER_ABOVE_ROOT: Final = 2
HDDS_ABOVE_ROOT: Final = 3  # <volume>/hdds/<cluster>/current/containerDir<N>/<id>

Decoded = TypeVar("Decoded")


class StoreReplicaReader:
    """A replica on a volume, as the scanner reads it (`scanner.ports.ReplicaReader`).

    The reader keeps the directory of block files open until `close`. This makes the opening of a
    file cheap, and the scan does not mix two replicas if the directory is replaced during the scan.
    """

    def __init__(
        self,
        store: ReplicaStore,
        container_id: ContainerId,
        base: ScanBase,
        *,
        buffers: ReadBuffers | None = None,
        direct: bool = True,
        pieces: ReadSplitting | None = None,
        insists: bool = False,
    ) -> None:
        """Begin to read a replica. `base` is its state at the start of the scan.

        With `insists`, a persistent read error is reported as damage (scanner.unreadable_verdict).
        Raise VolumeFailed, BlockFailed or RefusedError if the replica cannot be opened.
        """
        self._insists = insists
        self._directory_error: OSError | None = None
        self._store = store
        self._container_id = container_id
        self._base = base
        self._buffers = buffers or ReadBuffers()
        self._direct = direct
        self._pieces = pieces
        self._paths = store.paths(container_id)
        folder = self._paths.root.parents[CLUSTER_ABOVE_ROOT] / QUARANTINE
        self._kept = QuarantinedPieces(folder, container_id)
        self._pack = store.pack(container_id)
        self._packed = self._pack.blocks()
        self._window = memoryview(b"")  # part of the pack file that is in the first buffer
        self._window_offset = 0
        self._apart_until = 0  # packed blocks below this offset are read one by one
        self._directory_fd = self._opened_directory()
        self._pack_fd = self._opened_pack()

    def _opened_directory(self) -> int:
        """Open the directory of block files. Return ABSENT_FD if it is missing.

        Raise VolumeFailed if the complete volume is missing, because an unmounted disk does not
        mean that the replica is damaged.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        with block_errors(self._paths.chunks):
            try:
                return os.open(self._paths.chunks, flags)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                self._directory_error = persistent_error(error)
                if not self._insists or self._directory_error is error:
                    raise
        with disk_errors(self._paths.chunks):
            (self._paths.root.parents[HDDS_ABOVE_ROOT] / "VERSION").stat()
        return ABSENT_FD

    def _opened_pack(self) -> int:
        """Open the pack file, to read many blocks at once.

        Return ABSENT_FD if there is no pack file, or if it cannot be opened with O_DIRECT. The
        blocks are then read one by one.
        """
        if self._directory_fd == ABSENT_FD or not self._direct or not len(self._packed):
            return ABSENT_FD
        try:
            fd, is_direct = open_regular(PACK_NAME, self._directory_fd, direct=True)
        except OSError:  # each block's read reports the error
            return ABSENT_FD
        if is_direct:
            return fd
        os.close(fd)
        return ABSENT_FD

    def close(self) -> None:
        """Close the directory and the pack file."""
        for fd in (self._directory_fd, self._pack_fd):
            if fd != ABSENT_FD:
                os.close(fd)
        self._directory_fd = self._pack_fd = ABSENT_FD

    @property
    def container_id(self) -> ContainerId:
        """Id of the container of this replica."""
        return self._container_id

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield (block id, raw row) for each committed block, by ascending id."""
        return self._store.view(self._container_id).block_rows()

    def row(self, block_id: BlockId) -> bytes | None:
        """Return the current raw row of a block, or None if it has none."""
        return self._store.view(self._container_id).block_row(block_id)

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the checksums in the tombstones of deleted blocks, by block id."""
        return self._store.view(self._container_id).tombstones()

    def open_block(self, block_id: BlockId) -> BlockFile:
        """Open the file with the bytes of a block. Raise FileNotFoundError if there is none."""
        if self._directory_error is not None:
            raise self._directory_error
        if self._directory_fd == ABSENT_FD:
            raise FileNotFoundError(errno.ENOENT, "no chunks directory", str(self._paths.chunks))
        self._window = memoryview(b"")
        packed = self._pack.of(block_id)
        return BlockFile(
            f"{block_id}.block" if packed is None else PACK_NAME,
            self._buffers,
            directory_fd=self._directory_fd,
            direct=self._direct,
            pieces=self._pieces,
            packed=packed,
        )

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read a small block in three system calls: open, read, close.

        The read requests one byte more than the length of the block, which detects a file that is
        too long. If the file cannot be read in this way, read it with `open_block`.
        """
        packed = self._packed.of(block_id)
        if packed is not None:
            return self._read_packed(block_id, packed, length_bytes)
        if (
            not self._direct
            or self._directory_fd == ABSENT_FD
            or is_cut(self._pieces, length_bytes)
        ):
            return self._read_whole_slowly(block_id, length_bytes)
        self._window = memoryview(b"")
        name = f"{block_id}.block"
        view = read_at_once(name, self._directory_fd, self._buffers.first, length_bytes)
        return self._read_whole_slowly(block_id, length_bytes) if view is None else view

    def _read_packed(self, block_id: BlockId, packed: PackedPlace, length_bytes: int) -> memoryview:
        """Return a packed block from the buffered part of the pack file.

        If the buffered part does not contain the block, first read WINDOW_BYTES from the block on,
        in one call.
        """
        start = packed.offset - self._window_offset
        if not 0 <= start <= start + packed.length_bytes <= len(self._window):
            if self._pack_fd == ABSENT_FD or packed.offset < self._apart_until:
                return self._read_whole_slowly(block_id, length_bytes)
            self._window = memoryview(b"")
            try:
                window = read_aligned(
                    self._pack_fd, self._buffers.first, packed.offset, WINDOW_BYTES, None
                )
            except OSError:  # perhaps one bad sector; do not read the slow range again at once
                self._apart_until = packed.offset + WINDOW_BYTES
                return self._read_whole_slowly(block_id, length_bytes)
            self._window, self._window_offset, start = window, packed.offset, 0
        return self._window[start : start + packed.length_bytes]

    def _read_whole_slowly(self, block_id: BlockId, length_bytes: int) -> memoryview:
        file = self.open_block(block_id)
        try:
            return file.read(0, length_bytes + 1)
        finally:
            file.close()

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterator[bytes]:
        """Yield the old bytes of a chunk that repairs moved to quarantine, newest first."""
        with contextlib.suppress(OSError):  # the result of the scan does not need it
            yield from self._kept.of(block_id, offset)

    def is_current(self) -> bool:
        """Return whether the replica is unchanged since the start of the scan.

        A replica is unchanged if it has the same generation.
        """
        return self._store.generation(self._container_id) == self._base.generation

    def settled(self, outcome: ScanOutcome, _spend: Callable[[int], bool]) -> ScanOutcome:
        """Return the outcome unchanged.

        No further check is needed, because this reader read each row after its bytes.
        """
        return outcome

    def structure(self) -> Structure:
        """List the files of the replica, and check its descriptor, tree file and directories."""
        faults: list[StructureFault] = []
        if self._directory_fd == ABSENT_FD and self._directory_error is None:
            missing = f"{kind_at(self._paths.chunks)} is at {self._paths.chunks}"
            faults.append(StructureFault(DamageFault.CHUNKS_DIRECTORY_MISSING, missing))
        try:
            if self._directory_error is not None:
                raise self._directory_error
            block_files, foreign = self._list()
        except OSError as error:
            why = self._unreadable(self._paths.chunks, error)
            faults.append(
                StructureFault(DamageFault.CHUNKS_DIRECTORY_MISSING, why, is_unreadable=True)
            )
            block_files, foreign = np.empty(0, np.uint64), []
        faults.extend(StructureFault(DamageFault.FOREIGN_FILE, name) for name in foreign)
        faults.extend(self._descriptor_faults())
        tree = self._stored_tree(faults)
        known = self._base.facts.tree
        count_min = known.block_count if tree is None and known is not None else 0
        expected = self._expected_blocks(tree, block_files)
        return Structure(tuple(faults), block_files, expected, count_min)

    def _list(self) -> tuple[U64s, list[str]]:
        """Return the ids of blocks that have data on disk, and the names of foreign files.

        The ids are in ascending order. At most FOREIGN_NAMES_MAX names are returned.
        """
        ids: array[int] = array("Q")
        foreign: list[str] = []
        has_pack = False
        if self._directory_fd != ABSENT_FD:
            with os.scandir(self._directory_fd) as entries:
                for entry in entries:
                    block_id = block_id_of(entry.name)
                    if block_id is not None and entry.is_file(follow_symlinks=False):
                        ids.append(block_id)
                    elif entry.name == PACK_NAME and entry.is_file(follow_symlinks=False):
                        has_pack = True
                    elif block_id is not None and self.row(block_id) is not None:
                        pass  # obstructs a block file; the block's file counts as missing
                    elif len(foreign) < FOREIGN_NAMES_MAX:
                        foreign.append(entry.name)
        packed = self._pack.blocks() if has_pack else PackedBlocks.none()
        return np.union1d(np.frombuffer(ids, np.uint64), packed.block_ids), sorted(foreign)

    def _descriptor_faults(self) -> list[StructureFault]:
        path = self._paths.descriptor
        try:
            _twice(lambda read: read_descriptor(path, self._container_id, read))
        except FileNotFoundError as error:
            return [StructureFault(DamageFault.DESCRIPTOR_MISSING, absence(path, error))]
        except DamagedData as damage:
            return [StructureFault(DamageFault.DESCRIPTOR_DAMAGED, str(damage))]
        except OSError as error:
            why = self._unreadable(path, error)
            return [StructureFault(DamageFault.DESCRIPTOR_DAMAGED, why, is_unreadable=True)]
        return []

    def _stored_tree(self, faults: list[StructureFault]) -> Tree | None:
        """Read the tree file, and append its faults to `faults`.

        Return None if the tree cannot be used.
        """
        known = self._base.facts.tree
        path = self._paths.tree
        try:
            tree = _twice(lambda read: read_tree_file(path, self._container_id, read))
        except FileNotFoundError as error:
            if known is not None:
                faults.append(StructureFault(DamageFault.TREE_MISSING, absence(path, error)))
            return None
        except DamagedData as damage:
            faults.append(StructureFault(DamageFault.TREE_DAMAGED, str(damage)))
            return None
        except OSError as error:
            faults.append(StructureFault(DamageFault.TREE_DAMAGED, self._unreadable(path, error)))
            return None
        if known is None or tree.generation != known.generation or tree.root != known.root:
            wanted = "none" if known is None else f"{known.generation} with root {known.root:x}"
            evidence = (
                f"file has generation {tree.generation} with root {tree.root:x}, "
                f"the index remembers {wanted}"
            )
            faults.append(StructureFault(DamageFault.TREE_STALE, evidence))
        return tree

    def _unreadable(self, path: Path, error: OSError) -> str:
        """Return a text that reports a file as unreadable.

        Raise the error again if it is transient.
        """
        known = persistent_error(error) if self._insists else error
        if read_failure(known) is Verdict.TRANSIENT:
            raise error
        return f"{path.name}: read failed with {name_of(known)}"

    def _expected_blocks(self, tree: Tree | None, block_files: U64s) -> U64s:
        """Return the ids of the blocks that the replica is known to have had.

        If a block has lost both its data and its row, the tree omits it, and only the findings name
        it. If the findings do not name all lost blocks, the result includes every block that has a
        file.
        """
        damage = [one for one in self._store.findings(self._container_id) if one.is_damage]
        lost = [one.block_id for one in damage if one.block_id > 0]  # findings about one block
        live = np.empty(0, np.uint64) if tree is None else tree.block_ids[~tree.deleted]
        known = np.union1d(live, np.array(lost, dtype=np.uint64))
        is_bare = tree is None and any(map(is_unread_loss, damage))
        return np.union1d(known, block_files) if is_bare or is_cut_short(damage) else known


def _twice(decode: "Callable[[Callable[[Path, int, int], bytes] | None], Decoded]") -> Decoded:
    """Read and decode a small file.

    If it is damaged, read it again from the disk, past the page cache. Raise `DamagedData` only if
    the second read is damaged, too.
    """
    try:
        return decode(None)
    except DamagedData:
        return decode(read_past_cache)
