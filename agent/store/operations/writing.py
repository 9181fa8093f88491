"""Client writes of single chunks, and commits of blocks.

The store checks the request, writes the data, syncs the file, and records the chunk in one LMDB
commit. Then the client gets its acknowledgement. After a crash before the commit, the file has
garbage after its recorded end.
"""

from contextlib import suppress

from agent.store.files import blockfile
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.operations.overwrite import overwrite_chunk
from agent.store.operations.write_rules import (
    ChunkPlacement,
    RecordedBlock,
    check_id,
    check_room,
    checked_chunk,
    commit_blocks,
    known_block,
    place_chunk,
    resolved_commit,
    writable_replica,
)
from agent.store.replica.handle import ReplicaHandle, reports_failures
from agent.store.replica.path_conflicts import clear_place
from agent.store.volumes.volume import Volume, check_space
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import disk_errors


class ReplicaWriter(ReplicaHandle):
    """Handle for the writes of a client to one replica. The caller holds the container's lease."""

    @reports_failures
    def write_chunk(
        self, block_id: BlockId, chunk: ChunkInfo, data: bytes, *, commit: BlockData | None = None
    ) -> ChunkInfo:
        """Write a chunk durably, and return the chunk as recorded.

        If `commit` is given, also commit this block, which contains the chunk. A chunk whose
        `checksum_type` is None gets CRC32C. Raise `RefusedError` or
        `UnavailableError(DISK_OUT_OF_SPACE)`, with nothing changed.
        """
        check_id(block_id, "block id")
        recorded = checked_chunk(self.options, block_id, chunk, data)
        with self.volume.index.read() as rows:
            row = writable_replica(rows, self.container_id, block_id)
            known = known_block(rows, self.container_id, block_id)
            place = place_chunk(
                rows,
                self.container_id,
                block_id,
                known,
                recorded,
                lambda: self._medium_has(block_id, chunk.offset, data),
            )
            block = self._commit_with(rows, block_id, known, recorded, commit)
        match place:
            case ChunkPlacement.END:
                check_room(self.options, row, len(data))
                self._append(block_id, recorded, data, block)
            case ChunkPlacement.AGAIN:
                self._overwrite(block_id, recorded, data, block)
            case ChunkPlacement.RECORDED:
                if block is not None and block != known.committed:
                    self._commit(block)
        return recorded

    @reports_failures
    def put_block(self, block: BlockData) -> int:
        """Commit a block whose chunks are written. Return its length in bytes.

        The commit is durable when this returns.
        """
        check_id(block.block_id, "block id")
        with self.volume.index.read() as rows:
            writable_replica(rows, self.container_id, block.block_id)
            known = known_block(rows, self.container_id, block.block_id)
            written = [chunk for _, chunk in rows.pending(self.container_id, block.block_id)]
            resolved = resolved_commit(known, written, block)
        if resolved != known.committed:
            self._commit(resolved)
        return resolved.length_bytes

    def _medium_has(self, block_id: BlockId, offset: int, data: bytes) -> bool:
        path = self.paths.block_file(block_id)
        with disk_errors(path):
            return blockfile.read(path, offset, len(data)) == data

    def _commit_with(
        self,
        rows: IndexView,
        block_id: BlockId,
        known: RecordedBlock,
        chunk: ChunkInfo,
        commit: BlockData | None,
    ) -> BlockData | None:
        if commit is None:
            return None
        if commit.block_id != block_id:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"a chunk of block {block_id} with a commit of block {commit.block_id}",
            )
        written = [had for _, had in rows.pending(self.container_id, commit.block_id)]
        return resolved_commit(
            known, [had for had in written if had.offset != chunk.offset] + [chunk], commit
        )

    def _commit(self, block: BlockData) -> None:
        self.volume.index.write(lambda rows: commit_blocks(rows, self.container_id, [block]))

    def _append(
        self, block_id: BlockId, chunk: ChunkInfo, data: bytes, block: BlockData | None
    ) -> None:
        reserve_bytes = self.options.reserve_bytes
        check_space(self.volume, len(data), reserve_bytes=reserve_bytes)
        clear_place(self, block_id, reserve_bytes=reserve_bytes, end=chunk.offset)
        blocks = [] if block is None else [block]

        def record(rows: IndexChange) -> None:
            if block is None or chunk.end > block.length_bytes:
                rows.put_pending(self.container_id, block_id, chunk)
            commit_blocks(rows, self.container_id, blocks, added_bytes=chunk.length_bytes)

        blockfile.append(self.paths.block_file(block_id), data, chunk.offset)
        try:
            self.volume.index.write(record)
        except SutureError:
            forget_unrecorded(self.volume, self.container_id, block_id, chunk.offset)
            raise

    def _overwrite(
        self, block_id: BlockId, chunk: ChunkInfo, data: bytes, block: BlockData | None
    ) -> None:
        def record(rows: IndexChange) -> None:
            rows.put_pending(self.container_id, block_id, chunk)
            if block is not None:
                commit_blocks(rows, self.container_id, [block])

        overwrite_chunk(self, block_id, chunk, data, record, pending=True)


def forget_unrecorded(
    volume: Volume, container_id: ContainerId, block_id: BlockId, offset: int
) -> None:
    """Truncate a block file to `offset`, after the index failed to record the bytes after it.

    Do nothing if the index has a record of these bytes, or cannot be read.
    """
    with suppress(SutureError), volume.index.read() as rows:
        if known_block(rows, container_id, block_id).end == offset:
            blockfile.forget_tail(volume.paths(container_id).block_file(block_id), offset)
