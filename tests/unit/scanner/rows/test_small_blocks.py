"""Small blocks are scanned in columns: same tree, same findings, as one by one."""

import errno
from dataclasses import replace

import pytest

from merkle.blockrow import ROWS_PER_BATCH, decode_block, encode_block
from merkle.checksum import Algorithm
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo
from scanner.chunk_verdict import WITNESSES, Witnesses
from scanner.finding import DamageFault, Verdict
from scanner.replica_scan import READ_BYTES_MAX, scan_replica
from scanner.rows.small_blocks import FIRST_SUM_END, SUMS_START, SimpleRun, runs, runs_and_alike
from scanner.rows.uniform_chunks import UniformChunks
from tests.support.storage.replica_reader import (
    WINDOW_BYTES,
    AlteredReader,
    MemoryReader,
    MemoryReplica,
    chunk_of,
    failing,
    flipping,
    noise,
    scan,
)


@pytest.fixture
def mixed() -> MemoryReplica:
    """Return blocks of every kind among simple ones."""
    result = MemoryReplica()
    for block_id in range(1, 40):
        result.put(block_id, noise(100 * block_id, block_id))
    result.put(7, noise(5_000, 7), noise(5_000, 8))
    result.put(8)
    del result.files[8]
    result.put(9, noise(5_000, 9), checksum_type=ChecksumType.SHA256)
    result.put(20, noise(5_000, 9), checksum_type=ChecksumType.NONE)
    result.put(21, noise(WINDOW_BYTES, 21))
    result.put(39, noise(30 * WINDOW_BYTES, 22))
    return result


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_mixed_replica_has_the_tree_of_its_metadata(
    mixed: MemoryReplica, algorithm: Algorithm
) -> None:
    """Simple blocks in columns and others one by one make one tree in order."""
    mixed.buried[BlockId(12)] = 0xDEAD
    mixed.buried[BlockId(100)] = 0xBEEF

    outcome = scan(MemoryReader(mixed), algorithm=algorithm)

    assert mixed.metadata_tree(algorithm) == outcome.tree
    assert () == outcome.findings
    assert (38, 38) == (outcome.block_count, outcome.chunk_count)


def test_chunks_that_are_alike_come_as_one_if_they_are_sought() -> None:
    """Alike chunks fill at most half of one read. A call for rows returns them one by one."""
    replica = MemoryReplica()
    replica.put(1, noise(WINDOW_BYTES, 1), noise(WINDOW_BYTES, 2))
    replica.put(2, noise(2 * WINDOW_BYTES, 1), noise(WINDOW_BYTES, 2))
    rows = list(MemoryReader(replica).blocks())
    read_bytes = 3 * WINDOW_BYTES

    sought = list(runs_and_alike(rows, Algorithm.XXH3_64, read_bytes))

    assert [True, False] == [isinstance(item, UniformChunks) for item in sought]
    assert rows[1] == sought[1]
    assert rows == list(runs(rows, Algorithm.XXH3_64, read_bytes))


def test_simple_blocks_come_as_runs(mixed: MemoryReplica) -> None:
    """Only what is not simple is given out one by one."""
    rows = sorted((BlockId(block_id), row) for block_id, row in mixed.rows.items())

    found = list(runs(iter(rows), Algorithm.XXH3_64, READ_BYTES_MAX))

    assert [7, 8, 9, 20] == [item[0] for item in found if isinstance(item, tuple)]
    assert [6, 10, 19] == [len(item.rows) for item in found if isinstance(item, SimpleRun)]
    assert [39] == [
        item[0]
        for item in runs(rows, Algorithm.XXH3_64, 30 * WINDOW_BYTES - 1)
        if isinstance(item, tuple) and item[0] > 20
    ]


def test_columns_tell_what_each_row_does(mixed: MemoryReplica) -> None:
    """Lengths, windows, checksums and commits are those of the rows, of one window or of many."""
    blocks = [decode_block(BlockId(key), row) for key, row in sorted(mixed.rows.items())]
    known = {key: replace(blocks[key - 1], bcsid=Bcsid(1_000 + key)) for key in range(1, 40)}
    rows = [(BlockId(key), encode_block(block)) for key, block in known.items()]

    found = runs(rows, Algorithm.XXH3_64, READ_BYTES_MAX)

    for run in (item for item in found if isinstance(item, SimpleRun)):
        for index, (block_id, row) in enumerate(zip(run.block_ids.tolist(), run.rows, strict=True)):
            block = known[block_id]
            (chunk,) = block.chunks
            sums = chunk.window_checksums
            assert encode_block(block) == row
            assert block.bcsid == run.bcsids[index]
            assert chunk.length_bytes == run.lengths_bytes[index]
            assert chunk.bytes_per_checksum == run.window_bytes[index]
            assert int.from_bytes(sums[:4]) == run.first_sums[index]
            assert sums == row[SUMS_START : run.sums_ends[index]]
            assert (len(sums) == 4) == (run.sums_ends[index] == FIRST_SUM_END)


def test_blocks_of_different_polynomials_share_no_run() -> None:
    """A checksum of one polynomial cannot verify blocks of the other."""
    types = [ChecksumType.CRC32, ChecksumType.CRC32, ChecksumType.CRC32C, ChecksumType.CRC32]
    replica = MemoryReplica()
    for number, checksum_type in enumerate(types, 1):
        replica.put(number, noise(100 * number, number), checksum_type=checksum_type)
    rows = [(BlockId(key), row) for key, row in sorted(replica.rows.items())]

    found = list(runs(rows, Algorithm.XXH3_64, READ_BYTES_MAX))

    assert [(types[0], [1, 2]), (types[2], [3]), (types[3], [4])] == [
        (item.checksum_type, item.block_ids.tolist())
        for item in found
        if isinstance(item, SimpleRun)
    ]
    outcome = scan(MemoryReader(replica))
    assert ((), replica.metadata_tree()) == (outcome.findings, outcome.tree)
    replica.flip(2, 7)
    assert [2] == [item.block_id for item in scan(MemoryReader(replica)).findings]


@pytest.mark.parametrize("checksum_type", [ChecksumType.CRC32, ChecksumType.CRC32C])
def test_a_healthy_small_block_takes_one_look(checksum_type: ChecksumType) -> None:
    """Its file is read whole, and nothing is opened or asked a second time."""

    replica = MemoryReplica()
    for number in range(1, 4):
        replica.put(number, noise(100 * number, number), checksum_type=checksum_type)

    reader = MemoryReader(replica)

    assert replica.metadata_tree() == scan(reader).tree
    assert 3 == reader.open_count


@pytest.mark.parametrize(
    "chunk",
    [
        chunk_of(noise(100), offset=4_096),
        chunk_of(noise(100), checksum_type=ChecksumType.MD5),
        chunk_of(b""),
    ],
    ids=["behind a hole", "no CRC", "empty"],
)
def test_block_that_only_looks_simple_is_scanned_by_itself(chunk: ChunkInfo) -> None:
    """One chunk is not enough: it must begin at 0, have bytes, and have a CRC."""
    row = encode_block(BlockData(BlockId(1), Bcsid(1), (chunk,)))

    assert [(1, row)] == list(runs([(BlockId(1), row)], Algorithm.XXH3_64, READ_BYTES_MAX))


def test_a_damaged_row_makes_its_batch_slow_and_nothing_else(mixed: MemoryReplica) -> None:
    """Blocks beside a damaged row are scanned as ever."""
    row = mixed.rows[30]
    mixed.rows[30] = row[:40] + bytes([row[40] ^ 1]) + row[41:]

    outcome = scan(MemoryReader(mixed))

    assert [(DamageFault.BLOCK_ROW_DAMAGED, 30)] == [
        (f.fault, f.block_id) for f in outcome.findings
    ]
    assert 38 == outcome.block_count


@pytest.mark.parametrize("block_id", [1, 5, 21, 39])
def test_damage_to_a_simple_block_is_judged_as_ever(mixed: MemoryReplica, block_id: int) -> None:
    """The quick check only confirms. A failure is judged by the slow path, with evidence."""
    healthy = mixed.metadata_tree()
    mixed.flip(block_id, 50)

    outcome = scan(MemoryReader(mixed))

    assert [(Verdict.CORRUPT, DamageFault.CHUNK_CHECKSUM, block_id)] == [
        (f.verdict, f.fault, f.block_id) for f in outcome.findings
    ]
    assert [block_id] == outcome.tree.unhealthy_block_ids().tolist()
    assert len(healthy.block_ids) == len(outcome.tree.block_ids)


@pytest.mark.parametrize(
    ("cut", "fault"),
    [
        (-1, DamageFault.CHUNK_SHORT),
        (-(10**9), DamageFault.CHUNK_MISSING),
        (1, DamageFault.TRAILING_BYTES),
    ],
)
def test_a_file_of_the_wrong_length_is_no_quick_yes(
    mixed: MemoryReplica, cut: int, fault: DamageFault
) -> None:
    """Too short, empty or too long by one byte: found, also where the length is a whole page."""
    for block_id in (5, 21):
        data = mixed.files[block_id]
        mixed.files[block_id] = data + b"x" if cut > 0 else data[: max(len(data) + cut, 0)]

    outcome = scan(MemoryReader(mixed))

    assert [(fault, 5), (fault, 21)] == [(f.fault, f.block_id) for f in outcome.findings]


def test_a_bit_flipped_in_the_quick_read_is_told(mixed: MemoryReplica) -> None:
    """The first read is what is judged: a host that lied once is a finding, not a retry."""
    flipped: list[int] = []

    def once(data: bytes) -> bytes:
        if len(data) == 500 and not flipped:
            flipped.append(1)
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    outcome = scan(AlteredReader(mixed, once))

    assert [(Verdict.SUSPECT_HOST, 5)] == [(f.verdict, f.block_id) for f in outcome.findings]
    assert mixed.metadata_tree() == outcome.tree


def test_a_sector_that_fails_once_is_told(mixed: MemoryReplica) -> None:
    """An error in the quick read is the first read of the judgement."""
    outcome = scan(AlteredReader(mixed, failing(errno.EIO, times=1)))

    (finding,) = outcome.findings
    assert (Verdict.SUSPECT_HOST, 1) == (finding.verdict, finding.block_id)
    assert "EIO" in finding.evidence


def test_a_quick_check_that_lies_is_never_corruption(mixed: MemoryReplica) -> None:
    """If only the combined check fails, the host is in doubt and not the data."""
    witnesses = Witnesses(WITNESSES.primary, WITNESSES.second, lambda *_: False)

    outcome = scan(MemoryReader(mixed), witnesses=witnesses)

    assert not outcome.is_damaged
    assert {Verdict.SUSPECT_HOST} == {finding.verdict for finding in outcome.findings}
    assert "every window" in outcome.findings[0].evidence
    assert mixed.metadata_tree() == outcome.tree


def test_memory_that_flips_is_never_corruption(mixed: MemoryReplica) -> None:
    """Flips in the quick read are cleared like any other."""
    for seed in range(50):
        outcome = scan(AlteredReader(mixed, flipping(seed, 0.3)))
        assert not outcome.is_damaged
        assert mixed.metadata_tree() == outcome.tree


def test_a_stop_keeps_what_was_read() -> None:
    """A stop is noticed before each small block, and the tree ends there."""
    replica = MemoryReplica()
    for block_id in range(1, 21):
        replica.put(block_id, noise(100, block_id))
    calls = iter(range(100))

    outcome = scan(MemoryReader(replica), stop=lambda: next(calls) >= 8)

    assert "stopped" == outcome.stopped_because
    assert 8 == len(outcome.tree.block_ids) == outcome.block_count


def test_rows_of_several_batches_are_one_replica() -> None:
    """A batch ends anywhere; the tree does not show where."""
    replica = MemoryReplica()
    for block_id in range(1, ROWS_PER_BATCH + 10):
        replica.put(block_id, b"%d" % block_id)
    replica.put(ROWS_PER_BATCH, b"two", b"chunks")

    outcome = scan(MemoryReader(replica))

    assert replica.metadata_tree() == outcome.tree


def test_progress_and_pace_hear_of_every_byte(mixed: MemoryReplica) -> None:
    """A ceiling on bytes holds for small blocks too."""
    told: dict[str, int] = {"progress": 0, "pace": 0}

    def tell(name: str, length_bytes: int) -> None:
        told[name] += length_bytes

    outcome = scan_replica(
        MemoryReader(mixed),
        algorithm=Algorithm.XXH3_64,
        now_ms=lambda: 0,
        stop=lambda: False,
        progress=lambda length_bytes: tell("progress", length_bytes),
        pace=lambda length_bytes: tell("pace", length_bytes),
    )

    total = sum(map(len, mixed.files.values()))
    assert {"progress": total, "pace": total} == told
    assert total == outcome.bytes_read
