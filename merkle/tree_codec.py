"""Encodes a tree as the content of its `.tree` file, and decodes it.

    ┌ 64 bytes  magic, version, algorithm, container id, generation, root, counts
    ├ the columns as in memory, those with the largest items first, each aligned to its items
    ├ zeros up to a multiple of 8 bytes
    └ XXH3-64 of all bytes before

Decoding copies no data: the columns of the tree are views of the input. Decoding raises DamagedData
if the file's checksum is wrong, or if the file is of another container or an unknown version. It
does not compute the checksums of the blocks again (`Tree.verify` does), because the file's checksum
proves that the file is unchanged. docs/DISK_FORMAT.md describes the layout of the file.
"""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from merkle.checksum import Algorithm, Buffer, xxh3_64
from merkle.checksum_columns import container_checksum
from merkle.damaged_data import DamagedData  # part of this module's interface
from merkle.replica import ContainerId
from merkle.tree import Tree
from merkle.tree_columns import Column, check_shape

MAGIC: Final = b"SUTRTREE"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sHHIQQQQII8x")
TRAILER: Final = struct.Struct("<Q")
WORD_BYTES: Final = 8
ALGORITHM_CODES: Final = {Algorithm.CRC32C: 1, Algorithm.XXH3_64: 2}
ALGORITHMS: Final = {code: algorithm for algorithm, code in ALGORITHM_CODES.items()}

assert HEADER.size == 64, "columns begin aligned for the widest of their items"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a tree file. `row_count` is the number of blocks, including tombstones."""

    algorithm: Algorithm
    container_id: int
    generation: int
    root: int
    tombstones_checksum: int
    row_count: int
    chunk_count: int

    @property
    def layout(self) -> tuple[tuple[str, str, int], ...]:
        """Name, numpy type and length of each column, in the order of the file."""
        return (
            ("block_ids", "<u8", self.row_count),
            ("block_checksums", "<u8", self.row_count),
            ("chunk_spans", "<u8", self.chunk_count),
            ("chunk_checksums", "<u8", self.chunk_count),
            ("chunk_starts", "<u4", self.row_count + 1),
            ("deleted", "?", self.row_count),
        )

    @property
    def columns_bytes(self) -> int:
        """Number of bytes of all columns, without padding."""
        return sum(np.dtype(item).itemsize * count for _, item, count in self.layout)


def encode_tree(tree: Tree, container_id: ContainerId) -> bytes:
    """Return the content of the `.tree` file of `tree`."""
    header = Header(
        tree.algorithm,
        container_id,
        tree.generation,
        tree.root,
        tree.tombstones_checksum,
        len(tree.block_ids),
        tree.chunk_count,
    )
    columns = [getattr(tree, name).astype(item, copy=False).data for name, item, _ in header.layout]
    parts = [pack_header(header), *columns, bytes(-header.columns_bytes % WORD_BYTES)]
    return b"".join([*parts, TRAILER.pack(xxh3_64(*parts))])


def pack_header(header: Header) -> bytes:
    """Return the header as the first 64 bytes of a tree file."""
    return HEADER.pack(
        MAGIC,
        VERSION,
        ALGORITHM_CODES[header.algorithm],
        0,
        header.container_id,
        header.generation,
        header.root,
        header.tombstones_checksum,
        header.row_count,
        header.chunk_count,
    )


def decode_tree(data: Buffer, container_id: ContainerId) -> Tree:
    """Return the tree that is encoded in `data`. Raise DamagedData if the data is damaged.

    The columns of the tree are views of `data`, which the caller must not change.
    """
    view = memoryview(data).cast("B")
    header = read_header(view, container_id)
    told_bytes = stored_bytes(view, container_id)
    size_bytes = told_bytes - TRAILER.size
    if len(view) != told_bytes:
        raise damaged(container_id, f"{len(view)} bytes, the header says {told_bytes}")
    (expected,) = TRAILER.unpack_from(view, size_bytes)
    actual = xxh3_64(view[:size_bytes])
    if actual != expected:
        raise damaged(container_id, f"checksum {actual:#018x}, the file says {expected:#018x}")
    return check_content(read_columns(view, header), header)


def stored_bytes(head: Buffer, container_id: ContainerId) -> int:
    """Return the length of the tree file that begins with `head`. Raise DamagedData if `head` is
    invalid."""
    columns_bytes = read_header(memoryview(head).cast("B"), container_id).columns_bytes
    return HEADER.size + columns_bytes + -columns_bytes % WORD_BYTES + TRAILER.size


def read_header(view: memoryview, container_id: ContainerId) -> Header:
    """Return the header of a tree file. Raise DamagedData if the file is not a tree of this
    container, or has an unknown version."""
    if len(view) < HEADER.size + TRAILER.size:
        raise damaged(container_id, f"{len(view)} bytes are too few")
    magic, version, code, _, stored_id, *numbers = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise damaged(container_id, f"begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION or code not in ALGORITHMS:
        raise damaged(container_id, f"unknown version {version} or algorithm {code}")
    if stored_id != container_id:
        raise damaged(container_id, f"is the tree of container {stored_id}")
    return Header(ALGORITHMS[code], stored_id, *numbers)


def read_columns(view: memoryview, header: Header) -> dict[str, Column]:
    """Return the columns of a tree file by name. The columns are views of `view`."""
    columns = {}
    start = HEADER.size
    for name, item, count in header.layout:
        columns[name] = np.frombuffer(view, dtype=item, count=count, offset=start)
        start += columns[name].nbytes
    return columns


def check_content(columns: dict[str, Column], header: Header) -> Tree:
    """Return the tree with these columns. Raise DamagedData if the columns are invalid or do not
    match the root in the header."""
    tree = Tree(
        algorithm=header.algorithm,
        generation=header.generation,
        root=header.root,
        tombstones_checksum=header.tombstones_checksum,
        **columns,
    )
    check_shape(*tree.columns())
    root = container_checksum(tree.algorithm, tree.block_checksums)
    tombstones_checksum = container_checksum(tree.algorithm, tree.block_ids[tree.deleted])
    if (root, tombstones_checksum) != (header.root, header.tombstones_checksum):
        raise damaged(ContainerId(header.container_id), "root is not the fold of the blocks")
    return tree


def damaged(container_id: ContainerId, what: str) -> DamagedData:
    """Return a DamagedData error whose message names the container of the tree."""
    return DamagedData(f"tree of container {container_id}: {what}")
