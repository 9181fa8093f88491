"""A scan that was cut off goes on at its last mark, and judges as one that was not."""

from itertools import count

import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockId
from scanner.replica_scan import scan_replica
from scanner.resume import DOUBTS_MAX, MARK_BYTES_MIN, ScanMark, all_but
from scanner.scan_outcome import ScanOutcome
from tests.support.storage.replica_reader import NOW_MS, MemoryReader, MemoryReplica, noise

CHUNK_BYTES = MARK_BYTES_MIN
BLOCKS, CHUNKS = 4, 5


@pytest.fixture
def replica() -> MemoryReplica:
    """Return four blocks of five chunks, each chunk one mark long; a read takes four."""
    result = MemoryReplica()
    data = noise(CHUNK_BYTES)
    for block_id in range(1, BLOCKS + 1):
        result.put(block_id, *[data] * CHUNKS, bytes_per_checksum=64 * 1024)
    return result


def cut_off(replica: MemoryReplica, reads: int, resume: ScanMark | None = None) -> list[ScanMark]:
    """Scan until it was asked `reads` times whether to stop; return its marks."""
    marks: list[ScanMark] = []
    asked = count()
    scan_replica(
        MemoryReader(replica),
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: NOW_MS,
        stop=lambda: False if reads < 0 else next(asked) >= reads,
        progress=lambda _: None,
        pace=lambda _: None,
        resume=resume,
        mark=marks.append,
    )
    return marks


def resumed(replica: MemoryReplica, mark: ScanMark | None) -> tuple[ScanOutcome, MemoryReader]:
    """Scan from `mark` to the end."""
    reader = MemoryReader(replica)
    outcome = scan_replica(
        reader,
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: NOW_MS,
        stop=lambda: False,
        progress=lambda _: None,
        pace=lambda _: None,
        resume=mark,
    )
    return outcome, reader


@pytest.mark.parametrize("reads", range(3, 12))
def test_resumed_scan_gives_the_tree_and_findings_of_a_whole_scan(
    replica: MemoryReplica, reads: int
) -> None:
    """This holds wherever the scan was cut off, for damage before and behind the mark."""
    replica.flip(1, 5)
    replica.flip(3, 2 * CHUNK_BYTES)
    del replica.files[2]
    replica.files[4] += b"more"
    whole, _ = resumed(replica, None)
    mark = cut_off(replica, reads)[-1]

    outcome, _ = resumed(replica, mark)

    assert whole.tree == outcome.tree
    assert whole.findings == outcome.findings


def test_clean_chunks_before_the_mark_are_not_read_again(replica: MemoryReplica) -> None:
    """Only chunks behind the mark are read."""
    mark = cut_off(replica, 8)[-1]

    read: list[int] = []
    outcome = scan_replica(
        MemoryReader(replica),
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: NOW_MS,
        stop=lambda: False,
        progress=read.append,
        pace=lambda _: None,
        resume=mark,
    )

    assert BLOCKS * CHUNKS * CHUNK_BYTES == mark.bytes_read + sum(read) == outcome.bytes_read


def test_marks_never_go_back(replica: MemoryReplica) -> None:
    """Reading again what is in doubt moves no mark to the place of the doubt."""
    replica.flip(1, 5)
    mark = cut_off(replica, 9)[-1]

    later = cut_off(replica, 10, resume=mark)

    assert later
    assert all((one.block_id, one.offset) > (mark.block_id, mark.offset) for one in later)


def test_a_replica_in_ruins_keeps_no_mark() -> None:
    """A mark is small: with more doubts than it may hold, none is offered."""
    replica = MemoryReplica()
    for block_id in range(1, DOUBTS_MAX + 3):
        replica.put(block_id, b"x" * 10)
        replica.flip(block_id, 0)
    replica.put(DOUBTS_MAX + 3, noise(2 * MARK_BYTES_MIN), bytes_per_checksum=64 * 1024)

    assert [] == cut_off(replica, -1)


def test_an_unread_block_is_never_covered() -> None:
    """The block of the mark is covered up to the mark only."""
    mark = ScanMark(BlockId(2), 10, frozenset(), 0)
    replica = MemoryReplica()
    first, second = replica.put(2, b"x" * 10, b"y" * 10).chunks

    assert mark.covers(BlockId(2), (first,))
    assert not mark.covers(BlockId(2), (first, second))
    assert not mark.covers(BlockId(3), (first,))


@pytest.mark.parametrize(
    ("places", "read_bytes"),
    [
        ([], []),
        ([(BlockId(2), CHUNK_BYTES, CHUNK_BYTES)], [CHUNK_BYTES]),
        ([(BlockId(2), CHUNK_BYTES - 1, 2)], [2 * CHUNK_BYTES]),
        ([(BlockId(2), 0, 1), (BlockId(2), 3 * CHUNK_BYTES, 1)], [CHUNK_BYTES, CHUNK_BYTES]),
        ([(BlockId(2), -1, -1)], [4 * CHUNK_BYTES, CHUNK_BYTES]),
        ([(BlockId(11), 0, 9_000)], [9_000]),
        ([(BlockId(2), 99 * CHUNK_BYTES, 1)], []),
    ],
    ids=["nothing", "a chunk", "across two", "two of a block", "a block", "a small one", "behind"],
)
def test_scan_of_some_places_reads_only_those(
    replica: MemoryReplica, places: list[tuple[BlockId, int, int]], read_bytes: list[int]
) -> None:
    """The places are read chunk by chunk, and the tree is that of all chunks."""
    for block_id in (10, 11, 12):
        replica.put(block_id, noise(9_000), bytes_per_checksum=1_024)
    whole, _ = resumed(replica, None)
    read: list[int] = []

    outcome = scan_replica(
        MemoryReader(replica),
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: NOW_MS,
        stop=lambda: False,
        progress=read.append,
        pace=lambda _: None,
        resume=all_but(places),
    )

    assert read_bytes == read
    assert (whole.tree, whole.findings) == (outcome.tree, outcome.findings)


def test_scan_of_some_places_sees_trailing_bytes_of_their_blocks(replica: MemoryReplica) -> None:
    """The file of a block with any doubtful chunk is checked."""
    replica.files[2] += b"more"

    outcome, _ = resumed(replica, all_but([(BlockId(2), 99 * CHUNK_BYTES, 4)]))
    unseen, _ = resumed(replica, all_but([(BlockId(3), 0, 1)]))

    assert (1, 0) == (outcome.finding_count, unseen.finding_count)
