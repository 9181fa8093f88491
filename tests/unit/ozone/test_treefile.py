"""Ozone's tree files: read, and checked level by level."""

from typing import Any

import pytest

from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from ozone.disk.messages import CHECKSUM_INFO
from ozone.disk.treefile import decode_tree

HERE = ContainerId(4)
# of the format's description, computed there with Java: block 1 without chunks, and its container
EMPTY_BLOCK, EMPTY_BLOCK_ROOT = 2118332809, 2938966949
LARGE = {"offset": 2**63 - 1, "length": 2**63 - 1, "checksum": -1, "matches": True}


def tree(root: int | None, *blocks: dict[str, Any], container_id: int = HERE) -> bytes:
    """Return a tree file."""
    info = CHECKSUM_INFO(container_id=container_id, tree={"blocks": blocks})
    if root is not None:
        info.tree.checksum = root
    data: bytes = info.SerializeToString()
    return data


def test_a_tree_is_read() -> None:
    """Live blocks and tombstones are distinguished, with their checksums."""
    block = {"block_id": 1, "checksum": EMPTY_BLOCK}

    live = decode_tree(tree(EMPTY_BLOCK_ROOT, block), HERE)
    dead = decode_tree(tree(EMPTY_BLOCK_ROOT, {**block, "deleted": True}), HERE)

    assert ({1: EMPTY_BLOCK}, {}) == (live.live, live.tombstones)
    assert ({}, {1: EMPTY_BLOCK}) == (dead.live, dead.tombstones)
    assert EMPTY_BLOCK_ROOT == live.root == dead.root


def test_a_list_of_deleted_blocks_is_no_tree() -> None:
    """Blocks deleted before the first tree are recorded without a root, which is never a root of
    0.
    """
    block = {"block_id": 1, "checksum": 7, "deleted": True}

    assert decode_tree(tree(None, block), HERE).root is None
    assert decode_tree(tree(0), HERE).root == 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\xff", "no ChecksumInfo"),
        (tree(0, container_id=5), "it names container 5"),
        (tree(1, {"block_id": 1, "checksum": EMPTY_BLOCK}), "is not the fold .* of its blocks"),
        (tree(0, {"block_id": 1, "checksum": 5}), "block 1 is not the fold of its chunks"),
        (tree(0, {"block_id": 1, "checksum": -1}), "block 1 has checksum -1"),
        (tree(0, {"block_id": -1, "checksum": 1}), "block -1 after block -1"),
        (tree(0, *[{"block_id": 1, "checksum": EMPTY_BLOCK}] * 2), "block 1 after block 1"),
        (tree(0, {"block_id": 1, "chunks": [{"checksum": -2}]}), "a leaf beyond 32 bits"),
        (tree(0, {"block_id": 1, "chunks": [{}] * 100}), "block 1 has chunks of which nothing is"),
        (tree(0, {"block_id": 1, "chunks": [LARGE] * 80_000}), "a block of 2800002 bytes"),
    ],
)
def test_tree_file_that_ozone_cannot_have_written_is_damaged(data: bytes, why: str) -> None:
    """A file without a checksum of its own must still match the folds of its levels."""
    with pytest.raises(DamagedData, match=why):
        decode_tree(data, HERE)
