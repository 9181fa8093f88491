"""Shadow hashing: for some hours after an upgrade a hundredth of what is read is hashed twice.

    a scan's read ─┬─ the new version's hot path ─► its findings ─────────┐
                   └─ one in a hundred: another process, other code ─► ───┴─ the same? else held

A version that takes wrong bytes for right, or right ones for wrong, would change trees and start
repairs all over a cluster before anybody looks. Where the two differ, the scan's verdict is held
back, and all that follow are hashed in part until the agent is started again.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import structlog

from agent.rpc.v1 import datanode_pb2
from agent.runtime.clock import Clock
from agent.scan.shadow.former import FormerError, FormerHasher
from merkle.blockrow import decode_block
from merkle.damaged import Damaged
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.ports import BlockReader, ReplicaReader, Structure
from scanner.scan_outcome import ScanOutcome

SHADOW_S: Final = 4 * 3600.0  # after an upgrade
SHARE: Final = 0.01  # of reads
TIME_SHARE_MAX: Final = 0.05  # of a scan's time, where the other code is slow
DIFFERENCES_KEPT: Final = 10

log = structlog.get_logger()

Sums = Callable[[ChecksumType, int, bytes], bytes]
Place = tuple[BlockId, int]


class OpenReader(ReplicaReader, Protocol):
    """A replica that is being read."""

    def settled(self, outcome: ScanOutcome, spend: Callable[[int], bool], /) -> ScanOutcome:
        """Return what holds of the outcome of its scan, now that the walk is over. `spend` takes
        account of a read, and says whether to go on. Raise SutureError."""
        ...

    def close(self) -> None:
        """Give back what reading took."""
        ...


class ShadowHashing:
    """Decides what is hashed twice, and counts. Shared by all scanning threads."""

    def __init__(
        self,
        upgraded_at_ms: Callable[[], int],
        clock: Clock,
        *,
        sums: Sums | None = None,
        share: float = SHARE,
        on_difference: Callable[[], None] = lambda: None,
    ) -> None:
        """`upgraded_at_ms`: when this version began here; 0: there was none before. `sums` is the
        former code, by default that of `agent.scan.shadow.former`."""
        self._upgraded_at_ms = upgraded_at_ms
        self._clock = clock
        self._hasher = FormerHasher()
        self._sums = sums or self._hasher.sums
        self._share = share
        self._on_difference = on_difference
        self._lock = threading.Lock()
        self._chance = random.Random()  # noqa: S311 - which reads, and no secret
        self._is_available = True
        self.hashed_count = 0
        self.difference_count = 0

    def is_active(self) -> bool:
        """Whether scans are hashed in part now."""
        if not self._is_available:
            return False
        since_ms = self._upgraded_at_ms()
        age_ms = self._clock.now_ms() - since_ms
        return bool(self.difference_count) or (since_ms > 0 and 0 <= age_ms < SHADOW_S * 1000)

    def status(self) -> datanode_pb2.ShadowHashing:
        """Return whether it runs, and what came of it so far."""
        return datanode_pb2.ShadowHashing(
            running=self.is_active(),
            compared_count=self.hashed_count,
            differing_count=self.difference_count,
        )

    def watch(self, reader: OpenReader) -> "ShadowedReader":
        """Return a reader that has some of its reads hashed twice."""
        return ShadowedReader(self, reader, self._clock)

    def draw(self) -> bool:
        """Decide on one read."""
        with self._lock:
            return self._is_available and self._chance.random() < self._share

    def fits(self, chunk: ChunkInfo, data: bytes) -> bool | None:
        """Return whether the former code finds a chunk as its row says; None: it does not say."""
        try:
            sums = self._sums(chunk.checksum_type, chunk.bytes_per_checksum, data)
        except FormerError as error:
            self._is_available = False  # an agent without it scans as ever
            log.warning("shadow_hash_unavailable", error=str(error))
            return None
        with self._lock:
            self.hashed_count += 1
        return len(data) == chunk.length_bytes and sums == chunk.window_checksums

    def differed(self, container_id: ContainerId, places: list[str]) -> None:
        """Count a scan in which the two differ, and tell."""
        with self._lock:
            self.difference_count += 1
        self._on_difference()
        log.error("shadow_hash_differs", container_id=container_id, places=places)

    def close(self) -> None:
        """End the other process."""
        self._hasher.close()


class ShadowedReader:
    """A replica of which some reads are hashed twice (`scanner.ports.ReplicaReader`)."""

    def __init__(self, shadow: ShadowHashing, reader: OpenReader, clock: Clock) -> None:
        self._shadow = shadow
        self._reader = reader
        self._clock = clock
        self._begun_at_s = clock.monotonic_s()
        self._spent_s = 0.0
        self._fits: dict[Place, bool] = {}  # of each chunk that was hashed twice

    def difference(self, outcome: ScanOutcome) -> str:
        """Return where a scan came to something else than the former code, "" where nowhere.

        A chunk that the scan found something in is one that does not fit; reads that failed say
        nothing here. Nor does a chunk that does not fit, where the scan ended before it had judged
        all that it read, or passed over what was deleted meanwhile: no tree of it is committed.
        """
        found = {(one.block_id, one.offset) for one in outcome.findings if one.offset >= 0}
        if outcome.finding_count > len(outcome.findings):
            return ""  # not all that was found is known

        def is_judged() -> bool:
            return not outcome.stopped_because and self._reader.is_current()

        wrong = [
            f"block {block_id} at {offset}: {'it fits' if fits else 'it does not fit'}"
            for (block_id, offset), fits in sorted(self._fits.items())
            if fits == ((block_id, offset) in found) and (fits or is_judged())
        ]
        if not wrong:
            return ""
        self._shadow.differed(self._reader.container_id, wrong[:DIFFERENCES_KEPT])
        return f"by the former code, {wrong[0]}"

    def look(self, block_id: BlockId, offset: int, view: memoryview) -> None:
        """Have the chunks of a read hashed by the former code, now and then."""
        elapsed_s = self._clock.monotonic_s() - self._begun_at_s
        if not self._shadow.draw() or self._spent_s > TIME_SHARE_MAX * max(elapsed_s, 1.0):
            return
        begun_s = self._clock.monotonic_s()
        for chunk in self._chunks_within(block_id, offset, offset + len(view)):
            data = bytes(view[chunk.offset - offset : chunk.end - offset])
            fits = self._shadow.fits(chunk, data)
            if fits is not None:
                self._fits[block_id, chunk.offset] = fits
        self._spent_s += self._clock.monotonic_s() - begun_s

    def _chunks_within(self, block_id: BlockId, start: int, end: int) -> list[ChunkInfo]:
        row = self._reader.row(block_id)
        if row is None:
            return []
        try:
            block = decode_block(block_id, row)
        except Damaged:
            return []
        return [
            one
            for one in block.chunks
            if start <= one.offset and one.end <= end and one.checksum_type is not ChecksumType.NONE
        ]

    # what the scan asks

    @property
    def container_id(self) -> ContainerId:
        """Whose replica this is."""
        return self._reader.container_id

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        """Yield the metadata rows."""
        return self._reader.blocks()

    def row(self, block_id: BlockId) -> bytes | None:
        """Return a row."""
        return self._reader.row(block_id)

    def tombstones(self) -> Mapping[BlockId, int]:
        """Return the deleted blocks."""
        return self._reader.tombstones()

    def open_block(self, block_id: BlockId) -> BlockReader:
        """Open a block's file."""
        return _ShadowedBlock(self, self._reader.open_block(block_id), block_id)

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read a small block."""
        view = self._reader.read_whole(block_id, length_bytes)
        self.look(block_id, 0, view)
        return view

    def former_bytes(self, block_id: BlockId, offset: int) -> Iterable[bytes]:
        """Return what was at a place before."""
        return self._reader.former_bytes(block_id, offset)

    def structure(self) -> Structure:
        """List the replica's files."""
        return self._reader.structure()

    def is_current(self) -> bool:
        """Whether the replica is still the one whose scan began."""
        return self._reader.is_current()


class _ShadowedBlock:
    """An open block file of which some reads are hashed twice (`scanner.ports.BlockReader`)."""

    def __init__(self, shadowed: ShadowedReader, file: BlockReader, block_id: BlockId) -> None:
        self._shadowed = shadowed
        self._file = file
        self._block_id = block_id

    @property
    def size_bytes(self) -> int:
        """Length of the file now."""
        return self._file.size_bytes

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read into a reused buffer."""
        view = self._file.read(offset, length_bytes)
        self._shadowed.look(self._block_id, offset, view)
        return view

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Ask the medium again."""
        return self._file.reread_past_cache(offset, length_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
