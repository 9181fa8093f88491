"""A file that has other names is not written: one of them may be the last good copy of a block."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.store.files import blockfile
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, BlockId, ContainerId
from suture.errors import BlockFailed, Code, VolumeFailed
from tests.support.faults.store_victim import PACKED, SMALL, receive
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    CLUSTER,
    chunk_of,
    closed_replica,
    content,
    open_store,
    options_of_test,
    quarantined,
    write_block,
)

ONE = ContainerId(1)
OPEN = ContainerId(2)
BLOCK, OTHER = BlockId(2), BlockId(3)
WHOLE = content((2, 0)) + content((2, 1))


@pytest.fixture
def blocks(store: ReplicaStore) -> dict[int, BlockData]:
    """The blocks of a closed container 1: 1, 2 and 3, of two chunks each."""
    return closed_replica(store)


def linked(store: ReplicaStore, blocks: dict[int, BlockData]) -> tuple[Path, Path]:
    """Make block 2's file another name of block 3's, as a slip of `ln` does; return both."""
    path, other = (store.paths(ONE).block_file(block_id) for block_id in (BLOCK, OTHER))
    path.unlink()
    path.hardlink_to(other)
    assert blocks[2].length_bytes == blocks[3].length_bytes
    return path, other


def leftovers(tmp_path: Path) -> list[Path]:
    """Return what is left of copies."""
    return list((tmp_path / "v0" / "hdds" / CLUSTER / "tmp" / "importing").iterdir())


def test_a_repair_leaves_the_other_name_alone(
    store: ReplicaStore, blocks: dict[int, BlockData], tmp_path: Path
) -> None:
    """
    Block 2 is repaired chunk by chunk; block 3, whose file it was, stays the block it is.
    """
    path, other = linked(store, blocks)
    good = other.read_bytes()

    for chunk, data in zip(blocks[2].chunks, (content((2, 0)), content((2, 1))), strict=True):
        store.repair(ONE).install_chunk(BLOCK, chunk, data)

    assert good == other.read_bytes()
    assert path.read_bytes() == WHOLE
    assert (1, 1) == (path.stat().st_nlink, other.stat().st_nlink)
    assert [] == leftovers(tmp_path)


def test_a_trim_leaves_the_other_name_alone(store: ReplicaStore, tmp_path: Path) -> None:
    """Bytes trimmed from one name are still behind the other."""
    closed_replica(store)
    path = store.paths(ONE).block_file(BLOCK)
    with path.open("ab") as file:
        file.write(b"trailing")
    backup = tmp_path / "backup"
    backup.hardlink_to(path)

    assert len(b"trailing") == store.repair(ONE).trim(BLOCK)

    assert path.read_bytes() == WHOLE
    assert backup.read_bytes() == WHOLE + b"trailing"
    assert b"trailing" == quarantined(tmp_path)[BLOCK, 2 * CHUNK_BYTES]


def append(store: ReplicaStore) -> None:
    """Write the next chunk of block 1, over a tail that nobody acknowledged."""
    data = content("next")
    store.writer(OPEN).write_chunk(BlockId(1), chunk_of(data, CHUNK_BYTES), data)


def rewrite(store: ReplicaStore) -> None:
    """Write an uncommitted chunk again, otherwise."""
    data = content("again")
    store.writer(OPEN).write_chunk(BLOCK, chunk_of(data), data)


def close(store: ReplicaStore) -> None:
    """Close the container: what was never committed leaves the files."""
    store.close_container(OPEN, bcsid=1)


@pytest.mark.parametrize("change", [append, rewrite, close])
def test_a_write_leaves_the_other_name_alone(
    store: ReplicaStore, tmp_path: Path, change: Callable[[ReplicaStore], None]
) -> None:
    """Hard links to the files of an open container, as `cp -al` makes them, do not change."""
    store.create_container(OPEN)
    write_block(store, OPEN, 1, chunk_count=1)
    pending = content("pending")
    store.writer(OPEN).write_chunk(BLOCK, chunk_of(pending), pending)
    chunks = store.paths(OPEN).chunks
    with (chunks / "1.block").open("ab") as file:
        file.write(b"a tail")
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in chunks.iterdir():
        (kept / path.name).hardlink_to(path)
    before = {path.name: path.read_bytes() for path in kept.iterdir()}

    change(store)

    assert before == {path.name: path.read_bytes() for path in kept.iterdir()}
    assert content((1, 0)) == store.view(OPEN).read(BlockId(1), 0, CHUNK_BYTES)
    if change is append:
        assert content("next") == store.view(OPEN).read(BlockId(1), CHUNK_BYTES, CHUNK_BYTES)
    if change is rewrite:
        assert content("again") == store.view(OPEN).read(BLOCK, 0, CHUNK_BYTES)


def test_rollback_leaves_a_new_hard_link_alone(
    store: ReplicaStore,
    blocks: dict[int, BlockData],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The link was made during a repair. Its bytes stay, and the block has the bytes from
    before.
    """
    path, backup = store.paths(ONE).block_file(BLOCK), tmp_path / "backup"
    torn = WHOLE[:CHUNK_BYTES] + bytes(CHUNK_BYTES)
    path.write_bytes(torn)
    real = blockfile.overwrite_pieces

    def lying(path: Path, pieces: Sequence[tuple[int, bytes]], **_: object) -> None:
        real(path, [(offset, data[:-1] + b"?") for offset, data in pieces])
        backup.hardlink_to(path)
        monkeypatch.setattr(blockfile, "overwrite_pieces", real)

    monkeypatch.setattr(blockfile, "overwrite_pieces", lying)
    with pytest.raises(BlockFailed, match="read back differ"):
        store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[1], content((2, 1)))

    assert torn == path.read_bytes()
    assert backup.read_bytes().endswith(b"?")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: blockfile.append(path, b"new", 4),
        lambda path: blockfile.overwrite(path, b"new", 0),
        lambda path: blockfile.truncate(path, 2),
    ],
    ids=["append", "overwrite", "truncate"],
)
def test_write_to_a_file_with_two_names_is_refused(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """The write itself refuses, so a caller cannot forget the check."""
    path = tmp_path / "1.block"
    path.write_bytes(b"good")
    (tmp_path / "2.block").hardlink_to(path)

    with pytest.raises((OSError, VolumeFailed), match="has 2 names"):
        write(path)

    assert b"good" == path.read_bytes()


def test_a_copy_that_would_touch_the_reserve_is_refused(tmp_path: Path) -> None:
    """The block stays as it is, and the error has the required room."""
    store = open_store(tmp_path)
    try:
        blocks = closed_replica(store)
        path, other = linked(store, blocks)
    finally:
        store.close()
    reserve = 2**62
    store = open_store(tmp_path, options=options_of_test(reserve_bytes=reserve))
    try:
        good = other.read_bytes()
        with pytest.raises(BlockFailed, match=f"{2 * CHUNK_BYTES} more are needed") as caught:
            store.repair(ONE).install_chunk(BLOCK, blocks[2].chunks[0], content((2, 0)))

        assert Code.DISK_OUT_OF_SPACE is caught.value.code
        assert good == other.read_bytes() == path.read_bytes()
    finally:
        store.close()


def test_a_lock_file_with_another_name_is_not_written(tmp_path: Path) -> None:
    """The file locks as well without the name of its owner."""
    store = open_store(tmp_path)
    blocks = closed_replica(store)
    good = store.paths(ONE).block_file(BLOCK)
    store.close()
    lock = tmp_path / "v0" / "hdds" / "in_use.lock"
    lock.unlink()
    lock.hardlink_to(good)

    store = open_store(tmp_path)
    try:
        assert WHOLE == good.read_bytes()
        assert blocks[2] == store.view(ONE).block(BLOCK)
        with pytest.raises(Exception, match="is held by"):
            open_store(tmp_path)
    finally:
        store.close()
    assert lock.stat().st_nlink == 2


def test_a_pack_with_another_name_keeps_its_pages(tmp_path: Path) -> None:
    """A block is deleted from a pack. Its pages are not freed, because a hard link still has
    them.
    """
    store = open_store(tmp_path, options=options_of_test(packed_count_min=1))
    try:
        closed_replica(store, SMALL, chunk_count=1)
        receive(store, SMALL, PACKED)
        backup = tmp_path / "backup"
        backup.hardlink_to(store.paths(PACKED).pack)
        before = backup.read_bytes()

        assert 1 == remove_blocks(store, PACKED, [BLOCK])

        assert before == backup.read_bytes()
        assert BLOCK in store.view(PACKED).tombstones()
    finally:
        store.close()
