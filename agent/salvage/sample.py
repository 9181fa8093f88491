"""Check of a random sample of chunks on volumes that no agent uses.

The module counts the chunks in all index rows, draws random numbers, and reads the rows again. It
reads the drawn chunks past the page cache. Every chunk with a checksum in a readable row has the
same probability to be drawn. A drawn chunk is checked as in a scan (`scanner.chunk_verdict`). A
chunk counts as damaged only after it was read twice, and after a second checksum library has
confirmed the mismatch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.salvage.offline_volumes import OfflineVolume, opened
from agent.scan.sampling.chunk_check import check_chunk, record_check
from agent.scan.sampling.samples import has_sums
from agent.services.service_protocols import SampleResult
from merkle.replica import BlockId, ChunkInfo, ContainerId
from scanner.sampling import SampleSize, drawn, sample_size
from suture.errors import Code, RefusedError
from suture.runtime.clock import SystemClock


@dataclass(frozen=True, slots=True)
class _Chunk:
    volume: OfflineVolume
    container_id: ContainerId
    index: int
    block_id: BlockId
    chunk: ChunkInfo


def run_sample(
    paths: Sequence[Path],
    *,
    confidence: float,
    fraction: float,
    seed: int,
    begin: Callable[[int], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[SampleSize, dict[str, SampleResult], dict[str, str]]:
    """Draw a random sample of chunks, read them, and return the results.

    The result has three parts: the size of the sample, the result of each volume by name, and the
    errors of unreadable volumes by path. `begin` is called with the number of drawn chunks.
    `progress` is called with the number of chunks read since its last call.

    Raise RefusedError if a path is not a volume, if a volume is in use, if the volumes belong to
    different clusters, or if there is no chunk to draw.
    """
    unreadable: dict[str, str] = {}
    with opened(paths, unreadable) as volumes:
        results = {volume.name: _counted(volume) for volume in volumes}
        chunk_count = sum(result.chunk_count for result in results.values())
        if not chunk_count:
            raise RefusedError(
                Code.INELIGIBLE, "cannot draw a sample: these volumes have no chunk with a checksum"
            )
        size = sample_size(chunk_count, confidence=confidence, fraction=fraction)
        begin(size.drawn_count)
        numbers = iter(drawn(size.chunk_count, drawn_count=size.drawn_count, seed=seed))
        wanted = next(numbers, -1)
        chunks = (one for volume in volumes for one in _chunks(volume) if has_sums(one.chunk))
        for number, chunk in enumerate(chunks):
            if number == wanted:
                _read(results[chunk.volume.name], chunk)
                progress(1)
                wanted = next(numbers, -1)
                if wanted < 0:
                    break
    return size, results, unreadable


def _counted(volume: OfflineVolume) -> SampleResult:
    """Count the chunks of a volume with and without checksums, and return a result with these
    counts.

    The result also lists the damaged rows.
    """
    result = SampleResult()
    for one in _chunks(volume):
        is_drawn_from = has_sums(one.chunk)
        result.chunk_count += is_drawn_from
        result.without_checksum_count += not is_drawn_from
    for row in volume.damaged_rows:
        result.note_unread(row.removeprefix(f"{volume.name}: "))
    return result


def _chunks(volume: OfflineVolume) -> Iterator[_Chunk]:
    """Yield every chunk of every row of a volume, always in the same order."""
    for container_id, index in sorted(volume.replicas().items()):
        for block in volume.blocks(container_id):
            for chunk in block.chunks:
                yield _Chunk(volume, container_id, index, block.block_id, chunk)


def _read(result: SampleResult, one: _Chunk) -> None:
    """Read one chunk, check it against its checksums, and add the outcome to `result`."""
    copy = one.volume.copy(one.container_id, one.block_id, one.index)
    if copy is None:  # the row's key is damaged: iteration finds it, a lookup does not
        row = f"container {one.container_id}: block {one.block_id} is not found by its key"
        if row not in result.unread:
            result.note_unread(row)
        result.undecided_count += 1
        return
    check, now_ms = check_chunk(copy.place, one.chunk), SystemClock().now_ms()
    record_check(result, check, one.container_id, one.block_id, one.chunk, now_ms=now_ms)
