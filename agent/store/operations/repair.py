"""Repairs of one replica. Each step is journaled and destroys no data.

Local bytes that match their checksums are never overwritten. The disk is read directly before each
overwrite. If the local row is intact, bytes that do not match this row are refused, whatever their
source. Only an order of an operator overrides these two rules. Replaced or truncated bytes go to
quarantine first.

Every step increments the generation of the replica. Therefore, a scan that began earlier cannot
commit its tree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.store.files import blockfile
from agent.store.index.rows import moved_on
from agent.store.index.transactions import IndexChange
from agent.store.operations.block_records import put_blocks, readable_block, record_chunk
from agent.store.operations.closing import follow_state, quarantine_tail
from agent.store.operations.deleting import record_tombstones, replace_by_tombstones, unlink_blocks
from agent.store.operations.overwrite import overwrite_chunk
from agent.store.operations.write_rules import (
    check_bcsid,
    check_checksums,
    check_id,
    refuse_tombstone,
)
from agent.store.replica.contradictions import note_contradictions
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.packs import place_of
from agent.store.replica.quarantine import QuarantineEntry, quarantine_bytes
from agent.store.replica.trees import load_tree, tree_replica
from agent.store.verification_log.log_entries import log_repair
from merkle.blockrow import check_chunk, decode_block, encode_block
from merkle.checksum import window_checksums
from merkle.damaged_data import DamagedData
from merkle.replica import BLOCK_BYTES_MAX, Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from scanner.finding import ScanFinding
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import block_errors


@dataclass(eq=False)
class ReplicaRepair(ReplicaHandle):
    """Handle for repairs of one replica, which must have a tree.

    The caller holds the container's lease.
    """

    def __post_init__(self) -> None:
        """Raise `RefusedError` if the replica has no tree."""
        with self.volume.index.read() as rows:
            tree_replica(rows, self.container_id)

    def install_chunk(
        self,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: bytes,
        *,
        is_ordered: bool = False,
        proof: str = "",
    ) -> None:
        """Install a peer's chunk in the place of a missing or damaged one.

        `is_ordered` means that an operator ordered exactly these bytes. They are then installed
        even if the local row differs, or if the local bytes match it. `proof` shows that a peer has
        the bytes on its disk, and is written to the journal. A proof is required if the local disk
        has bytes at that offset and no local row contradicts them.

        Raise `RefusedError`:

        - NOT_PROVEN if a required proof is missing. - INELIGIBLE if the local bytes match the local
        row. - OVERLAPPING_CHUNK if the chunk overlaps recorded chunks. - CHUNK_GAP if the chunk
        would leave a hole. - CHECKSUM_MISMATCH if the data does not match `chunk` or the local row.

        Raise `BlockFailed` if the disk does not return the written bytes.
        """
        check_offered(block_id, chunk, data)
        block = self._fitting_block(block_id, chunk)
        recorded = chunk_at(block, chunk.offset)
        held = self.read_medium(block_id, recorded or chunk)
        check_replaceable(block_id, chunk, None if is_ordered else recorded, held=held, proof=proof)
        self._tell("install", block_id, chunk, proof)
        overwrite_chunk(
            self,
            block_id,
            chunk,
            data,
            lambda rows: record_chunk(rows, self.container_id, block_id, chunk),
            pending=False,
            proof=proof,
        )

    def salvage_chunk(
        self, block_id: BlockId, chunk: ChunkInfo, *, is_ordered: bool = False
    ) -> bool:
        """Record a chunk whose row was lost while its bytes are still on the disk.

        Return True if the chunk is recorded. Return False, with nothing changed, if the bytes on
        the disk do not match the checksums of `chunk`, or if it has no checksums. Also return False
        if a different local row exists, unless an operator ordered the change (`is_ordered`).
        """
        check_shape(block_id, chunk)
        block = self._fitting_block(block_id, chunk)
        if not is_ordered and chunk_at(block, chunk.offset) not in {None, chunk}:
            return False
        if not self.medium_has(block_id, chunk):
            return False
        if chunk_at(block, chunk.offset) != chunk:
            self._tell("salvage", block_id, chunk)
            self.volume.index.write(
                lambda rows: record_chunk(rows, self.container_id, block_id, chunk)
            )
        return True

    def medium_has(self, block_id: BlockId, chunk: ChunkInfo) -> bool:
        """Return whether the local disk has the bytes of the chunk at its offset.

        The caller needs no lease, because each step that records or overwrites bytes checks the
        disk again.
        """
        if chunk.checksum_type is ChecksumType.NONE:
            return False
        return verifies(chunk, self.read_medium(block_id, chunk))

    def trim(self, block_id: BlockId, *, proof: str = "") -> int:
        """Move the bytes after the last recorded chunk to quarantine.

        Return the number of moved bytes. If the block has no row, move the complete file. Raise
        `RefusedError(INELIGIBLE)` if the row is damaged, because the end of the block is then
        unknown.
        """
        check_id(block_id, "block id")
        with self.volume.index.read() as rows:
            row = rows.block(self.container_id, block_id)
        try:
            end = 0 if row is None else decode_block(block_id, row).length_bytes
        except DamagedData as damage:
            raise RefusedError(Code.INELIGIBLE, f"cannot trim the file: {damage}") from damage
        self._tell("trim", block_id, proof=proof)
        return trim_block(self, block_id, end)

    def adopt_tombstone(self, block_id: BlockId, checksum: int) -> None:
        """Delete a block that a peer has deleted, and record the peer's tombstone.

        `checksum` is the checksum in that tombstone. The bytes of the block go to quarantine. The
        caller must have confirmed the delete.
        """
        check_id(block_id, "block id")
        if not 0 <= checksum < 2**64:
            raise RefusedError(Code.MALFORMED_REQUEST, f"checksum {checksum} is not 64 bits")
        with self.volume.index.read() as rows:
            row = tree_replica(rows, self.container_id)
        self._tell("adopt_tombstone", block_id)
        if row.tree is None:
            self._add_tombstone_without_tree(block_id, checksum)
            return
        tree = load_tree(self)
        left = replace_by_tombstones(self, row, tree, {block_id: checksum}, kept_ids={block_id})
        check_removed(left, block_id)

    def adopt_bcsid(self, block_id: BlockId, bcsid: int) -> None:
        """Raise the BCSID of a block to `bcsid`, but never lower it.

        The caller must have checked that the block is complete.
        """
        check_bcsid(bcsid)
        self._alter_block(
            "adopt_bcsid",
            block_id,
            lambda block: replace(block, bcsid=Bcsid(max(block.bcsid, bcsid))),
        )

    def adopt_metadata(self, block_id: BlockId, metadata: tuple[tuple[str, str], ...]) -> None:
        """Set the client metadata of a block that has none."""
        self._alter_block(
            "adopt_metadata",
            block_id,
            lambda block: replace(block, metadata=block.metadata or metadata),
        )

    def _alter_block(
        self, action: str, block_id: BlockId, alter: Callable[[BlockData], BlockData]
    ) -> None:
        def change(rows: IndexChange) -> None:
            row = rows.block(self.container_id, block_id)
            if row is None:
                raise RefusedError(
                    Code.NO_SUCH_BLOCK, f"no block {block_id} in container {self.container_id}"
                )
            altered = alter(decode_block(block_id, row))
            rows.put_block(self.container_id, block_id, encode_block(altered))

        self._tell(action, block_id)
        self.volume.index.write(change)

    def install_empty_block(self, block_id: BlockId) -> None:
        """Record a block without chunks, unless this replica has an intact row of the block.

        The block is empty at a peer. Raise `RefusedError` if the block was deleted here.
        """
        check_id(block_id, "block id")

        def change(rows: IndexChange) -> None:
            refuse_tombstone(rows, self.container_id, block_id)
            if readable_block(rows, self.container_id, block_id) is None:
                put_blocks(rows, self.container_id, [(BlockData(block_id, Bcsid(0)), 0)])

        self._tell("install_empty_block", block_id)
        self.volume.index.write(change)

    def advance_bcsid(self, bcsid: int) -> None:
        """Raise the BCSID of the replica to `bcsid`, but never lower it.

        The BCSID states that the replica has all commits up to it, which the caller must have
        checked.
        """
        check_bcsid(bcsid)

        def change(rows: IndexChange) -> None:
            row = rows.replica(self.container_id)
            raised = Bcsid(max(row.bcsid, bcsid))
            rows.put_replica(self.container_id, replace(row, bcsid=raised))

        self._tell("advance_bcsid")
        self.volume.index.write(change)

    def note_contradictions(self, found: Sequence[ScanFinding], *, is_complete: bool) -> bool:
        """Store contradictions with peers as findings of the replica.

        Return True if the stored contradictions have changed.
        """
        return self.volume.index.write(
            lambda rows: note_contradictions(
                rows, self.container_id, found, is_complete=is_complete
            )
        )

    def keep_version(self, block_id: BlockId, offset: int, data: bytes, why: str) -> None:
        """Store a peer's version of a chunk in quarantine.

        Do nothing if there is too little free space.
        """
        if self.volume.available_bytes() - len(data) < self.options.reserve_bytes:
            return
        at_ms = self.options.now_ms()
        note = QuarantineEntry(self.container_id, block_id, offset, len(data), at_ms, why)
        quarantine_bytes(self.volume.layout, note, data)

    def rewrite_descriptor(self) -> None:
        """Rewrite the descriptor file from the replica row in the index."""
        self._tell("rewrite_descriptor")
        follow_state(self.volume, self.container_id)

    def _fitting_block(self, block_id: BlockId, chunk: ChunkInfo) -> BlockData | None:
        with self.volume.index.read() as rows:
            tree_replica(rows, self.container_id)
            refuse_tombstone(rows, self.container_id, block_id)
            block = readable_block(rows, self.container_id, block_id)
        end_bytes = block.length_bytes if block else 0
        check_fits(block_id, end_bytes, chunk_at(block, chunk.offset), chunk)
        return block

    def read_medium(self, block_id: BlockId, chunk: ChunkInfo) -> bytes:
        """Return the bytes on disk in the range of the chunk, or b"" if they cannot be read."""
        return self.read_medium_many(block_id, [chunk])[0]

    def read_medium_many(self, block_id: BlockId, chunks: Sequence[ChunkInfo]) -> list[bytes]:
        """Return the bytes on disk of several chunks of one block. The file is opened only once.

        An item is b"" if its range cannot be read.
        """
        with self.volume.index.read() as rows:
            place = place_of(rows, self.paths, self.container_id, block_id)
        spans = [(chunk.offset, chunk.length_bytes) for chunk in chunks]
        return [data or b"" for data in place.read_each_past_cache(spans)]

    def _tell(
        self,
        action: str,
        block_id: BlockId | None = None,
        chunk: ChunkInfo | None = None,
        proof: str = "",
    ) -> None:
        """Write a repair step to the verification log, before the step begins."""
        with self.volume.index.read() as rows:
            row = rows.replica(self.container_id)
        log = self.volume.verification
        log_repair(log, action, self.container_id, row, block_id, chunk, proof)

    def _add_tombstone_without_tree(self, block_id: BlockId, checksum: int) -> None:
        def change(rows: IndexChange) -> None:
            row = rows.replica(self.container_id)
            after = record_tombstones(
                rows, self.container_id, row, {block_id: checksum}, kept_ids={block_id}
            )
            rows.put_replica(self.container_id, moved_on(after))

        self.volume.index.write(change)
        check_removed(unlink_blocks(self), block_id)


def verifies(chunk: ChunkInfo, data: bytes) -> bool:
    """Return whether `data` matches the checksums of the chunk.

    If the chunk has no checksums, only compare the length of the data with that of the chunk.
    """
    if len(data) < chunk.length_bytes:
        return False
    actual = window_checksums(chunk.checksum_type, chunk.bytes_per_checksum, data)
    return actual == chunk.window_checksums


def check_replaceable(
    block_id: BlockId, chunk: ChunkInfo, recorded: ChunkInfo | None, *, held: bytes, proof: str
) -> None:
    """Raise `RefusedError` if the bytes on disk must not be replaced by those of `chunk`.

    `held` has the bytes on disk. `recorded` is the chunk in the local row. Replacing is refused if
    the bytes on disk match `recorded`, or if `chunk` differs from `recorded`. If `recorded` is
    None, the bytes on disk may be correct. A peer's `proof` of the new bytes is then required.
    """
    where = f"block {block_id}, chunk at {chunk.offset}"
    if recorded is None:
        if held and not proof:
            raise RefusedError(
                Code.NOT_PROVEN,
                f"{where}: cannot replace {len(held)} bytes that no row calls wrong: no peer "
                "proved that the replacement is on its disk",
            )
        return
    if verifies(recorded, held):
        raise RefusedError(Code.INELIGIBLE, f"{where}: the existing data is intact")
    if chunk != recorded:
        raise RefusedError(
            Code.CHECKSUM_MISMATCH,
            f"{where}: the offered data does not match the local row",
            hint="the replicas contradict each other; choose one with suture reconcile --trust",
        )


def check_removed(left: Mapping[BlockId, SutureError], block_id: BlockId) -> None:
    """Raise the error of this block if its removal failed.

    `left` has the errors of failed removals, by block id. Ignore the errors of other blocks.
    """
    if block_id in left:
        raise left[block_id]


def check_offered(block_id: BlockId, chunk: ChunkInfo, data: bytes) -> None:
    """Raise `RefusedError` if the data does not match the offered chunk.

    The length and the checksums of the chunk are compared.
    """
    check_shape(block_id, chunk)
    if len(data) != chunk.length_bytes:
        raise RefusedError(
            Code.INVALID_WRITE_SIZE,
            f"block {block_id}, chunk at {chunk.offset}: {len(data)} bytes for a length of "
            f"{chunk.length_bytes}",
        )
    check_checksums(block_id, chunk, data)


def check_shape(block_id: BlockId, chunk: ChunkInfo) -> None:
    """Raise `RefusedError` if the block id, or the offset or length of the chunk, is invalid."""
    check_id(block_id, "block id")
    try:
        check_chunk(block_id, chunk)
    except ValueError as error:
        raise RefusedError(Code.MALFORMED_REQUEST, str(error)) from error
    if chunk.length_bytes == 0 or chunk.end > BLOCK_BYTES_MAX:
        raise RefusedError(
            Code.INVALID_WRITE_SIZE, f"block {block_id}, chunk at {chunk.offset}: impossible length"
        )


def chunk_at(block: BlockData | None, offset: int) -> ChunkInfo | None:
    """Return the chunk of a block that begins at `offset`, or None if there is none."""
    chunks = block.chunks if block else ()
    return next((chunk for chunk in chunks if chunk.offset == offset), None)


def check_fits(
    block_id: BlockId, end_bytes: int, recorded: ChunkInfo | None, chunk: ChunkInfo
) -> None:
    """Raise `RefusedError` unless `chunk` has the range of `recorded`, or begins at the end.

    `end_bytes` is the end of the block. `recorded` is the chunk that begins at the same offset, or
    None.
    """
    if chunk.offset > end_bytes:
        raise RefusedError(
            Code.CHUNK_GAP,
            f"block {block_id}, chunk at {chunk.offset}: the block ends at {end_bytes}",
        )
    if chunk.offset < end_bytes and (
        recorded is None or recorded.length_bytes != chunk.length_bytes
    ):
        raise RefusedError(
            Code.OVERLAPPING_CHUNK,
            f"block {block_id}, chunk at {chunk.offset}: overlaps chunks recorded otherwise",
        )


def trim_block(replica: ReplicaHandle, block_id: BlockId, end: int) -> int:
    """Truncate a block file to `end`. Return the number of bytes that were moved to quarantine.

    No journal entry is needed, because the copy in quarantine is durable before the file is
    truncated. If a crash happens between the two, the file is unchanged. The next trim then makes a
    second copy.
    """
    container_id = replica.container_id
    with replica.volume.index.read() as rows:
        place = place_of(rows, replica.paths, container_id, block_id)
    with block_errors(place.name):
        size = place.size_bytes()
    if size <= max(end, blockfile.ABSENT):
        return 0
    replica.volume.index.write(
        lambda rows: rows.put_replica(container_id, moved_on(rows.replica(container_id)))
    )
    return quarantine_tail(
        replica,
        block_id,
        end,
        why="behind the last chunk",
        reserve_bytes=replica.options.reserve_bytes,
    )
