"""A tree grows by chunks, by runs of blocks and by blocks of many chunks, and counts them."""

from merkle.checksum import Algorithm
from merkle.replica import BlockId
from scanner.rows.small_blocks import SimpleRun, runs
from scanner.scan_tree import ScanTreeBuilder
from tests.support.storage.replica_reader import MemoryReader, MemoryReplica, noise


def test_everything_that_is_added_is_counted_and_in_its_place() -> None:
    """
    A block chunk by chunk, then a part of a run that does not begin with its first block.
    """
    replica = MemoryReplica()
    several = replica.put(1, noise(100, 1), noise(200, 2), noise(300, 3))
    for block_id in (2, 3, 4):
        replica.put(block_id, noise(50, block_id))
    whole = replica.metadata_tree()
    rows = list(MemoryReader(replica).blocks())
    [run] = runs(rows[1:], Algorithm.XXH3_64, 1_000)
    assert isinstance(run, SimpleRun)
    growth = ScanTreeBuilder(Algorithm.XXH3_64)

    growth.begin(BlockId(1))
    growth.healthy(several.chunks[0])
    growth.healthy(*several.chunks[1:])
    counts = (growth.block_count, growth.chunk_count)
    growth.run(run, 1, 3)
    tree = growth.build()

    assert (1, 3) == counts
    assert (3, 5) == (growth.block_count, growth.chunk_count)
    assert [1, 3, 4] == tree.block_ids.tolist()
    checksums = whole.chunk_checksums.tolist()
    assert [*checksums[:3], *checksums[4:]] == tree.chunk_checksums.tolist()
