"""Batch install of chunks in a replica, with one sync of each kind for all chunks of the batch.

1. Copy the old bytes of all chunks to one file in quarantine.
2. Write one journal entry per chunk, in one commit.
3. Overwrite the bytes, with one fdatasync per file, and sync the directory. If the batch has many
   files, sync the file system instead.
4. Read each chunk back past the page cache, and verify it.
5. Record all chunks and remove all journal entries, in one commit.

The rules for one chunk (`agent.store.operations.repair`, `overwrite`) apply to each chunk of a
batch. Bytes that match their checksums are never overwritten. A chunk that differs from the local
row is refused. No write creates a hole. Old bytes are restored if a step fails.

A batch includes only simple chunks. It omits a chunk if its path is not a regular file, if its
block is in a pack file, or if a rule refuses it. The caller installs an omitted chunk alone, and
gets its error.

After a crash, the next start processes the journal entries one by one, by ascending offset. Each
chunk then has completely old or completely new bytes. If an earlier chunk of a block is rolled
back, the file is truncated to its former length, and later chunks of that block are rolled back,
too.
"""

import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from agent.store.files import blockfile
from agent.store.index.rows import InstallEntry
from agent.store.index.transactions import IndexView
from agent.store.operations.block_records import readable_block, record_chunks
from agent.store.operations.overwrite import REPAIRED, is_open, overwrite_chunks
from agent.store.operations.repair import check_fits, check_offered, check_replaceable
from agent.store.replica import quarantine
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.path_conflicts import has_home
from agent.store.replica.trees import tree_replica
from agent.store.verification_log.log_entries import log_batch
from agent.store.volumes.volume import check_space
from merkle.checksum import long_crc32c
from merkle.replica import BlockData, BlockId, ChunkInfo
from suture.errors import SutureError
from suture.runtime.durable import raise_shortage

BATCH_BYTES_MAX: Final = 16 * 1024**2  # memory use is twice this: new and old bytes
BATCH_COUNT_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class OfferedChunk:
    """A chunk offered by a peer.

    `is_ordered` means that an operator ordered exactly these bytes. `lent` is the peer's block
    record. If the replica has all chunks of that record after the install, it takes over the commit
    id and the client metadata of the record. `proof` is the peer's proof that its disk has the
    chunk. `seen` is the checksum (`checksum_of`) of the local bytes on disk, if they were read
    shortly before. It saves one read.
    """

    block_id: BlockId
    chunk: ChunkInfo
    data: bytes
    is_ordered: bool = False
    lent: BlockData | None = None
    proof: str = ""
    seen: bytes = b""


@dataclass(slots=True)
class _Block:
    """Current state of a block, updated with the chunks of the batch accepted so far."""

    path: Path
    recorded: Mapping[int, ChunkInfo]  # recorded chunks by offset
    end_bytes: int  # end of the last chunk
    had_bytes: int  # size of its file before the batch; blockfile.ABSENT if there is none
    size_bytes: int  # size of its file after the accepted chunks


@dataclass(frozen=True, slots=True)
class _AcceptedChunk:
    """A chunk that the batch writes.

    `old` has the local bytes that the chunk replaces, as far as they can be read. `before_bytes` is
    the length of the file after all earlier writes of the batch.
    """

    index: int
    offer: OfferedChunk
    old: bytes
    before_bytes: int


def install_batch(replica: ReplicaHandle, offers: Sequence[OfferedChunk]) -> frozenset[int]:
    """Install the simple chunks among `offers`.

    Return the positions in `offers` of the installed chunks. The other chunks are unchanged. The
    caller offers each of these alone and gets its error. If a step of the batch fails, all chunks
    are unchanged. The caller holds the container's lease. Raise `RefusedError` if there is no such
    replica. If the rollback fails, raise its error. The next start of the agent then rolls back.
    """
    volume, container_id = replica.volume, replica.container_id
    with volume.index.read() as rows:
        row = tree_replica(rows, container_id)
        blocks = _plain_blocks(rows, replica, offers)
    taken = list(_taken(blocks, offers))
    if not taken:
        return frozenset()
    places = [(one.offer.block_id, one.offer.chunk) for one in taken]
    proofs = [one.offer.proof for one in taken]
    log_batch(volume.verification, container_id, row, places, proofs)
    try:
        entries = _prepared(replica, blocks, taken)
    except SutureError:
        return frozenset()
    chunks: dict[BlockId, list[ChunkInfo]] = defaultdict(list)
    for entry in entries:
        chunks[entry.block_id].append(entry.chunk)
    lent = {one.offer.block_id: one.offer.lent for one in taken if one.offer.lent}
    data = [one.offer.data for one in taken]
    try:
        overwrite_chunks(
            replica, entries, data, lambda rows: record_chunks(rows, container_id, chunks, lent)
        )
    except SutureError:
        if any(is_open(replica, entry) for entry in entries):
            raise
        return frozenset()
    return frozenset(one.index for one in taken)


def _plain_blocks(
    rows: IndexView, replica: ReplicaHandle, offers: Sequence[OfferedChunk]
) -> dict[BlockId, _Block]:
    """Return the state of the blocks in `offers`.

    Omit deleted blocks, packed blocks, and blocks whose path is not a regular file with one hard
    link. A block may have no file yet.
    """
    container_id = replica.container_id
    paths = replica.paths
    found: dict[BlockId, _Block] = {}
    if not has_home(paths):
        return found
    for block_id in {offer.block_id for offer in offers}:
        is_dead = rows.tombstone(container_id, block_id) is not None
        if is_dead or rows.packed(container_id, block_id) is not None:
            continue
        path = paths.block_file(block_id)
        try:
            facts = path.lstat()
        except FileNotFoundError:
            size = blockfile.ABSENT
        except OSError as error:
            raise_shortage(error, path)
            continue
        else:
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
                continue
            size = facts.st_size
        block = readable_block(rows, container_id, block_id)
        recorded = {chunk.offset: chunk for chunk in block.chunks} if block else {}
        end_bytes = block.length_bytes if block else 0
        found[block_id] = _Block(path, recorded, end_bytes, size, size)
    return found


def _taken(
    blocks: Mapping[BlockId, _Block], offers: Sequence[OfferedChunk]
) -> Iterator[_AcceptedChunk]:
    """Yield the offers that the batch may write, and update `blocks` accordingly."""
    seen: set[tuple[BlockId, int]] = set()
    held = _read_medium(blocks, offers)
    for index, offer in enumerate(offers):
        block, chunk = blocks.get(offer.block_id), offer.chunk
        if block is None or (offer.block_id, chunk.offset) in seen:
            continue
        try:
            old = _checked(block, offer, held.get(index, b""))
        except SutureError:
            continue
        seen.add((offer.block_id, chunk.offset))
        yield _AcceptedChunk(index, offer, old, block.size_bytes)
        block.end_bytes = max(block.end_bytes, chunk.end)
        block.size_bytes = max(block.size_bytes, chunk.end)


def _read_medium(
    blocks: Mapping[BlockId, _Block], offers: Sequence[OfferedChunk]
) -> dict[int, bytes]:
    """Return the local bytes on disk in the range of each offer, by position in `offers`.

    Omit an offer if its range cannot be read, or begins after the end of the file.
    """
    indexes: dict[BlockId, list[int]] = defaultdict(list)
    for index, offer in enumerate(offers):
        block, chunk = blocks.get(offer.block_id), offer.chunk
        is_whole = len(offer.data) == chunk.length_bytes
        if block is not None and is_whole and chunk.offset < block.had_bytes:
            indexes[offer.block_id].append(index)
    found: dict[int, bytes] = {}
    for block_id, those in indexes.items():
        spans = [(offers[at].chunk.offset, offers[at].chunk.length_bytes) for at in those]
        read = blockfile.read_each_past_cache(blocks[block_id].path, spans)
        found |= {at: data for at, data in zip(those, read, strict=True) if data is not None}
    return found


def _checked(block: _Block, offer: OfferedChunk, first: bytes) -> bytes:
    """Return the local bytes on disk that the offered chunk will replace.

    Return b"" if the bytes cannot be read, or if repeated reads differ from `first`. Nothing can be
    restored in these cases. Raise `RefusedError` for the same reasons as the install of one chunk.
    """
    chunk, block_id = offer.chunk, offer.block_id
    check_offered(block_id, chunk, offer.data)
    recorded = block.recorded.get(chunk.offset)
    check_fits(block_id, block.end_bytes, recorded, chunk)
    blockfile.check_reached(block.path, max(block.size_bytes, 0), chunk.offset)
    old = b""
    if first:
        read = partial(blockfile.read_past_cache, block.path, chunk.offset, chunk.length_bytes)
        with suppress(OSError):  # unreadable bytes cannot be restored
            old = blockfile.read_agreed(read, first, offer.seen)
    decides = None if offer.is_ordered else recorded
    check_replaceable(block_id, chunk, decides, held=old or first, proof=offer.proof)
    return old


def _prepared(
    replica: ReplicaHandle, blocks: Mapping[BlockId, _Block], taken: Sequence[_AcceptedChunk]
) -> list[InstallEntry]:
    """Copy the old bytes to quarantine, and return the journal entries of the batch.

    Raise SutureError if the copy fails or the volume has too little space.
    """
    grown_bytes = sum(block.size_bytes - max(block.had_bytes, 0) for block in blocks.values())
    kept = [(one.offer.block_id, one.offer.chunk.offset, one.old) for one in taken if one.old]
    needed_bytes = grown_bytes + sum(len(old) for _, _, old in kept)
    check_space(replica.volume, needed_bytes, reserve_bytes=replica.options.reserve_bytes)
    name, places = "", list[int]()
    if kept:
        name, places = quarantine.quarantine_ranges(
            replica.volume.layout,
            replica.container_id,
            kept,
            at_ms=replica.options.now_ms(),
            why=REPAIRED,
        )
    starts = iter(places)
    return [
        InstallEntry(
            block_id=one.offer.block_id,
            chunk=one.offer.chunk,
            data_checksum=long_crc32c()(one.offer.data),
            old_length_bytes=one.before_bytes,
            quarantine=name if one.old else "",
            pending=False,
            kept_start=next(starts) if one.old else 0,
            kept_bytes=len(one.old),
            proof=one.offer.proof,
        )
        for one in taken
    ]
