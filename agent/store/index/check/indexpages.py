"""Page format of an LMDB index file, and plausibility checks of its pages.

    page    be: number u64, pad u16, flags u16, lower u16, upper u16; then one u16 a node
    node    size or child (u16, u16), flags or child u16, key length u16; key, data

LMDB uses these numbers unchecked, through a memory map, and a wrong number crashes the process.
This module checks many pages at once, as columns. It reads no files.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

HEADER_BYTES: Final = 16
NODE_BYTES: Final = 8  # size of a node's header, before its key
BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08
KINDS: Final = 0x6F  # flags of a page's kind; other flags are used in running transactions
BIG_DATA, SUB_DATABASE = 0x01, 0x02  # flags of a node
INTEGER_KEY: Final = 0x08  # flag of the database of free pages
NO_PAGE: Final = 2**64 - 1
FIRST_PAGE: Final = 2  # pages 0 and 1 are the meta pages
DEPTH_MAX: Final = 32  # limit of LMDB's cursors
MAGIC: Final = 0xBEEF_C0DE
FORMAT: Final = 1
PAGE_SIZES: Final = frozenset(2**power for power in range(9, 17))
META_BYTES: Final = 152  # used bytes of a meta page, with its header

_META: Final = struct.Struct("=IIQQ")
_DATABASE: Final = struct.Struct("=IHHQQQQQ")
_TAIL: Final = struct.Struct("=QQ")
assert HEADER_BYTES + _META.size + 2 * _DATABASE.size + _TAIL.size == META_BYTES

Numbers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class PageFault(Exception):
    """A page is invalid. The message names the page and the fault."""


@dataclass(frozen=True, slots=True)
class DatabaseRoot:
    """Root of one database.

    `depth` is the number of page levels, which is 0 if the database is empty.
    """

    page_bytes: int  # only set for the database of free pages
    flags: int
    depth: int
    entry_count: int
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """Fields of a meta page, which describe the index after one transaction.

    A file has two meta pages.
    """

    free: DatabaseRoot
    main: DatabaseRoot
    last_page: int
    transaction: int


@dataclass(frozen=True, slots=True, eq=False)
class PageNodes:
    """Nodes of many pages, as columns with one value per node.

    `at` is the offset in bytes of each node in the concatenated pages.
    """

    at: Numbers
    key_bytes: Numbers
    flags: Numbers
    data_bytes: Numbers  # length of a leaf's data, inside the page or in pages of its own
    is_first: npt.NDArray[np.bool_]  # whether the node is the first of its page

    @property
    def data_at(self) -> Numbers:
        """Offset in bytes of the data of each node in the concatenated pages."""
        return self.at + NODE_BYTES + self.key_bytes


def decode_database(data: bytes) -> DatabaseRoot:
    """Parse the root of a database. Raise `PageFault` if it is invalid."""
    if len(data) != _DATABASE.size:
        raise PageFault(f"the root of a database in {len(data)} bytes")
    page_bytes, flags, depth, _, _, _, entry_count, root = _DATABASE.unpack(data)
    if depth > DEPTH_MAX or (depth == 0) != (root == NO_PAGE):
        raise PageFault(f"a database with root {root} and depth {depth}")
    return DatabaseRoot(page_bytes, flags, depth, entry_count, root)


def decode_meta(data: bytes, number: int) -> Meta:
    """Parse a meta page. Raise `PageFault` if it is invalid."""
    if len(data) < META_BYTES:
        raise PageFault(f"meta page {number}: truncated")
    flags = int.from_bytes(data[10:12], "little")
    magic, form, _, _ = _META.unpack_from(data, HEADER_BYTES)
    if flags & KINDS != META or magic != MAGIC or form != FORMAT:
        raise PageFault(f"meta page {number}: not LMDB format {FORMAT}")
    at = HEADER_BYTES + _META.size
    free = decode_database(data[at : at + _DATABASE.size])
    at += _DATABASE.size
    main = decode_database(data[at : at + _DATABASE.size])
    last_page, transaction = _TAIL.unpack_from(data, at + _DATABASE.size)
    if free.page_bytes not in PAGE_SIZES or free.flags != INTEGER_KEY or main.flags:
        raise PageFault(f"meta page {number}: {free.page_bytes} bytes a page, flags {main.flags}")
    return Meta(free, main, last_page, transaction)


def judge_pages(pages: Bytes, numbers: Numbers, *, is_leaf: bool, node_count_min: int) -> PageNodes:
    """Return the nodes of these pages. Raise `PageFault` if a page is invalid.

    All pages must be leaf pages if `is_leaf`, and branch pages otherwise.
    """
    page_bytes = pages.shape[1]
    words = pages.view(np.uint16)
    _expect(pages.view(np.uint64)[:, 0] == numbers, numbers, "holds another page")
    kind = LEAF if is_leaf else BRANCH
    _expect(words[:, 5] & KINDS == kind, numbers, f"is no {'leaf' if is_leaf else 'branch'}")
    lower, upper = words[:, 6].astype(np.int64), words[:, 7].astype(np.int64)
    counts = (lower - HEADER_BYTES) // 2
    is_sane = (lower % 2 == 0) & (lower <= upper) & (upper <= page_bytes)
    _expect(is_sane & (counts >= node_count_min), numbers, "has impossible bounds")

    columns = np.arange(int(counts.max()))
    is_node = columns < counts[:, None]
    rows = np.nonzero(is_node)[0]
    inside = words[:, HEADER_BYTES // 2 : HEADER_BYTES // 2 + len(columns)][is_node]
    offsets = inside.astype(np.int64)
    is_sane = (offsets >= upper[rows]) & (offsets % 2 == 0) & (offsets + NODE_BYTES <= page_bytes)
    _expect(is_sane, numbers[rows], "has a node outside of itself")

    at = rows * page_bytes + offsets
    flat, first = words.reshape(-1), at // 2
    low, high, flags, key_bytes = (flat[first + word].astype(np.int64) for word in range(4))
    data_bytes = low | high << 16
    held_bytes = np.where(flags & BIG_DATA, 8, data_bytes) if is_leaf else 0
    end = offsets + NODE_BYTES + key_bytes + held_bytes
    _expect(end <= page_bytes, numbers[rows], "has a node that ends outside of it")
    is_first = np.broadcast_to(columns == 0, is_node.shape)[is_node]
    return PageNodes(at, key_bytes, flags, data_bytes, is_first)


def children(pages: Bytes, nodes: PageNodes) -> Numbers:
    """Return the page number of the child page of each node.

    All nodes must belong to branch pages.
    """
    flat, first = pages.reshape(-1).view(np.uint16), nodes.at // 2
    low, high, top = (flat[first + word].astype(np.int64) for word in range(3))
    return np.asarray(low | high << 16 | top << 32, dtype=np.int64)


def numbers_at(pages: Bytes, at: Numbers) -> npt.NDArray[np.uint64]:
    """Return the 64-bit number at each offset in `at`. The offsets need not be aligned."""
    gathered = pages.reshape(-1)[at[:, None] + np.arange(8)]
    return np.ascontiguousarray(gathered).view(np.uint64)[:, 0]


def free_pages(record: bytes) -> Numbers:
    """Return the page numbers in a record of free pages.

    Raise `PageFault` if the record is invalid.
    """
    words: npt.NDArray[Any] = np.frombuffer(record[: len(record) // 8 * 8], np.uint64)
    if not len(words) or int(words[0]) >= len(words):
        raise PageFault("a list of free pages is longer than its record")
    return words[1 : 1 + int(words[0])].astype(np.int64)


def _expect(is_good: npt.NDArray[np.bool_], numbers: Numbers, what: str) -> None:
    if not is_good.all():
        raise PageFault(f"page {numbers[~is_good][0]} {what}")
