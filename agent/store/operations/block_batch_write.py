"""Writes complete new blocks of a client, and commits them in one transaction.

A large block is written past the page cache to a temporary file, tmp/importing/<id>.<n>.new. The
file is synced and then renamed. Small blocks are written directly to their own files, and then each
is synced. One sync of the directory and one LMDB commit follow for all blocks. Then the agent
acknowledges the blocks to the client.

A large block enters the replica's directory only when it is complete. No lease is held while the
client sends. A crash before the commit leaves only garbage: files without a row, or files in tmp/.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from agent.store.files import blockfile
from agent.store.files.directfile import Buffers, DirectFile
from agent.store.files.writebehind import SMALL_BYTES_MAX, Submit
from agent.store.index.transactions import IndexView
from agent.store.operations.write_rules import (
    RecordedBlock,
    check_commit,
    check_encodable,
    check_id,
    check_open,
    check_room,
    checked_chunk,
    commit_blocks,
    known_block,
    writable_replica,
)
from agent.store.operations.writing import forget_unrecorded
from agent.store.replica.handle import ReplicaHandle, reports_failures
from agent.store.replica.path_conflicts import clear_place, remove_abandoned
from agent.store.volumes.volume import check_space
from merkle.replica import BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import begin_writing, disk_errors, raise_shortage, write_all

OPEN_COUNT_MAX: Final = 64  # small files that one call has open at once
NEW_SUFFIX: Final = ".new"  # in tmp/importing, which the agent empties at its start
NOTHING_KNOWN: Final = RecordedBlock(None, 0)

_numbers = count()
_buffers = Buffers()


@dataclass(slots=True)
class _PartialBlock:
    """A block of which the client has sent only the first chunks."""

    block_id: BlockId
    file: DirectFile
    chunks: list[ChunkInfo]


@dataclass(frozen=True, slots=True)
class _CompleteBlock:
    """A complete block, either in memory (`data`) or durable in a temporary `file`."""

    block: BlockData
    data: memoryview
    file: DirectFile | None = None


@dataclass(eq=False)
class NewBlocks(ReplicaHandle):
    """The new blocks of one client call, for one container.

    Only one thread may use the object, and it must call `discard` at the end. `submit` runs the
    writes of large blocks in other threads.
    """

    submit: Submit | None
    _growing: _PartialBlock | None = field(default=None, init=False)
    _whole: list[_CompleteBlock] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Raise `RefusedError` if the replica does not accept writes."""
        with self.volume.index.read() as rows:
            check_open(self.container_id, rows.replica(self.container_id))

    @property
    def whole_count(self) -> int:
        """Number of blocks that `commit` would commit."""
        return len(self._whole)

    @property
    def is_cut_off(self) -> bool:
        """Return whether the last block is incomplete."""
        return self._growing is not None

    @reports_failures
    def add_chunks(self, piece: BlockData, data: memoryview, *, is_whole: bool) -> None:
        """Accept the next chunks of a block with their data.

        The data must not change until `commit`. The block's metadata is taken from the last piece,
        for which `is_whole` is True. No lease is needed. Raise SutureError if the chunks are
        refused or cannot be written. The caller must then call `discard`.
        """
        block_id = piece.block_id
        check_id(block_id, "block id")
        growing = self._growing
        if growing is not None and growing.block_id != block_id:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"block {block_id} begins before block {growing.block_id} is complete",
            )
        if growing is None and block_id in {one.block.block_id for one in self._whole}:
            raise RefusedError(Code.MALFORMED_REQUEST, f"block {block_id} was sent twice")
        before = growing.chunks if growing else []
        chunks = before + self._checked(block_id, before, piece.chunks, data)
        block = replace(piece, chunks=tuple(chunks))
        if is_whole:
            check_commit(NOTHING_KNOWN, block)
            check_encodable(block)
        if growing is None and is_whole and len(data) <= SMALL_BYTES_MAX:
            self._whole.append(_CompleteBlock(block, data))
            return
        self._grow(block_id, chunks, data)
        if is_whole:
            self._end(block)

    @reports_failures
    def commit(self) -> int:
        """Move the complete blocks into place and commit all or none.

        Return the number of committed blocks. The number includes identical blocks that were
        already committed. The caller holds the container's lease. Raise SutureError if the blocks
        are refused or cannot be written.
        """
        volume, container_id = self.volume, self.container_id
        whole, self._whole = self._whole, []
        with ExitStack() as stack:
            for one in whole:
                if one.file is not None:
                    stack.callback(self._abandon, one.file)
            with volume.index.read() as rows:
                fresh = [one for one in whole if not _is_committed(rows, container_id, one.block)]
                row = rows.replica(container_id)
            added_bytes = sum(one.block.length_bytes for one in fresh)
            check_room(self.options, row, added_bytes)
            small_bytes = sum(len(one.data) for one in fresh if one.file is None)
            check_space(volume, small_bytes, reserve_bytes=self.options.reserve_bytes)
            if not fresh:
                return len(whole)
            blocks = [one.block for one in fresh]
            try:
                self._place(fresh)
                volume.index.write(
                    lambda rows: commit_blocks(rows, container_id, blocks, added_bytes)
                )
            except SutureError:
                for block in blocks:
                    forget_unrecorded(volume, container_id, block.block_id, 0)
                raise
        return len(whole)

    def discard(self) -> None:
        """Remove uncommitted data. Do nothing after a `commit`."""
        growing, self._growing = self._growing, None
        if growing is not None:
            self._abandon(growing.file)
        whole, self._whole = self._whole, []
        for one in whole:
            if one.file is not None:
                self._abandon(one.file)

    def _abandon(self, file: DirectFile) -> None:
        file.abandon()
        remove_abandoned(self.volume, file.path)

    def _checked(
        self,
        block_id: BlockId,
        before: Sequence[ChunkInfo],
        chunks: Sequence[ChunkInfo],
        data: memoryview,
    ) -> list[ChunkInfo]:
        """Return the chunks to record. `before` has the chunks of the block that were sent earlier.

        Raise `RefusedError` unless the chunks are contiguous and their data matches the checksums
        of the client.
        """
        end = before[-1].end if before else 0
        start = 0
        recorded = []
        for chunk in chunks:
            if chunk.offset != end:
                code = Code.CHUNK_GAP if chunk.offset > end else Code.OVERLAPPING_CHUNK
                raise RefusedError(
                    code,
                    f"block {block_id}, chunk at {chunk.offset}: the one before it ends at {end}",
                )
            piece = data[start : start + chunk.length_bytes]
            recorded.append(checked_chunk(self.options, block_id, chunk, piece))
            end, start = chunk.end, start + chunk.length_bytes
        assert start == len(data), "data is that of the chunks"
        return recorded

    def _grow(self, block_id: BlockId, chunks: list[ChunkInfo], data: memoryview) -> None:
        check_space(self.volume, len(data), reserve_bytes=self.options.reserve_bytes)
        directory = self.volume.layout.importing
        with disk_errors(directory):
            if self._growing is None:
                path = directory / f"{self.container_id}.{next(_numbers)}{NEW_SUFFIX}"
                file = DirectFile(path, _buffers, self.submit)
                self._growing = _PartialBlock(block_id, file, chunks)
            self._growing.chunks = chunks
            self._growing.file.append(data)

    def _end(self, block: BlockData) -> None:
        growing = self._growing
        assert growing is not None
        with disk_errors(growing.file.path):
            growing.file.finish()
        self._growing = None
        self._whole.append(_CompleteBlock(block, memoryview(b""), growing.file))

    def _place(self, whole: Sequence[_CompleteBlock]) -> None:
        """Move the files of the blocks into the replica's directory.

        Then make the files and their names durable.
        """
        chunks = self.paths.chunks
        for one in whole:
            if one.file is not None:
                self._clear(one.block.block_id)
        with disk_errors(chunks):
            small = [one for one in whole if one.file is None and one.data]
            try:
                directory_fd = os.open(chunks, blockfile.DIRECTORY_FLAGS)
            except OSError as error:  # directory lost with its content, or replaced
                raise_shortage(error, chunks)
                self._clear(whole[0].block.block_id)
                directory_fd = os.open(chunks, blockfile.DIRECTORY_FLAGS)
            try:
                for one in whole:
                    if one.file is not None:
                        name = f"{one.block.block_id}.block"
                        os.rename(one.file.path, name, dst_dir_fd=directory_fd)
                for start in range(0, len(small), OPEN_COUNT_MAX):
                    self._write_small(small[start : start + OPEN_COUNT_MAX], directory_fd)
                os.fsync(directory_fd)
            finally:
                os.close(directory_fd)

    def _write_small(self, small: Sequence[_CompleteBlock], directory_fd: int) -> None:
        """Write all small blocks, then sync each file. The kernel writes the files concurrently."""
        with ExitStack() as opened:
            fds = []
            for one in small:
                block_id = one.block.block_id
                fd = blockfile.create(f"{block_id}.block", directory_fd)
                if fd is None:  # a file of an earlier attempt, or not a regular file
                    self._clear(block_id)
                    blockfile.append(self.paths.block_file(block_id), bytes(one.data), 0)
                    continue
                opened.callback(os.close, fd)
                write_all(fd, one.data, 0)
                begin_writing(fd)
                fds.append(fd)
            for fd in fds:
                os.fdatasync(fd)

    def _clear(self, block_id: BlockId) -> None:
        reserve_bytes = self.options.reserve_bytes
        clear_place(self, block_id, reserve_bytes=reserve_bytes, end=0)


def _is_committed(rows: IndexView, container_id: ContainerId, block: BlockData) -> bool:
    """Return whether an identical block is committed already.

    Raise `RefusedError` if the replica does not accept the block, or if it already has other chunks
    with this block id, committed or not.
    """
    writable_replica(rows, container_id, block.block_id)
    known = known_block(rows, container_id, block.block_id)
    is_summed = all(chunk.checksum_type is not ChecksumType.NONE for chunk in block.chunks)
    if known.committed == block and is_summed:
        return True
    if known.end or known.committed is not None:
        raise RefusedError(
            Code.OVERLAPPING_CHUNK,
            f"block {block.block_id} of container {container_id} is not new: {known.end} bytes "
            "are already written",
            container_id=container_id,
            block_id=block.block_id,
        )
    return False
