"""Which blocks have chunks that are alike, what is read of them in one go, and what it gives."""

import errno
from collections.abc import Callable

import pytest

from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from scanner import replica_scan
from scanner.finding import DamageFault, Verdict
from scanner.ports import BlockFileReader
from scanner.rows.small_blocks import SimpleRun, runs, runs_and_alike
from scanner.rows.uniform_chunks import UniformChunks
from scanner.scan_tree import ScanTreeBuilder
from tests.support.storage.replica_reader import (
    AlteredReader,
    MemoryReader,
    MemoryReplica,
    failing,
    flipping,
    noise,
    scan,
)

WINDOW_BYTES = 512
READ_BYTES = 8 * WINDOW_BYTES


def alike_among(*blocks: BlockData) -> list[bool]:
    """Return which blocks are given out as having chunks that are alike."""
    rows = [(block.block_id, encode_block(block)) for block in blocks]
    found = list(runs_and_alike(rows, Algorithm.XXH3_64, READ_BYTES))
    assert not any(isinstance(item, SimpleRun) for item in found)
    return [isinstance(item, UniformChunks) for item in found]


def block_of(number: int, *chunks: tuple[int, int, int, ChecksumType]) -> BlockData:
    """Return a block of chunks: offset, length, window, type."""
    made = tuple(
        ChunkInfo(offset, length, kind, window, window_checksums(kind, window, bytes(length)))
        for offset, length, window, kind in chunks
    )
    return BlockData(BlockId(number), Bcsid(1), made)


def test_only_what_is_alike_is_read_as_one() -> None:
    """Chunks are read one by one if there is a hole between them, if they differ in window or
    type, if a window is cut within the block, if they are too large, or if a checksum has more
    than four bytes.
    """
    c, z, w = ChecksumType.CRC32C, ChecksumType.CRC32, WINDOW_BYTES
    half = READ_BYTES // 2
    alike = [
        block_of(1, (0, w, w, c), (w, w, w, c)),
        block_of(2, (0, half, w, z), (half, 1, w, z)),
        block_of(3, (0, 3 * w, w, c), (3 * w, w, w, c), (4 * w, w + 5, w, c)),
        block_of(12, (0, w + 1, w + 1, c), (w + 1, 3, w + 1, c)),
    ]
    other = [
        block_of(4, (0, w, w, c), (w + 1, w, w, c)),
        block_of(5, (w, w, w, c), (2 * w, w, w, c)),
        block_of(6, (0, 2 * w, w, c), (2 * w, 2 * w, 2 * w, c)),
        block_of(7, (0, w, w, c), (w, w, w, z)),
        block_of(8, (0, w - 1, w, c), (w - 1, w, w, c)),
        block_of(9, (0, half + w, w, c), (half + w, w, w, c)),
        block_of(10, (0, w, w, ChecksumType.SHA256), (w, w, w, ChecksumType.SHA256)),
        BlockData(BlockId(11), Bcsid(1), ()),
        block_of(13, (0, w, w, c), (w, 0, w, c), (w, w, w, c)),
    ]

    assert [True] == alike_among(alike[0])
    assert [True] * 4 + [False] * 9 == alike_among(*alike, *other)
    assert [False] * 4 == [
        isinstance(item, UniformChunks)
        for item in runs(
            [(block.block_id, encode_block(block)) for block in alike],
            Algorithm.XXH3_64,
            READ_BYTES,
        )
    ]


def test_a_stretch_is_as_long_as_a_read_and_ends_with_a_chunk() -> None:
    """
    All chunks of the block, in order, each in one; with the sums of their windows.
    """
    lengths = [3, 3, 3, 1, 4, 4, 2]
    offsets = [sum(lengths[:n]) for n in range(len(lengths))]
    kind = ChecksumType.CRC32C
    block = block_of(
        1,
        *(
            (WINDOW_BYTES * at, WINDOW_BYTES * length, WINDOW_BYTES, kind)
            for at, length in zip(offsets, lengths, strict=True)
        ),
    )
    [found] = runs_and_alike([(block.block_id, encode_block(block))], Algorithm.XXH3_64, READ_BYTES)
    assert isinstance(found, UniformChunks)

    stretches = found.stretches(READ_BYTES)

    assert [(0, 2), (2, 5), (5, 7)] == [(one.first, one.last) for one in stretches]
    assert [0, 6, 14] == [one.chunk.offset // WINDOW_BYTES for one in stretches]
    assert b"".join(chunk.window_checksums for chunk in block.chunks) == b"".join(
        one.chunk.window_checksums for one in stretches
    )
    assert block.length_bytes == found.length_bytes == stretches[-1].chunk.end


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> MemoryReplica:
    """Return blocks of twenty and of three chunks, of which little is read in one go."""
    monkeypatch.setattr(replica_scan, "READ_BYTES_MAX", READ_BYTES)
    made = MemoryReplica()
    for block_id, count in ((1, 20), (2, 3)):
        pieces = [noise(WINDOW_BYTES, 100 * block_id + n) for n in range(count)]
        made.put(block_id, *pieces, bytes_per_checksum=WINDOW_BYTES)
    return made


def test_alike_chunks_are_read_together_and_counted_singly(replica: MemoryReplica) -> None:
    """The tree equals that of the rows, with all blocks and chunks."""
    lengths: list[int] = []

    def noted(data: bytes) -> bytes:
        lengths.append(len(data))
        return data

    outcome = scan(AlteredReader(replica, noted))

    assert replica.metadata_tree() == outcome.tree
    assert (2, 23) == (outcome.block_count, outcome.chunk_count)
    assert [READ_BYTES, READ_BYTES, READ_BYTES // 2, 3 * WINDOW_BYTES] == lengths
    assert () == outcome.findings


def test_bytes_behind_the_last_chunk_are_told(replica: MemoryReplica) -> None:
    """The finding has their offset and length."""
    replica.files[1] += b"???"

    [found] = scan(MemoryReader(replica)).findings

    assert (DamageFault.TRAILING_BYTES, 1, 20 * WINDOW_BYTES, 3) == (
        found.fault,
        found.block_id,
        found.offset,
        found.length_bytes,
    )


def test_the_beginning_of_a_block_grows_a_tree_of_its_own(replica: MemoryReplica) -> None:
    """The tree has the chunks before a stop and no more."""
    rows = [(BlockId(1), replica.rows[1])]
    [block] = runs_and_alike(rows, Algorithm.XXH3_64, READ_BYTES)
    assert isinstance(block, UniformChunks)
    growth = ScanTreeBuilder(Algorithm.XXH3_64)

    growth.alike(block, 5)

    whole = replica.metadata_tree()
    tree = growth.build()
    assert (1, 5) == (growth.block_count, growth.chunk_count)
    assert [1] == tree.block_ids.tolist()
    assert whole.chunk_checksums[:5].tolist() == tree.chunk_checksums.tolist()
    assert whole.chunk_spans[:5].tolist() == tree.chunk_spans.tolist()


def test_a_flip_in_memory_is_told_though_the_second_look_is_clean(replica: MemoryReplica) -> None:
    """
    The first read is the evidence: it is judged, and not read again as if nothing had been.
    """

    outcome = scan(AlteredReader(replica, flipping(5)))

    assert replica.metadata_tree() == outcome.tree
    assert {(Verdict.SUSPECT_HOST, DamageFault.CHUNK_CHECKSUM)} == {
        (found.verdict, found.fault) for found in outcome.findings
    }


def test_damage_in_a_later_read_leaves_the_chunks_before_it_whole(replica: MemoryReplica) -> None:
    """The earlier chunks were read and compared, so the tree has them, and the rest is scanned
    one by one.
    """
    replica.flip(1, 10 * WINDOW_BYTES)

    outcome = scan(MemoryReader(replica))

    [found] = outcome.findings
    assert (1, 10 * WINDOW_BYTES) == (found.block_id, found.offset)
    assert (23, 1) == (outcome.chunk_count, outcome.tree.unhealthy_count)
    assert replica.metadata_tree().chunk_offsets.tolist() == outcome.tree.chunk_offsets.tolist()


def test_a_read_that_fails_once_is_made_again_chunk_by_chunk(replica: MemoryReplica) -> None:
    """One bad sector must not affect its neighbours, and here there is none."""
    outcome = scan(AlteredReader(replica, failing(errno.EIO, times=1)))

    assert replica.metadata_tree() == outcome.tree
    assert () == outcome.findings


def test_a_host_that_is_short_of_something_ends_the_scan(replica: MemoryReplica) -> None:
    """The shortage says nothing about the chunks."""
    outcome = scan(AlteredReader(replica, failing(errno.EMFILE)))

    assert "TRANSIENT: EMFILE" == outcome.stopped_because
    assert () == outcome.findings


@pytest.mark.parametrize("times", [0, 1])
def test_every_file_is_opened_once_and_closed(replica: MemoryReplica, times: int) -> None:
    """Every file is opened once and closed, even if a read of it fails."""
    opened: list[BlockId] = []
    closed: list[BlockId] = []

    class Counting(AlteredReader):
        def open_block(self, block_id: BlockId) -> BlockFileReader:
            opened.append(block_id)
            block = super().open_block(block_id)
            close: Callable[[], None] = lambda: closed.append(block_id)  # noqa: E731
            block.close = close  # type: ignore[method-assign]
            return block

    scan(Counting(replica, failing(errno.EIO, times=times)))

    assert [1, 2] == opened == closed
