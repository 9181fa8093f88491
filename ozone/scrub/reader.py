"""Reads a replica of Ozone for the scanner (`scanner.ports.ReplicaReader`).

The rows come from a view of the database that may be minutes old. After a mismatch, the reader
reads the row again from a view that is at most a minute older than the read of the data. At the end
of the scan, it reads the rows of all findings from a view that is not older than the last read of
data (`settled`). It drops a finding if the row no longer exists, if Ozone has a pending delete of
the block, or if the container is no longer at its path.
"""

import contextlib
import errno
import os
import stat
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from agent.store.direct_io import BlockFile, ReadBuffers, is_cut, read_at_once
from agent.store.scan_reader import ABSENT_FD, FOREIGN_NAMES_MAX
from merkle.blockrow import ROWS_PER_BATCH, encode_block
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.replica import BlockData, BlockId, ContainerId
from merkle.tree import Tree
from ozone.disk.blockrow import decode_stored
from ozone.disk.layout import ContainerPaths, number_of
from ozone.disk.rows import RECORDED_ROOT, ContainerRows, RowBatch
from ozone.disk.simplerows import SimpleRows, read_simple
from ozone.disk.small_files import read_descriptor, read_small
from ozone.disk.treefile import TREE_BYTES_MAX, OzoneTree, decode_tree
from ozone.disk.unsupported_format import UnsupportedFormat
from ozone.scrub.comparison import Comparison, TreeComparisonBuilder
from ozone.scrub.places import FileKind, PathRole, inspect_path, rule_of
from ozone.scrub.swapped_files import OF_BYTES, TRIED_MAX, MisplacedFile, exchanges, explained
from scanner.chunk_verdict import name_of, persistent_error, read_failure
from scanner.finding import NO_BLOCK, DamageFault, ScanFinding, Verdict
from scanner.finding_collector import FINDINGS_PER_REPLICA_MAX
from scanner.ports import ReadSplitting, Structure, StructureFault
from scanner.replica_scan import CHANGED, STOPPED
from scanner.scan_outcome import ScanOutcome
from suture.errors import Code, RefusedError
from suture.runtime.durable import block_errors

VIEW_AGE_S: Final = 60.0  # maximum age of rows at the start; after a mismatch they are read again
SUFFIX: Final = ".block"
SKIPPED_MAX: Final = 100  # blocks that could not be checked to list; their total is always reported
LENGTHS_MAX: Final = 4 * ROWS_PER_BATCH  # lengths kept; rows are read one batch ahead of the files
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

RowsSince = Callable[[float], ContainerRows]
"""Function that returns the rows of a container. Its argument is a time of the monotonic clock in
seconds; the view with the rows must not be older."""


def identity_of(paths: ContainerPaths) -> int:
    """Return a number that changes if another replica replaces the replica at these paths.

    Raise OSError if the directory of the container cannot be accessed.
    """
    here, chunks = paths.root.stat(), 0
    with contextlib.suppress(OSError):  # lost or unreadable: OzoneReader reports this
        chunks = paths.chunks.stat().st_ino
    return (here.st_ino << 20 ^ here.st_dev << 8 ^ chunks) & (1 << 63) - 1


class _EndedError(Exception):
    """Raised if the caller stops the read. It is caught in this module."""


def _is_of_row(finding: ScanFinding) -> bool:
    """Return whether a finding is about a block that has a row."""
    return finding.block_id != NO_BLOCK and finding.fault is not DamageFault.BLOCK_ROW_MISSING


class _CommittedFile(BlockFile):
    """A block file, of which only the committed part is read.

    Later bytes may come from a client that failed between a write and its commit. Ozone keeps such
    bytes.
    """

    def __init__(
        self,
        name: str,
        buffers: ReadBuffers,
        *,
        directory_fd: int,
        pieces: ReadSplitting | None,
        committed_bytes: int,
        surplus: Callable[[int], None],
    ) -> None:
        super().__init__(name, buffers, directory_fd=directory_fd, pieces=pieces)
        self._committed_bytes = committed_bytes
        self._surplus = surplus

    @property
    def size_bytes(self) -> int:
        """Length of the file in bytes, but at most the committed length."""
        size_bytes = super().size_bytes
        if size_bytes > self._committed_bytes:
            self._surplus(size_bytes - self._committed_bytes)
        return min(size_bytes, self._committed_bytes)


class OzoneReader:
    """Reads one replica. It keeps the directory of block files open until `close`."""

    def __init__(
        self,
        paths: ContainerPaths,
        rows_since: RowsSince,
        began_at_s: float,
        identity: int,
        *,
        buffers: ReadBuffers | None = None,
        pieces: ReadSplitting | None = None,
        insists: bool = False,
    ) -> None:
        """Start to read the replica with this identity.

        The rows are read as of `began_at_s` (monotonic clock, in seconds). With `insists`, a file
        that cannot be accessed is reported as a fault (scanner.unreadable_verdict). Raise
        RefusedError(CONTAINER_NOT_FOUND) if the replica is no longer at its path. Raise
        UnavailableError or BlockFailed if it cannot be read.
        """
        self._paths = paths
        self._identity = identity
        self._rows_since = rows_since
        self.rows = rows_since(began_at_s)
        self._looked_at_s = began_at_s
        self._rows_age_s = VIEW_AGE_S  # not 0, because opening a database takes a second
        self._buffers = buffers or ReadBuffers()
        self._pieces = pieces
        self._insists = insists
        self._directory_error: OSError | None = None
        self._tree: OzoneTree | None = None
        self._tree_faults: list[StructureFault] = []
        self.has_files = False
        self._buried: tuple[tuple[int, int, int], Mapping[BlockId, int]] | None = None
        self._lengths_bytes: dict[BlockId, int] = {}
        self.ledger = TreeComparisonBuilder()
        self._has_rows = False
        self.links: dict[BlockId, str] = {}  # some block files that are links -> target
        self.surplus: dict[BlockId, int] = {}  # bytes beyond the committed end
        self.skipped: dict[BlockId, str] = {}
        self.skipped_count = 0
        with block_errors(paths.tree):
            self._read_tree()
        with block_errors(paths.chunks):
            self._directory_fd = self._opened_directory()

    def _opened_directory(self) -> int:
        try:
            return os.open(self._paths.chunks, DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            if not self.is_current():
                raise self._missing_error() from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return ABSENT_FD
            self._directory_error = persistent_error(error)
            if not self._insists or self._directory_error is error:
                raise
        return ABSENT_FD

    def _missing_error(self) -> RefusedError:
        return RefusedError(
            Code.CONTAINER_NOT_FOUND,
            f"container {self._paths.container_id} is no longer in {self._paths.root}",
        )

    def _read_tree(self) -> None:
        """Read Ozone's tree.

        If it is damaged, read it again, because Ozone may have replaced the file.
        """
        path = self._paths.tree
        for is_last in (False, True):
            try:
                data = read_small(path, TREE_BYTES_MAX)
                self._tree = decode_tree(data, self._paths.container_id)
            except FileNotFoundError:
                fault = StructureFault(DamageFault.TREE_MISSING, f"{path.name} does not exist")
            except DamagedData as damage:
                fault = StructureFault(DamageFault.TREE_DAMAGED, str(damage))
            except OSError as error:
                fault = StructureFault(DamageFault.TREE_DAMAGED, self._unreadable(path, error))
            else:
                return
            if is_last:
                self._tree_faults.append(fault)

    def close(self) -> None:
        """Close the directory of block files."""
        if self._directory_fd != ABSENT_FD:
            os.close(self._directory_fd)
        self._directory_fd = ABSENT_FD

    @property
    def container_id(self) -> ContainerId:
        """Id of the container."""
        return self._paths.container_id

    # Rows.

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield (block id, row) by ascending id.

        The rows are in Suture's format (`merkle.blockrow`). A damaged row is yielded unchanged. A
        block in an unsupported format is omitted, and listed in `skipped`.
        """
        ledger, skipped, skipped_count = TreeComparisonBuilder(), dict[BlockId, str](), 0
        for batch in self.rows.batches():
            self._has_rows |= bool(batch.block_ids)
            simple = self._simple(batch)
            ledger.add_stable(simple.block_ids, simple.checksums)
            self._note_lengths(simple.block_ids.tolist(), simple.lengths_bytes.tolist())
            rows_of_ours = iter(simple.rows)
            items = zip(
                batch.block_ids, simple.is_simple.tolist(), batch.rows, batch.tails, strict=True
            )
            for block_id, is_simple, row, tail in items:
                if is_simple:
                    yield block_id, next(rows_of_ours)
                    continue
                try:
                    stored = decode_stored(self.container_id, block_id, row, tail)
                except DamagedData:
                    ledger.leave_out(block_id)
                    yield block_id, row or tail or b""
                    continue
                except UnsupportedFormat as why:
                    ledger.leave_out(block_id)
                    skipped_count += 1
                    if len(skipped) < SKIPPED_MAX:
                        skipped[block_id] = str(why)
                    continue
                ledger.add(stored)
                self._note_lengths([block_id], [stored.block.length_bytes])
                yield block_id, encode_block(stored.block)
        # The results are valid only after all rows were read.
        self.ledger, self.skipped, self.skipped_count = ledger, skipped, skipped_count

    def _simple(self, batch: RowBatch) -> SimpleRows:
        """Parse the simple rows of a batch.

        A block with a row in `last_chunk_info` is not simple.
        """
        rows = [
            row if tail is None and row is not None else b""
            for row, tail in zip(batch.rows, batch.tails, strict=True)
        ]
        return read_simple(self.container_id, batch.block_ids, rows)

    def _note_lengths(self, block_ids: Sequence[BlockId], lengths_bytes: Sequence[int]) -> None:
        if len(self._lengths_bytes) >= LENGTHS_MAX:
            self._lengths_bytes.clear()
        self._lengths_bytes.update(zip(block_ids, lengths_bytes, strict=True))

    def row(self, block_id: BlockId) -> bytes | None:
        """Return the row of a block, or None if the block is deleted or has a pending delete.

        Until `settled` is called, the row may be up to a minute older than the last read of data.
        """
        if not self.is_current():
            return None
        rows = self._rows_since(self._looked_at_s - self._rows_age_s)
        row, tail = rows.pair(block_id)
        if (row is None and tail is None) or block_id in rows.pending_delete_blocks():
            return None
        if block_id in self._tombstones_now():
            return None
        try:
            return encode_block(decode_stored(self.container_id, block_id, row, tail).block)
        except (DamagedData, UnsupportedFormat):
            return row or tail

    def _tombstones_now(self) -> Mapping[BlockId, int]:
        """Return the current tombstones in Ozone's tree, with their checksums.

        Return an empty mapping if the tree cannot be read.
        """
        try:
            status = self._paths.tree.stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._buried is None or self._buried[0] != version:
                data = read_small(self._paths.tree, TREE_BYTES_MAX)
                tree = decode_tree(data, self.container_id)
                self._buried = (version, tree.tombstones)
        except (DamagedData, OSError):
            return {}
        return self._buried[1]

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the checksums of the deleted blocks in Ozone's tree, by block id."""
        return {} if self._tree is None else self._tree.tombstones

    # Data.

    def open_block(self, block_id: BlockId) -> BlockFile:
        """Open the file of a block. If a symbolic link is at its path, open the target of the link.

        Raise FileNotFoundError if there is no file.
        """
        directory_fd, name = self._checked_directory(), f"{block_id}{SUFFIX}"
        if stat.S_ISLNK(os.lstat(name, dir_fd=directory_fd).st_mode):
            path = self._paths.chunks / name
            found = inspect_path(PathRole.BLOCK, path)
            if found.kind is not FileKind.LINK:
                raise FileNotFoundError(errno.ENOENT, f"{found.words} is in its place", name)
            name = os.path.realpath(path)
        return _CommittedFile(
            name,
            self._buffers,
            directory_fd=directory_fd,
            pieces=self._pieces,
            committed_bytes=self._committed_bytes(block_id),
            surplus=lambda length_bytes: self.surplus.update({block_id: length_bytes}),
        )

    def _committed_bytes(self, block_id: BlockId) -> int:
        """Return the committed length of a block in bytes.

        It is taken from the cached lengths or from the database.
        """
        known = self._lengths_bytes.get(block_id)
        if known is None:
            block = self.block(block_id)
            known = 0 if block is None else block.length_bytes
        return known

    def block(self, block_id: BlockId) -> BlockData | None:
        """Return a block from the rows at the start of the read.

        Return None if its row is missing or invalid.
        """
        row, tail = self.rows.pair(block_id)
        with contextlib.suppress(DamagedData, UnsupportedFormat):
            if row is not None or tail is not None:
                return decode_stored(self.container_id, block_id, row, tail).block
        return None

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read a small block.

        Request one byte more than its length, to detect a file that is too long.
        """
        name, fd = f"{block_id}{SUFFIX}", self._checked_directory()
        if not is_cut(self._pieces, length_bytes):
            view = read_at_once(name, fd, self._buffers.first, length_bytes)
            if view is not None:
                return view
        file = BlockFile(name, self._buffers, directory_fd=fd, pieces=self._pieces)
        try:
            return file.read(0, length_bytes + 1)
        finally:
            file.close()

    def _checked_directory(self) -> int:
        self._looked_at_s = time.monotonic()
        if self._directory_error is not None:
            raise self._directory_error
        if self._directory_fd == ABSENT_FD:
            raise FileNotFoundError(errno.ENOENT, "no chunks directory", str(self._paths.chunks))
        return self._directory_fd

    def former_bytes(self, block_id: BlockId, offset: int) -> tuple[bytes, ...]:
        """Return an empty tuple, because Ozone does not keep replaced bytes."""
        del block_id, offset
        return ()

    # Other files and directories.

    def structure(self) -> Structure:
        """List the files of the replica, and check its descriptor, tree file and directories."""
        faults = [*self._tree_faults]
        self._looked_at_s, self._rows_age_s = time.monotonic(), 0.0  # time of the following checks
        ids, foreign = np.empty(0, np.uint64), list[str]()
        if self._directory_fd == ABSENT_FD and self._directory_error is None:
            found = inspect_path(PathRole.CHUNKS, self._paths.chunks)
            rule = rule_of(PathRole.CHUNKS, found.kind, has_rows=self._has_rows)
            if rule.fault is not None:
                where = f"{found.words} is at {self._paths.chunks}"
                faults.append(StructureFault(rule.fault, where))
        else:
            try:
                ids, foreign = self._list()
            except OSError as error:
                why = self._unreadable(self._paths.chunks, error)
                fault = StructureFault(
                    DamageFault.CHUNKS_DIRECTORY_MISSING, why, is_unreadable=True
                )
                faults.append(fault)
        faults.extend(StructureFault(DamageFault.FOREIGN_FILE, name) for name in sorted(foreign))
        faults.extend(self._descriptor_faults())
        self.has_files = ids.size > 0
        return Structure(tuple(faults), ids, self._expected_blocks(ids))

    def _list(self) -> tuple[U64s, list[str]]:
        """Return the ids of the blocks that have a file, and the names of other files.

        The ids are in ascending order.
        """
        if self._directory_error is not None:
            raise self._directory_error
        ids: array[int] = array("Q")
        foreign: list[str] = []
        with os.scandir(self._directory_fd) as entries:
            for entry in entries:
                name = entry.name
                number = number_of(name[: -len(SUFFIX)]) if name.endswith(SUFFIX) else None
                if number is not None and entry.is_file(follow_symlinks=False):
                    ids.append(number)
                elif number is not None and self.row(BlockId(number)) is not None:
                    if entry.is_symlink() and len(self.links) < FOREIGN_NAMES_MAX:
                        self._note_link(BlockId(number), self._paths.chunks / name)
                elif len(foreign) < FOREIGN_NAMES_MAX:
                    foreign.append(name)
        return np.unique(np.frombuffer(ids, np.uint64)), foreign

    def _note_link(self, block_id: BlockId, path: Path) -> None:
        if inspect_path(PathRole.BLOCK, path).kind is FileKind.LINK:
            self.links[block_id] = os.path.realpath(path)

    def _descriptor_faults(self) -> list[StructureFault]:
        """Return the fault of the descriptor, if it has one.

        If the descriptor is damaged, read it again, because Ozone may have replaced the file.
        """
        fault = self._descriptor_fault()
        if fault is not None:
            fault = self._descriptor_fault()
        return [] if fault is None else [fault]

    def _descriptor_fault(self) -> StructureFault | None:
        path = self._paths.descriptor
        try:
            read_descriptor(self._paths)
        except FileNotFoundError:
            if not self.is_current():
                raise self._missing_error() from None
            return StructureFault(DamageFault.DESCRIPTOR_MISSING, f"{path.name} does not exist")
        except DamagedData as damage:
            return StructureFault(DamageFault.DESCRIPTOR_DAMAGED, str(damage))
        except UnsupportedFormat:
            return None
        except OSError as error:
            why = self._unreadable(path, error)
            return StructureFault(DamageFault.DESCRIPTOR_DAMAGED, why, is_unreadable=True)
        return None

    def _expected_blocks(self, files: U64s) -> U64s:
        """Return the blocks that must have a row.

        These are the blocks in Ozone's tree that have a file. A block in the tree that has neither
        a file nor a row is omitted. Ozone does not sync its tree, so the block may have been
        deleted shortly before a power failure. The comparison of the trees reports such a block.
        """
        live = [] if self._tree is None else sorted(self._tree.live)
        known = np.array(live, dtype=np.uint64)
        skipped = np.array(sorted(self.skipped), dtype=np.uint64)
        return np.setdiff1d(np.intersect1d(known, files, True), skipped, True)

    def _unreadable(self, path: Path, error: OSError) -> str:
        """Return a text that reports a file as unreadable.

        If `error` may be temporary, raise it again.
        """
        known = persistent_error(error) if self._insists else error
        if read_failure(known) is Verdict.TRANSIENT:
            raise error
        return f"{path.name}: read failed with {name_of(error)}"

    def is_current(self) -> bool:
        """Return whether the replica is still at its path."""
        try:
            return identity_of(self._paths) == self._identity
        except OSError:
            return False

    # After the scan.

    def settled(self, outcome: ScanOutcome, spend: Callable[[int], bool]) -> ScanOutcome:
        """Return the final outcome of the scan.

        Findings about blocks that were deleted during the scan are dropped. If the file of a
        damaged block has the data of another block, its findings name the other block. To find out,
        files are read again. `spend` is called with the number of bytes of each read; reading stops
        if `spend` returns False. Raise UnavailableError if the rows cannot be read.
        """
        self._rows_age_s = 0.0
        outcome = self._status(outcome)
        damaged = dict.fromkeys(one.block_id for one in outcome.findings if one.fault in OF_BYTES)
        if outcome.stopped_because or len(damaged) < 2:
            return outcome
        try:
            theirs = self._misplaced(tuple(islice(damaged, TRIED_MAX)), spend)
        except _EndedError:
            return replace(outcome, stopped_because=STOPPED)
        return replace(outcome, findings=tuple(explained(outcome.findings, theirs)))

    def _status(self, outcome: ScanOutcome) -> ScanOutcome:
        """Return the outcome without findings about deleted blocks.

        Mark the outcome as CHANGED in two cases, so that the container is read again: a row has
        changed, or the limit on the number of findings may have hidden some.
        """
        asked, gone = {item.block_id for item in outcome.findings if _is_of_row(item)}, set()
        if not asked or not self.is_current():
            return outcome
        rows, buried = self._rows_since(self._looked_at_s), self._tombstones_now()
        for block_id in asked:
            pair = rows.pair(block_id)
            if (
                pair == (None, None)
                or block_id in buried
                or block_id in rows.pending_delete_blocks()
            ):
                gone.add(block_id)
            elif pair != self.rows.pair(block_id):
                return replace(outcome, stopped_because=CHANGED)
        kept = [item for item in outcome.findings if item.block_id not in gone]
        damage_count = sum(item.is_damage for item in outcome.findings)
        if gone and damage_count >= FINDINGS_PER_REPLICA_MAX:
            return replace(outcome, stopped_because=CHANGED)
        count = outcome.finding_count - (len(outcome.findings) - len(kept))
        return replace(outcome, findings=tuple(kept), finding_count=count)

    def _misplaced(
        self, block_ids: Sequence[BlockId], spend: Callable[[int], bool]
    ) -> Mapping[BlockId, BlockId]:
        """Return the damaged blocks whose path has the file of another block.

        Each is returned with the id of that other block.
        """

        def read(block_id: BlockId, offset: int, length_bytes: int) -> memoryview:
            name, fd = f"{block_id}{SUFFIX}", self._directory_fd
            file = BlockFile(name, self._buffers, directory_fd=fd, pieces=self._pieces)
            try:
                view = file.read(offset, length_bytes)
            finally:
                file.close()
            if not spend(len(view)):
                raise _EndedError
            return view

        damaged = {}
        with contextlib.suppress(OSError):  # after a failed read, the file's block is unknown
            for block_id in block_ids:
                block = self.block(block_id)
                if block is not None:
                    status = os.lstat(f"{block_id}{SUFFIX}", dir_fd=self._directory_fd)
                    damaged[block_id] = MisplacedFile(block, status.st_size)
            return exchanges(damaged, read)
        return {}

    def compare(self, scanned: Tree) -> Comparison:
        """Compare Ozone's tree with the rows, and with the data that was read.

        `scanned` is the tree of that data.
        """
        return self.ledger.compare(self._tree, self.rows.number(RECORDED_ROOT), scanned)
