"""How a scan reads a replica: past the page cache, into buffers that are made once.

O_DIRECT reads what the medium holds, costs a fifth of the CPU of a buffered read and leaves the
page cache to the clients. Where a file system refuses it, pages are dropped before and after a
buffered read, which is the second best.

One reader per scan, one scan per thread: the buffers are its own.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from agent.store.files.blockfile import ALIGNMENT_BYTES, read_past_cache
from agent.store.files.durable import block_errors, disk_errors
from agent.store.files.layout import PACK_NAME, QUARANTINE, block_id_of
from agent.store.index.facts import ScanBase
from agent.store.index.packformat import Packed, PackedBlocks
from agent.store.replica.descriptor import read_descriptor
from agent.store.replica.packs import size_in
from agent.store.replica.quarantine import kept_of
from agent.store.replica.trees import read_tree_file
from agent.store.replica_store import ReplicaStore
from merkle.checksum import U64s
from merkle.damaged import Damaged
from merkle.replica import CHUNK_BYTES_MAX, BlockId, ContainerId
from merkle.tree import Tree
from scanner.chunk_verdict import insisted, name_of, read_failure
from scanner.finding import Fault, Verdict
from scanner.ports import Pieces, Structure, StructureFault

WINDOW_BYTES: Final = 512 * 1024  # of a pack: nobody waits for longer than for a piece
FOREIGN_NAMES_MAX: Final = 100  # names kept of files that are none of ours
BUFFER_BYTES: Final = CHUNK_BYTES_MAX + 2 * ALIGNMENT_BYTES  # address space; touched when used
HUGE_PAGE_BYTES: Final = 2 * 1024**2
SMALL_BYTES: Final = 64 * 1024  # no read so small is cut
OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
DIRECT_FLAGS: Final = OPEN_FLAGS | os.O_DIRECT
DIRECT_REFUSED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
NO_BLOCK_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})  # links, pipes, ...
ABSENT_FD: Final = -1
CLUSTER_ABOVE_ROOT: Final = 2
HDDS_ABOVE_ROOT: Final = 3  # <volume>/hdds/<cluster>/current/containerDir<N>/<id>

Decoded = TypeVar("Decoded")

assert BUFFER_BYTES % ALIGNMENT_BYTES == 0


class ReadBuffers:
    """Two aligned buffers: one for reading, one for asking the medium again.

    In huge pages where the system has them: a direct read then pins two pages instead of a
    thousand, and the device gets a few large requests instead of many small ones.
    """

    def __init__(self) -> None:
        self.first = _huge_buffer()
        self.again = _huge_buffer()


def _huge_buffer() -> memoryview:
    """Return BUFFER_BYTES that begin at a huge page; the view keeps its memory alive."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory gets no huge pages on request
    memory = mmap.mmap(-1, BUFFER_BYTES + HUGE_PAGE_BYTES, flags=private)
    with contextlib.suppress(OSError):  # a kernel without them: only slower
        memory.madvise(mmap.MADV_HUGEPAGE)
    skipped_bytes = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % HUGE_PAGE_BYTES
    return memoryview(memory)[skipped_bytes : skipped_bytes + BUFFER_BYTES]


class BlockFile:
    """One open block file (`scanner.ports.BlockReader`)."""

    def __init__(
        self,
        name: str,
        buffers: ReadBuffers,
        *,
        directory_fd: int,
        direct: bool = True,
        pieces: Pieces | None = None,
        packed: Packed | None = None,
    ) -> None:
        """Open it, or the file that the block is a part of (`packed`).

        Raise FileNotFoundError when there is no regular file of that name.
        """
        self._packed = packed
        self._buffers = buffers
        self._pieces = pieces
        self._fd, self._direct = _open_regular(name, directory_fd, direct=direct)

    @property
    def size_bytes(self) -> int:
        """Length of the file, or of the part of it, now."""
        size = os.fstat(self._fd).st_size
        return size if self._packed is None else size_in(size, self._packed)

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read into the first buffer; the view is valid until the next read of any block."""
        offset, length_bytes = self._range(offset, length_bytes)
        return self._read(self._buffers.first, offset, length_bytes, self._pieces)

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Ask the medium again, into the second buffer."""
        offset, length_bytes = self._range(offset, length_bytes)
        return bytes(self._read(self._buffers.again, offset, length_bytes))

    def _range(self, offset: int, length_bytes: int) -> tuple[int, int]:
        """Return what a range of the block is in the file."""
        if self._packed is None:
            return offset, length_bytes
        left = max(self._packed.length_bytes - offset, 0)
        return self._packed.offset + offset, min(length_bytes, left)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _read(
        self, buffer: memoryview, offset: int, length_bytes: int, pieces: Pieces | None = None
    ) -> memoryview:
        if self._direct:
            try:
                return _fill(self._fd, buffer, offset, length_bytes, pieces)
            except OSError as error:
                if error.errno not in DIRECT_REFUSED:
                    raise
                self._stop_direct()  # some file systems refuse only when read
        self._drop_pages(offset, length_bytes)
        try:
            return _fill(self._fd, buffer, offset, length_bytes, pieces)
        finally:
            self._drop_pages(offset, length_bytes)

    def _stop_direct(self) -> None:
        self._direct = False
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def _drop_pages(self, offset: int, length_bytes: int) -> None:
        """Drop the range from the page cache; dirty pages must reach the medium first.

        In whole pages: the kernel keeps a page of which only a part is named.
        """
        os.fdatasync(self._fd)
        start = offset - offset % ALIGNMENT_BYTES
        end = -(-(offset + length_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)


def read_at_once(
    name: str, directory_fd: int, buffer: memoryview, length_bytes: int
) -> memoryview | None:
    """Read a small file past the page cache in three calls of the system; None where it is short,
    or cannot be read so. One byte more than asked shows that it is longer. Raise OSError."""
    room = buffer[: length_bytes - length_bytes % ALIGNMENT_BYTES + ALIGNMENT_BYTES]
    try:
        fd = os.open(name, DIRECT_FLAGS, dir_fd=directory_fd)
        try:
            count = os.preadv(fd, [room], 0)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in DIRECT_REFUSED:
            return None
        raise
    return room[:count] if count >= length_bytes else None


def is_cut(pieces: Pieces | None, length_bytes: int) -> bool:
    """Whether a read is so large that others who want the disk are let in between."""
    if pieces is None or length_bytes <= SMALL_BYTES:
        return False
    return 0 < pieces.piece_bytes() < length_bytes


def _open_regular(name: str, directory_fd: int, *, direct: bool) -> tuple[int, bool]:
    """Open a regular file; return its descriptor and whether it reads past the page cache."""
    try:
        fd = os.open(name, OPEN_FLAGS | (os.O_DIRECT if direct else 0), dir_fd=directory_fd)
    except OSError as error:
        if direct and error.errno in DIRECT_REFUSED:
            return _open_regular(name, directory_fd, direct=False)
        if error.errno in NO_BLOCK_FILE:
            raise FileNotFoundError(errno.ENOENT, "no regular file", name) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "no regular file", name)
    return fd, direct


def _fill(
    fd: int, buffer: memoryview, offset: int, length_bytes: int, pieces: Pieces | None
) -> memoryview:
    """Read the aligned range around what is asked; return the view of what is asked.

    Shorter where the file ends. Raise OSError.
    """
    if length_bytes > CHUNK_BYTES_MAX:
        raise ValueError(f"a read of {length_bytes} bytes is larger than any chunk")
    start = offset - offset % ALIGNMENT_BYTES
    wanted = -(-(offset + length_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES - start
    filled = 0
    while filled < wanted:
        piece_bytes = (pieces.piece_bytes() if pieces else 0) or wanted
        end = min(wanted, filled + piece_bytes)
        count = os.preadv(fd, [buffer[filled:end]], start + filled)
        filled += count
        if not count or count % ALIGNMENT_BYTES:  # the file ends here
            break
        if pieces and filled < wanted:
            pieces.rest(count)
    head = offset - start
    return buffer[head : max(head, min(filled, head + length_bytes))]


class DiskReader:
    """One replica on a volume, as the scanner sees it (`scanner.ports.ReplicaReader`).

    Close it: it keeps the chunks directory open, so that a name is one look-up and a directory
    that is replaced while it is read cannot mix two replicas.
    """

    def __init__(
        self,
        store: ReplicaStore,
        container_id: ContainerId,
        base: ScanBase,
        *,
        buffers: ReadBuffers | None = None,
        direct: bool = True,
        pieces: Pieces | None = None,
        insists: bool = False,
    ) -> None:
        """Begin to read the replica whose scan began at `base`; `insists`: what cannot be looked at
        is a fault (scanner.unreadable_verdict). Raise VolumeFailed, BlockFailed, Refused."""
        self._insists = insists
        self._directory_error: OSError | None = None
        self._store = store
        self._container_id = container_id
        self._base = base
        self._buffers = buffers or ReadBuffers()
        self._direct = direct
        self._pieces = pieces
        self._paths = store.paths(container_id)
        self._pack = store.pack(container_id)
        self._packed = self._pack.blocks()
        self._window = memoryview(b"")  # what of the pack is in the first buffer
        self._window_offset = 0
        self._apart_until = 0  # up to there each block of the pack is read by itself
        self._directory_fd = self._opened_directory()
        self._pack_fd = self._opened_pack()

    def _opened_directory(self) -> int:
        """Open the chunks directory; ABSENT_FD when it is missing although its volume is there.

        Raise VolumeFailed when the volume is not: a disk that was unmounted is no damaged replica.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        with block_errors(self._paths.chunks):
            try:
                return os.open(self._paths.chunks, flags)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                self._directory_error = insisted(error)
                if not self._insists or self._directory_error is error:
                    raise
        with disk_errors(self._paths.chunks):
            (self._paths.root.parents[HDDS_ABOVE_ROOT] / "VERSION").stat()
        return ABSENT_FD

    def _opened_pack(self) -> int:
        """Open the pack to read many blocks at once; ABSENT_FD where each is read by itself."""
        if self._directory_fd == ABSENT_FD or not self._direct or not len(self._packed):
            return ABSENT_FD
        try:
            fd, is_direct = _open_regular(PACK_NAME, self._directory_fd, direct=True)
        except OSError:  # what it means is said of each block
            return ABSENT_FD
        if is_direct:
            return fd
        os.close(fd)
        return ABSENT_FD

    def close(self) -> None:
        """Close the directory."""
        for fd in (self._directory_fd, self._pack_fd):
            if fd != ABSENT_FD:
                os.close(fd)
        self._directory_fd = self._pack_fd = ABSENT_FD

    @property
    def container_id(self) -> ContainerId:
        """Whose replica this is."""
        return self._container_id

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield the metadata rows by ascending block id."""
        return self._store.block_rows(self._container_id)

    def row(self, block_id: BlockId) -> bytes | None:
        """Return the block's row as it is now; None when the block is gone."""
        return self._store.block_row(self._container_id, block_id)

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the deleted blocks and their checksums."""
        return self._store.tombstones(self._container_id)

    def open_block(self, block_id: BlockId) -> BlockFile:
        """Open the block's file; raise FileNotFoundError when there is none."""
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
        """Read a small block in three calls of the system: open, read, close.

        One byte more than the block has is asked for, so that a file that is too long shows
        without asking for its size. Whatever is unusual, `open_block` deals with.
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

    def _read_packed(self, block_id: BlockId, packed: Packed, length_bytes: int) -> memoryview:
        """Return a block out of a window of the pack, which is read in one go."""
        start = packed.offset - self._window_offset
        if not 0 <= start <= start + packed.length_bytes <= len(self._window):
            if self._pack_fd == ABSENT_FD or packed.offset < self._apart_until:
                return self._read_whole_slowly(block_id, length_bytes)
            self._window = memoryview(b"")
            try:
                window = _fill(
                    self._pack_fd, self._buffers.first, packed.offset, WINDOW_BYTES, None
                )
            except OSError:  # of one block in it, perhaps: a bad sector takes its time to say so
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
        """Yield what repairs took away from this place and keep in quarantine, newest first."""
        folder = self._paths.root.parents[CLUSTER_ABOVE_ROOT] / QUARANTINE
        with contextlib.suppress(OSError):  # nothing that is needed to judge
            yield from kept_of(folder, self._container_id, block_id, offset)

    def is_current(self) -> bool:
        """Whether the replica still has the generation at which the scan began."""
        return self._store.generation(self._container_id) == self._base.generation

    def structure(self) -> Structure:
        """List the replica's files and judge descriptor, tree file and directories."""
        faults: list[StructureFault] = []
        if self._directory_fd == ABSENT_FD and self._directory_error is None:
            missing = f"{self._paths.chunks} does not exist"
            faults.append(StructureFault(Fault.CHUNKS_DIRECTORY_MISSING, missing))
        try:
            if self._directory_error is not None:
                raise self._directory_error
            block_files, foreign = self._list()
        except OSError as error:
            why = self._unreadable(self._paths.chunks, error)
            faults.append(StructureFault(Fault.CHUNKS_DIRECTORY_MISSING, why, is_unreadable=True))
            block_files, foreign = np.empty(0, np.uint64), []
        faults.extend(StructureFault(Fault.FOREIGN_FILE, name) for name in foreign)
        faults.extend(self._descriptor_faults())
        tree = self._stored_tree(faults)
        return Structure(tuple(faults), block_files, self._expected_blocks(tree))

    def _list(self) -> tuple[U64s, list[str]]:
        """Return the ids of blocks that have a file, ascending, and the names of other files."""
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
                        pass  # it stands in the place of a block, whose file is missing
                    elif len(foreign) < FOREIGN_NAMES_MAX:
                        foreign.append(entry.name)
        packed = self._pack.blocks() if has_pack else PackedBlocks.none()
        return np.union1d(np.frombuffer(ids, np.uint64), packed.block_ids), sorted(foreign)

    def _descriptor_faults(self) -> list[StructureFault]:
        path = self._paths.descriptor
        try:
            _twice(lambda read: read_descriptor(path, self._container_id, read))
        except FileNotFoundError:
            return [StructureFault(Fault.DESCRIPTOR_MISSING, f"{path.name} does not exist")]
        except Damaged as damage:
            return [StructureFault(Fault.DESCRIPTOR_DAMAGED, str(damage))]
        except OSError as error:
            why = self._unreadable(path, error)
            return [StructureFault(Fault.DESCRIPTOR_DAMAGED, why, is_unreadable=True)]
        return []

    def _stored_tree(self, faults: list[StructureFault]) -> Tree | None:
        """Read the tree file, and note what is wrong with it."""
        known = self._base.facts.tree
        path = self._paths.tree
        try:
            tree = _twice(lambda read: read_tree_file(path, self._container_id, read))
        except FileNotFoundError:
            if known is not None:
                faults.append(StructureFault(Fault.TREE_MISSING, f"{path.name} does not exist"))
            return None
        except Damaged as damage:
            faults.append(StructureFault(Fault.TREE_DAMAGED, str(damage)))
            return None
        except OSError as error:
            faults.append(StructureFault(Fault.TREE_DAMAGED, self._unreadable(path, error)))
            return None
        if known is None or tree.generation != known.generation or tree.root != known.root:
            wanted = "none" if known is None else f"{known.generation} with root {known.root:x}"
            evidence = (
                f"file has generation {tree.generation} with root {tree.root:x}, "
                f"the index remembers {wanted}"
            )
            faults.append(StructureFault(Fault.TREE_STALE, evidence))
        return tree

    def _unreadable(self, path: Path, error: OSError) -> str:
        """Say that a file cannot be read; raise the error again if that is not the file's fault."""
        known = insisted(error) if self._insists else error
        if read_failure(known) is Verdict.TRANSIENT:
            raise error
        return f"{path.name}: read failed with {name_of(known)}"

    def _expected_blocks(self, tree: Tree | None) -> U64s:
        """Return the blocks that the replica is known to have had."""
        lost = [
            finding.block_id
            for finding in self._store.findings(self._container_id)
            if finding.fault is Fault.BLOCK_ROW_MISSING
            and finding.is_damage
            and finding.block_id > 0  # else it is of the replica as a whole
        ]
        live = np.empty(0, np.uint64) if tree is None else tree.block_ids[~tree.deleted]
        return np.union1d(live, np.array(lost, dtype=np.uint64))


def _twice(decode: "Callable[[Callable[[Path, int, int], bytes] | None], Decoded]") -> Decoded:
    """Read and decode a small file; a damaged one is read again before that is believed."""
    try:
        return decode(None)
    except Damaged:
        return decode(read_past_cache)
