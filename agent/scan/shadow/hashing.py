"""Shadow hashing: after an upgrade, the checksums of one in a hundred reads are computed twice.

A new version that accepts wrong bytes, or rejects correct ones, would change trees and start
repairs across a cluster before an operator notices. Therefore, for some hours, other code in
another process computes the checksums of a sample of the reads again. If the two results differ,
the result of the scan is held back, and sampling continues until the agent is restarted.
"""

import random
import threading
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from agent.scan.shadow.reference_checksums import ReferenceChecksums, ReferenceUnavailable
from merkle.blockrow import decode_block
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.ports import BlockFileReader, Content, ReplicaReader
from scanner.scan_outcome import ScanOutcome
from suture.runtime.clock import Clock
from suture.wire.v1 import datanode_pb2

SHADOW_S: Final = 4 * 3600.0  # duration after an upgrade
SHARE: Final = 0.01  # share of the reads
TIME_SHARE_MAX: Final = 0.05  # maximum share of a scan's time
DIFFERENCES_KEPT: Final = 10

log = structlog.get_logger()

Sums = Callable[[ChecksumType, int, bytes], bytes]
Place = tuple[BlockId, int]


class OpenReader(ReplicaReader, Protocol):
    """A replica that is open for reading by a scan."""

    def settled(self, outcome: ScanOutcome, spend: Callable[[int], bool], /) -> ScanOutcome:
        """Return the final outcome after the scan has read all blocks.

        `spend` accounts for a further read, and returns whether the scan may continue. Raise
        SutureError if a further read fails.
        """
        ...

    def close(self) -> None:
        """Release the resources of the reader."""
        ...


class ShadowHashing:
    """Selects the reads whose checksums are computed twice, and counts them.

    All scanning threads share one object.
    """

    def __init__(
        self,
        upgraded_at_ms: Callable[[], int],
        clock: Clock,
        *,
        sums: Sums | None = None,
        share: float = SHARE,
        on_difference: Callable[[], None] = lambda: None,
    ) -> None:
        """Store the parameters. The second process starts with the first selected read.

        `upgraded_at_ms` returns when this version first ran on this host, or 0 if no other version
        ran before. `sums` computes the second checksums. The default is
        `agent.scan.shadow.reference_checksums`.
        """
        self._upgraded_at_ms = upgraded_at_ms
        self._clock = clock
        self._hasher = ReferenceChecksums()
        self._sums = sums or self._hasher.sums
        self._share = share
        self._on_difference = on_difference
        self._lock = threading.Lock()
        self._chance = random.Random()  # noqa: S311 - selects reads, no secret
        self._is_available = True
        self.hashed_count = 0
        self.difference_count = 0

    def is_active(self) -> bool:
        """Return whether the checksums of a sample of the reads are computed twice now."""
        if not self._is_available:
            return False
        since_ms = self._upgraded_at_ms()
        age_ms = self._clock.now_ms() - since_ms
        return bool(self.difference_count) or (since_ms > 0 and 0 <= age_ms < SHADOW_S * 1000)

    def status(self) -> datanode_pb2.ShadowHashing:
        """Return whether shadow hashing is active, and the numbers of its comparisons.

        These are the numbers of compared and of differing chunks.
        """
        return datanode_pb2.ShadowHashing(
            running=self.is_active(),
            compared_count=self.hashed_count,
            differing_count=self.difference_count,
        )

    def watch(self, reader: OpenReader) -> "ShadowedReader":
        """Return a reader that computes the checksums of a sample of its reads twice."""
        return ShadowedReader(self, reader, self._clock)

    def draw(self) -> bool:
        """Return True, at random, if the checksums of this read are to be computed twice."""
        with self._lock:
            return self._is_available and self._chance.random() < self._share

    def fits(self, chunk: ChunkInfo, data: bytes) -> bool | None:
        """Return whether the second checksums of `data` match the row of the chunk.

        Return None if the second process fails.
        """
        try:
            sums = self._sums(chunk.checksum_type, chunk.bytes_per_checksum, data)
        except ReferenceUnavailable as error:
            self._is_available = False  # scans continue without shadow hashing
            log.warning("shadow_hash_unavailable", error=str(error))
            return None
        with self._lock:
            self.hashed_count += 1
        return len(data) == chunk.length_bytes and sums == chunk.window_checksums

    def differed(self, container_id: ContainerId, places: list[str]) -> None:
        """Count and log a scan whose findings contradict the second checksums.

        `places` describes the chunks.
        """
        with self._lock:
            self.difference_count += 1
        self._on_difference()
        log.error("shadow_hash_mismatched", container_id=container_id, places=places)

    def close(self) -> None:
        """Stop the process that computes the second checksums."""
        self._hasher.close()


class ShadowedReader:
    """A replica reader that computes the checksums of a sample of its reads twice.

    Implements `scanner.ports.ReplicaReader`.
    """

    def __init__(self, shadow: ShadowHashing, reader: OpenReader, clock: Clock) -> None:
        self._shadow = shadow
        self._reader = reader
        self._clock = clock
        self._begun_at_s = clock.monotonic_s()
        self._spent_s = 0.0
        self._fits: dict[Place, bool] = {}  # whether each chunk that was hashed twice matches
        self.blocks = reader.blocks
        self.row = reader.row
        self.tombstones = reader.tombstones
        self.former_bytes = reader.former_bytes
        self.structure = reader.structure
        self.is_current = reader.is_current

    def difference(self, outcome: ScanOutcome) -> str:
        """Return a text about the first chunk whose second checksums contradict the scan.

        Return "" if there is no contradiction. It is a contradiction if the second checksums match
        for a chunk with a finding, or do not match for a chunk without a finding. The second case
        is ignored if the scan stopped early or the replica changed, because such a scan commits no
        tree. Nothing is compared if the list of findings is incomplete.
        """
        found = {(one.block_id, one.offset) for one in outcome.findings if one.offset >= 0}
        if outcome.finding_count > len(outcome.findings):
            return ""  # the list of findings is incomplete

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

    def shadow_check(self, block_id: BlockId, offset: int, view: memoryview) -> None:
        """If this read is selected, compute the checksums of its chunks again."""
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
        except DamagedData:
            return []
        return [
            one
            for one in block.chunks
            if start <= one.offset and one.end <= end and one.checksum_type is not ChecksumType.NONE
        ]

    # operations that the scan calls

    @property
    def container_id(self) -> ContainerId:
        """Id of the container of this replica."""
        return self._reader.container_id

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        """Open the file of a block. The checksums of a sample of its reads are computed twice."""
        return _ShadowedBlock(self, self._reader.open_block(block_id), block_id)

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        """Read a small block. If the read is selected, compute its checksums twice."""
        view = self._reader.read_whole(block_id, length_bytes)
        self.shadow_check(block_id, 0, view)
        return view


class _ShadowedBlock:
    """An open block file. The checksums of a sample of its reads are computed twice.

    Implements `scanner.ports.BlockFileReader`.
    """

    def __init__(self, shadowed: ShadowedReader, file: BlockFileReader, block_id: BlockId) -> None:
        self._shadowed = shadowed
        self._file = file
        self._block_id = block_id

    @property
    def size_bytes(self) -> int:
        """Current length of the file in bytes."""
        return self._file.size_bytes

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read into a reused buffer. If the read is selected, compute its checksums twice."""
        view = self._file.read(offset, length_bytes)
        self._shadowed.shadow_check(self._block_id, offset, view)
        return view

    def reread_past_cache(self, offset: int, length_bytes: int) -> Content:
        """Read from the disk again, past the page cache.

        The checksums of such reads are computed once.
        """
        return self._file.reread_past_cache(offset, length_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
