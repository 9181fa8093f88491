"""What a sample records of a checked chunk."""

from agent.scan.sampling.chunk_check import BAD_KEPT_MAX, ChunkCheck, record_check
from agent.services.service_protocols import SampleResult
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.chunk_verdict import ChunkJudgement
from scanner.finding import DamageFault, Verdict

CHUNK = ChunkInfo(8, 5, ChecksumType.CRC32C, 16_384, b"sums")


def recorded(result: SampleResult, check: ChunkCheck) -> SampleResult:
    """Record a check of one chunk."""
    record_check(result, check, ContainerId(1), BlockId(2), CHUNK, now_ms=3)
    return result


def test_undecided_chunk_is_read_but_not_bad() -> None:
    """No two reads of the chunk agreed."""
    result = recorded(SampleResult(), ChunkCheck(5, is_decided=False))

    assert (1, 5, 1, 0) == (
        *(result.read_count, result.bytes_read),
        *(result.undecided_count, result.bad_count),
    )


def test_bad_chunks_are_all_counted_and_the_first_are_kept() -> None:
    """A kept chunk has its place and the words of the judge."""
    words = Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, "read twice"
    bad = ChunkCheck(5, ChunkJudgement(*words, length_bytes=5, window_checksums=b"others"))
    result = SampleResult()

    for _ in range(BAD_KEPT_MAX + 1):
        recorded(result, bad)

    first = result.bad[0]
    assert (BAD_KEPT_MAX + 1, BAD_KEPT_MAX) == (result.bad_count, len(result.bad))
    assert (1, 2, 8, 5, 3) == (
        *(first.container_id, first.block_id, first.offset),
        *(first.length_bytes, first.found_at_ms),
    )
    assert (Verdict.CORRUPT, "read twice") == (first.verdict, first.evidence)
