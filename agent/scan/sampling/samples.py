"""Random samples of this agent's chunks, read from the disks at the rate of scans.

Each committed chunk with a checksum has the same probability. A chunk that disappears or is
rewritten between the count and the read is counted separately, not as part of the sample. If a
chunk is damaged, a scan of its replica is requested. The sample itself records and repairs no
damage.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from threading import BoundedSemaphore
from typing import Final

from agent.leases import ContainerLeases
from agent.scan.container_scan import ignore
from agent.scan.sampling.chunk_check import ChunkCheck, check_chunk, record_check
from agent.scan.throttle import ScanPace
from agent.services.service_protocols import SampleResult, SampleSpec, SampleStep
from agent.store.operations.reading import readable_blocks
from agent.store.replica_store import ReplicaStore
from merkle.blockrow import decode_block
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.sampling import drawn
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.clock import Clock

WORD_S: Final = 1.0  # time between two progress messages
LEASE_WAIT_S: Final = 30.0
GONE: Final = frozenset({Code.CONTAINER_NOT_FOUND, Code.NO_SUCH_BLOCK, Code.BLOCK_NOT_COMMITTED})


def has_sums(chunk: ChunkInfo) -> bool:
    """Return whether a chunk has checksums to verify."""
    return chunk.checksum_type is not ChecksumType.NONE


@dataclass(slots=True)
class _Paces:
    """The rate limits of reads on each volume, as for a scan for which a caller waits."""

    made: Callable[[str], ScanPace]
    is_over: Callable[[], bool]
    known: dict[str, ScanPace] = field(default_factory=dict)

    def of(self, volume_id: str) -> ScanPace:
        """Return the rate limit of one volume."""
        if volume_id not in self.known:
            self.known[volume_id] = self.made(volume_id)
            self.known[volume_id].begin(self.is_over)
        return self.known[volume_id]


@dataclass(eq=False)
class ChunkSampler:
    """Draws samples for waiting callers, one sample at a time.

    `pace` returns the rate limit for a volume id. `request_scan` requests a scan of a replica.
    """

    store: ReplicaStore
    leases: ContainerLeases
    clock: Clock
    _: KW_ONLY
    pace: Callable[[str], ScanPace]
    request_scan: Callable[[ContainerId], bool]
    is_stopping: Callable[[], bool]

    def __post_init__(self) -> None:
        self._place = BoundedSemaphore(1)

    def run(self, draw: SampleSpec, is_cancelled: Callable[[], bool]) -> Iterator[SampleStep]:
        """Check a random sample of chunks. Yield the progress, and at last the result.

        Raise UnavailableError(BUSY) if another sample is being checked, or if the agent stops.
        """
        if not self._place.acquire(blocking=False):
            raise UnavailableError(
                Code.BUSY,
                "cannot draw a sample: another sample is being drawn here",
                hint="try again later",
            )
        result = SampleResult()
        try:
            for _ in self._run(draw, result, lambda: self.is_stopping() or is_cancelled()):
                yield SampleStep(result.read_count)
        finally:
            self._place.release()
        yield SampleStep(result.read_count, result)  # the caller may start another one at once

    def _run(
        self, draw: SampleSpec, result: SampleResult, is_over: Callable[[], bool]
    ) -> Iterator[None]:
        """Fill `result` with the sample. Yield each time that the progress is to be reported."""
        paces = _Paces(self.pace, is_over)
        wanted = deque(drawn(draw.chunk_count, drawn_count=draw.drawn_count, seed=draw.seed))
        told_at_s = self.clock.monotonic_s()
        for container_id in sorted(self.store.replica_ids()):
            for _ in self._replica(container_id, wanted, result, paces):
                if is_over():
                    raise UnavailableError(
                        Code.BUSY, "the sample was stopped", hint="run the command again"
                    )
                now_s = self.clock.monotonic_s()
                if now_s - told_at_s >= WORD_S:
                    told_at_s = now_s
                    yield
        result.gone_count += len(wanted)

    def _replica(
        self, container_id: ContainerId, wanted: deque[int], result: SampleResult, paces: _Paces
    ) -> Iterator[None]:
        """Count the chunks of one replica, and check those in the sample. Yield after each step.

        `wanted` has the indexes of the chunks in the sample, counted over all replicas. The indexes
        of this replica are removed from it.
        """
        left_count = 0
        try:
            count = self._count(container_id, result)
            yield
            begin = result.chunk_count
            result.chunk_count += count
            numbers = []
            while wanted and wanted[0] < result.chunk_count:
                numbers.append(wanted.popleft() - begin)
            left_count = len(numbers)
            pace = paces.of(self.store.volume_id(container_id)) if numbers else ignore
            for block_id, chunk in self._drawn(container_id, numbers):
                self._read(container_id, block_id, chunk, result, pace)
                left_count -= 1
                yield
            result.gone_count += left_count
        except SutureError as error:
            if error.code in GONE:
                result.gone_count += left_count
                return
            result.undecided_count += left_count
            result.note_unread(f"container {container_id}: {error}")

    def _count(self, container_id: ContainerId, result: SampleResult) -> int:
        """Return the number of chunks with checksums.

        Add the numbers of chunks without checksums and of damaged rows to `result`.
        """
        count = 0
        for block_id, row in self.store.view(container_id).block_rows():
            try:
                chunks = decode_block(block_id, row).chunks
            except DamagedData:
                result.damaged_row_count += 1
                continue
            with_count = sum(has_sums(chunk) for chunk in chunks)
            result.without_checksum_count += len(chunks) - with_count
            count += with_count
        return count

    def _drawn(
        self, container_id: ContainerId, numbers: Sequence[int]
    ) -> Iterator[tuple[BlockId, ChunkInfo]]:
        """Yield the chunks of a replica that are in the sample, in the order of the count."""
        wanted = iter(numbers)
        number, at = next(wanted, -1), 0
        if number < 0:
            return
        for block in readable_blocks(self.store.view(container_id).block_rows()):
            for chunk in filter(has_sums, block.chunks):
                if at == number:
                    yield block.block_id, chunk
                    number = next(wanted, -1)
                    if number < 0:
                        return
                at += 1

    def _read(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        chunk: ChunkInfo,
        result: SampleResult,
        pace: Callable[[int], None],
    ) -> None:
        """Read one chunk and record its check in `result`.

        If the chunk seems damaged, or its check is undecided, repeat the check with the replica's
        lease.
        """
        try:
            spot = self._checked(container_id, block_id, chunk)
            if spot is not None and (spot.judgement is not None or not spot.is_decided):
                with self.leases.hold(container_id, LEASE_WAIT_S, writes_chunks=False):
                    spot = self._checked(container_id, block_id, chunk)
        except SutureError as error:
            spot = None if error.code in GONE else ChunkCheck(0, is_decided=False)
        if spot is None:
            result.gone_count += 1
            return
        pace(spot.bytes_read)
        now_ms = self.clock.now_ms()
        record_check(result, spot, container_id, block_id, chunk, now_ms=now_ms)
        if spot.judgement is not None:
            self.request_scan(container_id)  # if the queue is full, the background scan finds it

    def _checked(
        self, container_id: ContainerId, block_id: BlockId, chunk: ChunkInfo
    ) -> ChunkCheck | None:
        """Return the check of a chunk at its current location.

        Return None if the block no longer has the chunk. Raise SutureError if the replica or the
        block cannot be read.
        """
        readable = self.store.view(container_id).readable(block_id)
        if chunk not in readable.block.chunks:
            return None
        return check_chunk(readable.place, chunk)
