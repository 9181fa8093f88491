"""Damages real files in the same ways as faulty disks and file systems.

Each function returns a `Damage`, with the number of bytes of the chunks that it damaged. The demo
and the tests compare it with the findings of scans and with the bytes that repairs fetch. Each
function checks that the damage really exists.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import lmdb

from merkle.blockrow import decode_block, encode_block
from merkle.checksum import window_checksums
from merkle.replica import BlockId

PAGE_BYTES: Final = 4096
GARBAGE: Final = b"not written by any client; " * 37


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage done to one replica."""

    way: str
    container_id: int
    block_ids: tuple[int, ...]
    blocks_hit: int  # number of damaged blocks; a second block may only be a source of bytes
    spoiled_bytes: int  # bytes of the chunks that no longer verify
    detail: str
    file_faults: tuple[str, ...] = ()  # the scan's names of damage that affects no block


@dataclass(frozen=True, slots=True)
class Target:
    """A replica on disk, and one or two of its blocks to damage."""

    container_id: int
    root: Path  # the replica's directory
    block_ids: tuple[int, ...]
    chunk_bytes: tuple[int, ...]  # bytes of the chunk to damage in each block
    block_bytes: tuple[int, ...]

    def block_file(self, index: int = 0) -> Path:
        """Return the file of block `index` of this target."""
        return self.root / "chunks" / f"{self.block_ids[index]}.block"


def flip_bit_under_warm_cache(target: Target) -> Damage:
    """Flip one bit on the disk by a direct write, while the file is in the page cache."""
    path = target.block_file()
    warm = path.read_bytes()
    at = min(len(warm), target.chunk_bytes[0]) // 2
    write_direct(path, at, bytes([warm[at] ^ 0x10]))
    assert path.read_bytes() != warm, "the flip did not reach the file"
    return result(target, "bit flip under a warm cache", f"bit 4 of byte {at}")


def zero_page(target: Target) -> Damage:
    """Overwrite one page with zeros, like a lost write or a failed remap."""
    path = target.block_file()
    data = path.read_bytes()
    size = min(PAGE_BYTES, len(data))
    assert any(data[:size]), "the page was zero already"
    overwrite(path, 0, bytes(size))
    return result(target, "zeroed page", f"bytes 0 to {size - 1}")


def truncate(target: Target) -> Damage:
    """Truncate the file within its first chunk, as a crash without a journal would."""
    path = target.block_file()
    keep = target.chunk_bytes[0] // 2
    os.truncate(path, keep)
    sync(path)
    return result(target, "truncation", f"{keep} bytes left", target.block_bytes[0])


def delete_block_file(target: Target) -> Damage:
    """Unlink a block's file."""
    target.block_file().unlink()
    return result(target, "deleted block file", "", target.block_bytes[0])


def delete_metadata_row(target: Target) -> Damage:
    """Delete the block's record from the volume's LMDB; the bytes remain.

    The agent must be stopped.
    """
    with block_rows(target) as (transaction, rows, key):
        assert transaction.delete(key, db=rows), "the row was not there"
    return result(target, "deleted metadata row", "the bytes are still there", 0)


def rewrite_with_row(target: Target) -> Damage:
    """Change all bytes of the first chunk, and the block record so that it matches (a lie).

    The agent must be stopped, because it may have the block record in memory.
    """
    size = target.chunk_bytes[0]
    path = target.block_file()
    wrong = bytes(byte ^ 0x5A for byte in path.read_bytes()[:size])
    with block_rows(target) as (transaction, rows, key):
        row = transaction.get(key, db=rows)
        assert row is not None, "the row is not there"
        block = decode_block(BlockId(target.block_ids[0]), bytes(row))
        first, *rest = block.chunks
        sums = window_checksums(first.checksum_type, first.bytes_per_checksum, wrong)
        assert sums != first.window_checksums, "the row fits already"
        lie = replace(block, chunks=(first._replace(window_checksums=sums), *rest))
        overwrite(path, 0, wrong)
        transaction.put(key, encode_block(lie), db=rows)
    return result(target, "wrong bytes, and a row that fits", f"bytes 0 to {size - 1}")


@contextmanager
def block_rows(
    target: Target,
) -> "Iterator[tuple[lmdb.Transaction[bytes], lmdb._Database, bytes]]":
    """Open the block records of the target's volume for writing; yield them with the block's
    key."""
    database = next(parent / "db" for parent in target.root.parents if (parent / "db").is_dir())
    key = target.container_id.to_bytes(8, "big") + target.block_ids[0].to_bytes(8, "big")
    with (
        lmdb.open(str(database), max_dbs=32, map_size=1 << 40) as environment,
        environment.begin(write=True) as transaction,
    ):
        yield transaction, environment.open_db(b"blocks", transaction, create=False), key


def swap_blocks(target: Target) -> Damage:
    """Exchange the files of two blocks, like a corrupt file system."""
    first, second = target.block_file(0), target.block_file(1)
    assert first.read_bytes() != second.read_bytes(), "the blocks are equal"
    aside = first.with_suffix(".swap")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    spoiled = target.block_bytes[0] + target.block_bytes[1]
    return result(
        target, "swapped blocks", f"with block {target.block_ids[1]}", spoiled, blocks_hit=2
    )


def append_garbage(target: Target) -> Damage:
    """Append bytes that no checksum covers."""
    path = target.block_file()
    overwrite(path, path.stat().st_size, GARBAGE)
    return result(target, "appended garbage", f"{len(GARBAGE)} bytes", 0)


def misdirect_write(target: Target) -> Damage:
    """Overwrite the first bytes of a block with the first bytes of another block."""
    other = target.block_file(1).read_bytes()[:PAGE_BYTES]
    path = target.block_file()
    data = path.read_bytes()
    other = other[: len(data)]
    assert data[: len(other)] != other, "the bytes are equal"
    overwrite(path, 0, other)
    return result(target, "misdirected write", f"from block {target.block_ids[1]}")


def damage_descriptor(target: Target) -> Damage:
    """Overwrite bytes of the container's descriptor."""
    path = target.root / "metadata" / f"{target.container_id}.container"
    overwrite(path, path.stat().st_size // 2, b"\x00\xff\x00\xff")
    faults = ("DESCRIPTOR_DAMAGED",)
    return result(target, "damaged descriptor", path.name, 0, blocks_hit=0, file_faults=faults)


def tree_restorer(target: Target) -> Callable[[], Damage]:
    """Save the current tree file. Return a function that later overwrites a newer tree file with
    the saved one."""
    path = target.root / "metadata" / f"{target.container_id}.tree"
    old = path.read_bytes()

    def restore() -> Damage:
        assert path.read_bytes() != old, "the tree is not newer yet"
        with path.open("wb") as file:
            file.write(old)
        sync(path)
        detail, faults = "an earlier generation put back", ("TREE_STALE",)
        return result(target, "stale tree file", detail, 0, blocks_hit=0, file_faults=faults)

    return restore


WAYS: Final[tuple[Callable[[Target], Damage], ...]] = (
    flip_bit_under_warm_cache,
    zero_page,
    truncate,
    delete_block_file,
    delete_metadata_row,
    swap_blocks,
    append_garbage,
    misdirect_write,
    damage_descriptor,
)
"""Every kind of damage that needs no preparation; `tree_restorer` is the tenth kind."""
WHILE_STOPPED: Final = frozenset({delete_metadata_row})
"""Kinds of damage that write to the index, for which the agent must be stopped. A running agent
does not share its LMDB lock table, so a commit of another process could be lost."""


def result(
    target: Target,
    way: str,
    detail: str,
    spoiled_bytes: int | None = None,
    *,
    blocks_hit: int = 1,
    file_faults: tuple[str, ...] = (),
) -> Damage:
    """Return the description of a damage. If `spoiled_bytes` is None, one chunk is damaged."""
    spoiled = target.chunk_bytes[0] if spoiled_bytes is None else spoiled_bytes
    return Damage(
        way, target.container_id, target.block_ids, blocks_hit, spoiled, detail, file_faults
    )


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write `data` at `offset` in place and sync it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Sync a file, including changes that were made through another descriptor."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_direct(path: Path, offset: int, data: bytes) -> None:
    """Change bytes within one page, bypassing the page cache. Use a synced plain write if that is
    impossible."""
    start = offset // PAGE_BYTES * PAGE_BYTES
    size = path.stat().st_size
    assert offset + len(data) <= start + PAGE_BYTES, "the change crosses a page"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:  # tmpfs and some overlays refuse O_DIRECT
        overwrite(path, offset, data)
        return
    try:
        with mmap.mmap(-1, PAGE_BYTES) as page:
            os.preadv(descriptor, [page], start)
            page[offset - start : offset - start + len(data)] = data
            os.pwritev(descriptor, [page], start)
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
