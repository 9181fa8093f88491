"""Reads of blocks, replicas and volumes.

A read of the index uses a short snapshot. Data is returned without verification.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from agent.store.index.columns import ReplicaColumns
from agent.store.index.facts import VolumeFacts
from agent.store.index.replica_history import (
    Changes,
    HistoryEntry,
    count_findings,
    newest,
    together,
)
from agent.store.operations.write_rules import known_block
from agent.store.replica.handle import ReplicaHandle, reports_failures
from agent.store.replica.lost_rows import blocks_without_row
from agent.store.replica.packs import BlockBytes, place_of
from agent.store.replica.trees import load_tree
from agent.store.volumes.volume import Volume, VolumeTotals
from merkle.blockrow import decode_block
from merkle.damaged_data import DamagedData
from merkle.replica import CHUNK_BYTES_MAX, Bcsid, BlockData, BlockId, ContainerId
from merkle.tree import Tree
from scanner.finding import ScanFinding
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.durable import error_of
from suture.runtime.memory import trim_heap

ROWS_PER_READ: Final = 4_096  # bounds the length of a read transaction
USED: Final = "used"
COUNT_COST_S: Final = 0.02  # a recount of all rows that takes less time is cheap
FEW_ROWS: Final = 1_000  # a recount of so few rows is cheap, even if a busy machine was slow
COUNTED_FOR: Final = 30.0
READ_BYTES_MAX: Final = CHUNK_BYTES_MAX
BLOCKS_MAX: Final = 10_000
KEPT_BLOCKS: Final = 8  # decoded rows: a client reads the chunks of a few blocks at a time
KEPT_ROW_BYTES_MAX: Final = 256 * 1024  # rows of 6,500 chunks: 2 MB when decoded

decode_again: Final = lru_cache(KEPT_BLOCKS)(decode_block)
"""Decodes the row of a block whose chunks are read one by one. An equal row is not decoded again,
because that takes longer than the read of a chunk."""


def readable_blocks(rows: Iterable[tuple[BlockId, bytes]]) -> Iterator[BlockData]:
    """Yield the blocks of intact rows. Skip damaged rows, because the scan reports them."""
    for block_id, row in rows:
        try:
            yield decode_block(block_id, row)
        except DamagedData:
            continue


class BlockLocation(NamedTuple):
    """A committed block, the location of its bytes, and the index and BCSID of its replica."""

    block: BlockData
    place: BlockBytes
    replica_index: int
    bcsid: Bcsid  # BCSID of the replica


class LocalReplicaView(ReplicaHandle):
    """Handle for reads of one replica. The caller needs no lease."""

    def block(self, block_id: BlockId) -> BlockData:
        """Return the record of a committed block.

        Raise `RefusedError(BLOCK_NOT_COMMITTED)` if the block has only uncommitted chunks,
        `RefusedError(NO_SUCH_BLOCK)` if it does not exist, and `UnavailableError` if its row is
        damaged.
        """
        return self.readable(block_id).block

    @reports_failures
    def blocks(self, *, start: int = 0, count: int = BLOCKS_MAX) -> list[BlockData]:
        """Return at most `count` committed blocks, from block id `start` on. Omit damaged rows."""
        return list(islice(readable_blocks(self.block_rows(start)), min(count, BLOCKS_MAX)))

    @reports_failures
    def readable(self, block_id: BlockId) -> BlockLocation:
        """Return a committed block and the location of its bytes.

        Raise the same errors as `block`.
        """
        container_id = self.container_id
        with self.volume.index.read() as rows:
            replica_index, bcsid = rows.standing(container_id)
            row = rows.block(container_id, block_id)
            if row is None:
                pending = rows.last_pending(container_id, block_id)
                raise RefusedError(
                    Code.NO_SUCH_BLOCK if pending is None else Code.BLOCK_NOT_COMMITTED,
                    f"no committed block {block_id} in container {container_id}",
                    container_id=container_id,
                    block_id=block_id,
                )
            place = place_of(rows, self.paths, container_id, block_id)
        try:
            decode = decode_again if len(row) <= KEPT_ROW_BYTES_MAX else decode_block
            block = decode(block_id, row)
        except DamagedData as damage:
            raise damaged_block(container_id, damage) from damage
        return BlockLocation(block, place, replica_index, bcsid)

    @reports_failures
    def read(
        self,
        block: BlockId | BlockLocation,
        offset: int,
        length_bytes: int,
        *,
        past_cache: bool = False,
    ) -> bytes:
        """Return bytes of a block, without verification.

        With `past_cache`, read from the disk instead of the page cache. If `block` is a block id,
        uncommitted bytes can be read, too.

        Raise `RefusedError(NO_SUCH_BLOCK)` if there is no such block, and
        `RefusedError(UNABLE_TO_FIND_CHUNK)` if the range exceeds the end of the block. Raise
        `UnavailableError` if the file is shorter than its record, and `VolumeFailed` for an I/O
        error.
        """
        return self._read(block, offset, length_bytes, past_cache=past_cache)

    def _read(
        self, block: BlockId | BlockLocation, offset: int, length_bytes: int, *, past_cache: bool
    ) -> bytes:
        if isinstance(block, BlockLocation):
            block_id, place, end = block.block.block_id, block.place, block.block.length_bytes
        else:
            block_id = block
            place, end = self._locate_block(block_id)
        if offset < 0 or not 0 < length_bytes <= READ_BYTES_MAX or offset + length_bytes > end:
            raise RefusedError(
                Code.UNABLE_TO_FIND_CHUNK,
                f"block {block_id} of container {self.container_id} ends at {end}: "
                f"no {length_bytes} bytes at {offset}",
            )
        try:
            read = place.read_past_cache if past_cache else place.read
            data = read(offset, length_bytes)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise error_of(error, place.name) from error
        if place.packed is not None:
            with self.volume.index.read() as rows:
                if rows.tombstone(self.container_id, block_id) is not None:
                    data = b""  # deleted: its pages of the pack may already be zeroed
                elif rows.packed(self.container_id, block_id) != place.packed:
                    return self._read(block_id, offset, length_bytes, past_cache=past_cache)
        if len(data) < length_bytes:
            raise UnavailableError(
                Code.UNAVAILABLE,
                f"{place.name}: {len(data)} of {length_bytes} bytes at {offset}",
                hint="read another replica; suture reconcile repairs this one",
            )
        return data

    def _locate_block(self, block_id: BlockId) -> tuple[BlockBytes, int]:
        """Return the location of a block's bytes, and the end of the block in bytes.

        The end includes uncommitted chunks.
        """
        with self.volume.index.read() as rows:
            rows.replica(self.container_id)
            place = place_of(rows, self.paths, self.container_id, block_id)
            try:
                return place, known_block(rows, self.container_id, block_id).end
            except DamagedData as damage:
                raise damaged_block(self.container_id, damage) from damage

    @reports_failures
    def tree(self) -> Tree:
        """Return the tree of the replica. Rebuild it if its file is absent, damaged or stale.

        Raise `RefusedError(UNCLOSED_CONTAINER_IO)` if the replica is not closed yet.
        """
        return load_tree(self)

    def block_rows(self, start: int = 0) -> Iterator[tuple[BlockId, bytes]]:
        """Yield (block id, raw row) by ascending id, from block `start` on.

        The rows are read in batches of short transactions. A block that is deleted in the meantime
        may be missing.
        """
        while True:
            with self.volume.index.read() as rows:
                batch = list(islice(rows.blocks(self.container_id, start), ROWS_PER_READ))
            yield from batch
            if len(batch) < ROWS_PER_READ:
                return
            start = batch[-1][0] + 1

    def block_row(self, block_id: BlockId) -> bytes | None:
        """Return the raw row of a block, or None if there is no row."""
        with self.volume.index.read() as rows:
            return rows.block(self.container_id, block_id)

    def blocks_without_row(self) -> Mapping[BlockId, int]:
        """Return the blocks that have data on the disk but no intact row.

        Each block is returned with the size of its data in bytes.
        """
        with self.volume.index.read() as rows:
            return blocks_without_row(rows, self.paths, self.container_id)

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the checksums in the tombstones of deleted blocks, by block id."""
        with self.volume.index.read() as rows:
            return rows.tombstones(self.container_id)

    def history(self) -> list[HistoryEntry]:
        """Return the replica's history entries with their reasons, oldest first."""
        with self.volume.index.read() as rows:
            return list(rows.history(self.container_id))


def damaged_block(container_id: ContainerId, damage: DamagedData) -> UnavailableError:
    """Return the error for a read of a block whose row is damaged.

    Its hint is to read another replica.
    """
    return UnavailableError(
        Code.UNAVAILABLE,
        f"container {container_id}: {damage}",
        hint="read another replica; suture reconcile repairs this one",
    )


def findings_of(
    volumes: Iterable[Volume], places: Mapping[ContainerId, Volume], *, start: int, count: int
) -> list[ScanFinding]:
    """Return at most `count` unresolved findings of replicas on these volumes.

    The findings are in ascending order of container ids, from container `start` on. `places` has
    the volume that serves each container. Findings about other copies of a replica are omitted.
    """
    found: list[ScanFinding] = []
    for volume in volumes:
        with volume.index.read() as rows:
            here = (
                finding
                for owner in rows.containers_with_findings(start)
                if places.get(owner) is volume
                for finding in rows.findings(owner)
            )
            found += islice(here, count)
    return sorted(found, key=lambda finding: finding.container_id)[:count]


def changes_of(volumes: Iterable[Volume], *, since_ms: int, count: int) -> Changes:
    """Return the newest `count` changes of all replicas since `since_ms`.

    The result also has the paths of the volumes whose index cannot be read.
    """

    def read(volume: Volume) -> Changes:
        try:
            with volume.index.read() as rows:
                return newest(rows.history_rows(), since_ms=since_ms, count=count)
        except SutureError:
            return Changes((), unread_paths=(str(volume.layout.volume),))

    return together(map(read, volumes), count=count)


def finding_counts(volume: Volume, *, since_ms: int) -> tuple[int, int]:
    """Return the numbers of findings that appeared and that disappeared on a volume.

    Only changes since `since_ms` are counted.
    """
    with volume.index.read() as rows:
        return count_findings(rows.history_rows(), since_ms=since_ms)


def facts_or_failure(volume: Volume, *, sharing: int) -> VolumeFacts:
    """Return the facts of a volume.

    If its disk returns an error, return the facts of a failed volume. `sharing` is the number of
    volumes on the same file system. Each of them reports an equal share of the space, so that a sum
    over the volumes counts the space once.
    """
    try:
        facts = volume_facts(volume)
        return replace(
            facts,
            capacity_bytes=facts.capacity_bytes // sharing,
            available_bytes=facts.available_bytes // sharing,
        )
    except SutureError as error:
        return failed_facts(volume, str(error))


def failed_facts(volume: Volume, reason: str) -> VolumeFacts:
    """Return the facts of a volume that failed after it was opened, with the reason."""
    return VolumeFacts(
        volume_id=volume.volume_id,
        path=volume.layout.volume,
        capacity_bytes=0,
        available_bytes=0,
        used_bytes=0,
        container_count=0,
        failed=True,
        error=reason,
    )


def volume_facts(volume: Volume) -> VolumeFacts:
    """Return the facts of an open volume. Raise SutureError if its disk returns an error."""
    used_bytes, container_count = _used(volume)
    head = volume.verification.heads.now
    return VolumeFacts(
        volume_id=volume.volume_id,
        path=volume.layout.volume,
        capacity_bytes=volume.capacity_bytes(),
        available_bytes=volume.available_bytes(),
        used_bytes=used_bytes,
        container_count=container_count,
        log_count=head.count,
        log_checksum=head.checksum,
    )


def served_columns(volume: Volume, places: Mapping[ContainerId, Volume]) -> ReplicaColumns:
    """Return the replicas that a volume serves, as columns.

    `places` has the volume that serves each container.
    """
    with volume.index.read() as rows:
        columns, _ = rows.columns()
    is_here = (places.get(number) is volume for number in columns.container_ids.tolist())
    return columns.where(np.fromiter(is_here, np.bool_, len(columns)))


def index_version(volume: Volume) -> int:
    """Return the version of the volume's index, which increases with every change."""
    with volume.index.read() as rows:
        return rows.version()


def _used(volume: Volume) -> tuple[int, int]:
    """Return the total size in bytes and the number of the replicas of a volume.

    This reads all rows. Therefore, the result is cached until the index changes. If the last count
    took long, its result is used even after a change, for COUNTED_FOR times the duration of the
    count.
    """
    began_s = time.monotonic()
    kept = volume.counted.get(USED)
    with volume.index.read() as rows:
        version = rows.version()
        if kept is not None:
            is_costly = kept.cost_s > COUNT_COST_S and kept.container_count > FEW_ROWS
            if kept.version == version or (
                is_costly and began_s - kept.at_s < COUNTED_FOR * kept.cost_s
            ):
                return kept.used_bytes, kept.container_count
        columns, _ = rows.columns()
    if len(columns) > FEW_ROWS:  # else pages that transfers use would be returned for nothing
        trim_heap()
    used_bytes, now_s = int(columns.used_bytes.sum()), time.monotonic()
    volume.counted[USED] = VolumeTotals(version, now_s, now_s - began_s, used_bytes, len(columns))
    return used_bytes, len(columns)
