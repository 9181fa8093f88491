"""The trees of a real cluster, before and after Ozone's own scan, against its rows."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from merkle.tree_building import TreeBuilder
from ozone.disk.blockrow import StoredBlock, decode_stored
from ozone.disk.messages import BLOCK_DATA
from ozone.disk.treefile import OzoneTree, decode_tree
from ozone.scrub.comparison import (
    Agreement,
    ChecksumDifferenceReason,
    Comparison,
    TreeComparisonBuilder,
)
from tests.support.ozone.ozone_volumes import chunk_message, crc32c_of, golden, lines

DAMAGED = {(0, 1), (0, 2)}  # datanode and container: what damage.json names


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of the real cluster."""
    return golden(tmp_path_factory.mktemp("golden"))


def blocks_of(replica: dict[str, Any]) -> Iterator[StoredBlock]:
    """Yield the blocks of a replica, as the table `block_data` has them."""
    container_id = ContainerId(replica["container"])
    for item in replica["blocks"]:
        yield decode_stored(container_id, BlockId(item["id"]), bytes.fromhex(item["proto"]), None)


def whole(blocks: list[StoredBlock]) -> Tree:
    """Return what a scan of undamaged blocks reads."""
    builder = TreeBuilder(Algorithm.CRC32C)
    for stored in blocks:
        builder.add_block(stored.block.block_id)
        for chunk in stored.block.chunks:
            builder.add_chunk(chunk.offset, chunk.length_bytes, chunk.window_checksums)
    return builder.build()


def compared(replica: dict[str, Any]) -> tuple[Comparison, OzoneTree]:
    """Compare a replica's tree with its rows, as if all its bytes were whole."""
    blocks = list(blocks_of(replica))
    ledger = TreeComparisonBuilder()
    for stored in blocks:
        ledger.add(stored)
    tree = decode_tree(bytes.fromhex(replica["tree"]), ContainerId(replica["container"]))
    return ledger.compare(tree, replica["dataChecksum"], whole(blocks)), tree


def test_every_root_of_a_whole_cluster_is_explained(tables: Path) -> None:
    """
    The tree of each of 16 replicas that closed is the fold of its rows, bit for bit.
    """
    replicas = lines(tables / "closed.jsonl")

    found = Counter(result.agreement for result, _ in map(compared, replicas))

    assert {Agreement.EQUAL: 16} == found


def test_difference_made_by_ozones_own_scan_is_explained(tables: Path) -> None:
    """After Ozone's scan, each block that it leaves out has its reason, and no other block
    differs.
    """
    replicas = [
        replica
        for replica in lines(tables / "scanned.jsonl")
        if (replica["dn"], replica["container"]) not in DAMAGED
    ]

    found = Counter(
        (result.agreement, tuple(result.reasons.items())) for result, _ in map(compared, replicas)
    )

    assert {
        (Agreement.EQUAL, ()): 8,
        (Agreement.EXPLAINED, ((ChecksumDifferenceReason.NO_CHECKSUMS, 2),)): 2,
        (Agreement.EXPLAINED, ((ChecksumDifferenceReason.NO_CHUNKS, 1),)): 4,
    } == found


def test_damage_in_ozones_tree_is_never_explained_away(tables: Path) -> None:
    """If Ozone saw damage and the bytes are whole here, the blocks are named as unexplained."""
    replicas = [
        replica
        for replica in lines(tables / "scanned.jsonl")
        if (replica["dn"], replica["container"]) in DAMAGED
    ]

    for result, tree in map(compared, replicas):
        assert Agreement.UNEXPLAINED is result.agreement
        assert tree.unhealthy <= set(result.unexplained)
        assert len(result.unexplained) == result.unexplained_count


def test_the_last_chunk_of_a_file_never_closed_explains() -> None:
    """
    Ozone's tree has such a block without its last chunk, or after its scan not at all.
    """
    container_id, block_id = ContainerId(1), BlockId(5)
    message = BLOCK_DATA(
        block_id={"container_id": container_id, "local_id": block_id},
        chunks=[chunk_message(b"synced", 0)],
    )
    stored = decode_stored(container_id, block_id, None, message.SerializeToString())
    ledger = TreeComparisonBuilder()
    ledger.add(stored)

    for live, root in (({block_id: crc32c_of(block_id.to_bytes(8))}, 1), ({}, 0)):
        tree = OzoneTree(root, live, {}, frozenset())
        result = ledger.compare(tree, root, whole([stored]))
        assert Agreement.EXPLAINED is result.agreement
        assert {ChecksumDifferenceReason.LAST_CHUNK: 1} == result.reasons


def test_a_root_that_the_database_does_not_have_is_told(tables: Path) -> None:
    """
    The tree file and the database are two records of one root.
    """
    replica = lines(tables / "closed.jsonl")[0]

    result, _ = compared({**replica, "dataChecksum": replica["dataChecksum"] ^ 1})

    assert not result.is_recorded


def test_without_a_tree_nothing_is_compared() -> None:
    """
    No tree is no root of 0 and never equal.
    """
    nothing = TreeBuilder(Algorithm.CRC32C).build()
    only_deleted = OzoneTree(None, {}, {BlockId(1): 5}, frozenset())

    assert Agreement.NO_TREE is TreeComparisonBuilder().compare(None, 0, nothing).agreement
    assert Agreement.NO_TREE is TreeComparisonBuilder().compare(only_deleted, 0, nothing).agreement
