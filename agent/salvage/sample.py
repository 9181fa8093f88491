"""Random sample of chunks on volumes that no agent uses, read from their media and judged.

It counts the chunks in all rows, draws numbers, goes through the rows again, and reads the drawn
chunks past the page cache. Every chunk with a checksum, of every readable row, is equally likely. A
drawn chunk is judged as in a scan (`scanner.chunk_verdict`). Before it is called bad, it is read
again and hashed by two libraries.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.salvage.offline_volumes import OfflineVolume, opened
from agent.scan.sampling.chunk_check import check_chunk
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.sampling import SampleSize, drawn, sample_size
from suture.errors import Code, RefusedError

BAD_KEPT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class BadChunk:
    """A drawn chunk that does not have the bytes that were written."""

    volume: str
    container_id: ContainerId
    block_id: BlockId
    offset: int
    verdict: str
    fault: str
    evidence: str


@dataclass(slots=True)
class OfflineSample:
    """Result of a sample. `undecided_count` counts chunks without two equal reads, and chunks read
    while this host was short of a resource."""

    size: SampleSize
    seed: int
    read_count: int = 0
    bytes_read: int = 0
    bad_count: int = 0
    undecided_count: int = 0
    without_checksum_count: int = 0
    bad: list[BadChunk] = field(default_factory=list)
    damaged_rows: list[str] = field(default_factory=list)
    unreadable_volumes: dict[str, str] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Return whether every drawn chunk is intact and no row or volume was excluded from the
        draw."""
        left_out = self.damaged_rows or self.unreadable_volumes
        return not (self.bad_count or self.undecided_count or left_out)


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
    progress: Callable[[], None] = lambda: None,
) -> OfflineSample:
    """Draw and read a sample. `begin` gets the number of drawn chunks; `progress` is called for
    each.

    Raise RefusedError if a path is not a volume, if a volume is in use or of another cluster, or if
    there is no chunk to draw.
    """
    unreadable: dict[str, str] = {}
    with opened(paths, unreadable) as volumes:
        all_count = sum(1 for _ in _all_chunks(volumes))
        damaged_rows = [row for volume in volumes for row in volume.damaged_rows]
        chunk_count = sum(1 for _ in _chunks(volumes))
        if not chunk_count:
            raise RefusedError(
                Code.INELIGIBLE, "cannot draw a sample: these volumes have no chunk with a checksum"
            )
        size = sample_size(chunk_count, confidence=confidence, fraction=fraction)
        sample = OfflineSample(size, seed, damaged_rows=damaged_rows, unreadable_volumes=unreadable)
        sample.without_checksum_count = all_count - chunk_count
        begin(size.drawn_count)
        numbers = iter(drawn(size.chunk_count, drawn_count=size.drawn_count, seed=seed))
        wanted = next(numbers, -1)
        for number, chunk in enumerate(_chunks(volumes)):
            if number == wanted:
                _read(sample, chunk)
                progress()
                wanted = next(numbers, -1)
                if wanted < 0:
                    break
    return sample


def _all_chunks(volumes: Sequence[OfflineVolume]) -> Iterator[_Chunk]:
    """Yield every chunk of every row, always in the same order."""
    for volume in volumes:
        for container_id, index in sorted(volume.replicas().items()):
            for block in volume.blocks(container_id):
                for chunk in block.chunks:
                    yield _Chunk(volume, container_id, index, block.block_id, chunk)


def _chunks(volumes: Sequence[OfflineVolume]) -> Iterator[_Chunk]:
    return (one for one in _all_chunks(volumes) if one.chunk.checksum_type is not ChecksumType.NONE)


def _read(sample: OfflineSample, one: _Chunk) -> None:
    """Read one chunk and judge it."""
    copy = one.volume.copy(one.container_id, one.block_id, one.index)
    if copy is None:  # its key is damaged, so that only iteration finds the row, not a search
        where = f"{one.volume.name}: container {one.container_id}"
        row = f"{where}: block {one.block_id} is not found by its key"
        if row not in sample.damaged_rows:
            sample.damaged_rows.append(row)
        sample.undecided_count += 1
        return
    spot = check_chunk(copy.place, one.chunk)
    sample.read_count += 1
    sample.bytes_read += spot.bytes_read
    sample.undecided_count += not spot.is_decided
    judgement = spot.judgement
    if judgement is None:
        return
    sample.bad_count += 1
    if len(sample.bad) < BAD_KEPT_MAX:
        place = one.volume.name, one.container_id, one.block_id, one.chunk.offset
        sample.bad.append(
            BadChunk(*place, judgement.verdict.value, judgement.fault.value, judgement.evidence)
        )
