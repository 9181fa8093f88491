"""Check of one chunk on its disk, with the rules of a scan (`scanner.chunk_verdict`)."""

from dataclasses import dataclass
from typing import Final

from agent.services.service_protocols import SampleResult
from agent.store.replica.packs import BlockBytes
from merkle.checksum import window_checksums
from merkle.replica import BlockId, ChunkInfo, ContainerId
from scanner.chunk_verdict import WITNESSES, ChunkJudgement, FirstRead, judge_chunk, read_failure
from scanner.finding import ScanFinding, Verdict

BAD_KEPT_MAX: Final = 1_000  # damaged chunks that a result lists; further ones are only counted


@dataclass(frozen=True, slots=True)
class ChunkCheck:
    """Result of the check of one chunk.

    `judgement` describes the damage, and is None unless the chunk is damaged. `is_decided` is False
    if repeated reads or the checksum libraries disagreed, or if a read failed for a transient
    reason.
    """

    bytes_read: int
    judgement: ChunkJudgement | None = None
    is_decided: bool = True


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """Reads the bytes of a block from its disk (`scanner.ports.BlockFileReader`)."""

    place: BlockBytes

    @property
    def size_bytes(self) -> int:
        """Size of the block on disk, in bytes."""
        return self.place.size_bytes()

    def read(self, offset: int, length_bytes: int) -> memoryview:
        """Read from the disk, past the page cache. A missing file counts as an empty file."""
        return memoryview(self.reread_past_cache(offset, length_bytes))

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        """Read from the disk, past the page cache. A missing file counts as an empty file."""
        try:
            return self.place.read_past_cache(offset, length_bytes)
        except FileNotFoundError:
            return b""

    def close(self) -> None:
        """Do nothing, because each read opens and closes the file."""


def check_chunk(place: BlockBytes, chunk: ChunkInfo) -> ChunkCheck:
    """Read one chunk and return whether it is damaged.

    If it does not match its row, read it again.
    """
    medium, bytes_read = PlacedChunk(place), 0
    try:
        data = medium.reread_past_cache(chunk.offset, chunk.length_bytes)
        sums = window_checksums(chunk.checksum_type, chunk.bytes_per_checksum, data)
        bytes_read = len(data)
        if bytes_read == chunk.length_bytes and sums == chunk.window_checksums:
            return ChunkCheck(bytes_read)
        first = FirstRead(bytes_read, sums)
    except OSError as error:
        first = FirstRead(0, b"", error)
    try:
        if first.error is not None and read_failure(first.error) is Verdict.TRANSIENT:
            raise first.error
        judgement = judge_chunk(medium, chunk, first, WITNESSES)
    except OSError:
        return ChunkCheck(bytes_read, is_decided=False)
    if judgement.verdict is Verdict.SUSPECT_HOST:  # if decided, the chunk is intact on the disk
        return ChunkCheck(bytes_read, is_decided=judgement.is_decided)
    return ChunkCheck(bytes_read, judgement)


def record_check(
    result: SampleResult,
    check: ChunkCheck,
    container_id: ContainerId,
    block_id: BlockId,
    chunk: ChunkInfo,
    *,
    now_ms: int,
) -> None:
    """Add the check of one chunk to the result of a sample."""
    result.read_count += 1
    result.bytes_read += check.bytes_read
    result.undecided_count += not check.is_decided
    judgement = check.judgement
    if judgement is None:
        return
    result.bad_count += 1
    if len(result.bad) < BAD_KEPT_MAX:
        result.bad.append(
            ScanFinding(
                container_id=container_id,
                verdict=judgement.verdict,
                fault=judgement.fault,
                block_id=block_id,
                offset=chunk.offset,
                length_bytes=chunk.length_bytes,
                found_at_ms=now_ms,
                evidence=judgement.evidence,
                forensic=judgement.forensic,
            )
        )
