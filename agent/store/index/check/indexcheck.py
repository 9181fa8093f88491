"""Integrity check of an index file, before LMDB maps it into memory.

LMDB reads its file through a memory map. A sector that cannot be read, a truncated file or a
garbage page would kill the process of the agent. This check reads the same pages with pread(2),
where such a fault only causes an errno or an invalid number.

The check reads both meta pages and compares the page count with the file size. Then it reads every
page of each database, beginning at the root. Each page must have its own number and be reached
once, the keys must be in order, and the number of rows must match. Free pages must be within the
file and not in use.

A small index is checked at each start. A large index is checked only if the last process did not
close it. The file is then read once, at the speed of the disk.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from agent.store.index.check.indexorder import KeyOrder
from agent.store.index.check.indexpages import (
    BIG_DATA,
    FIRST_PAGE,
    HEADER_BYTES,
    INTEGER_KEY,
    KINDS,
    META_BYTES,
    OVERFLOW,
    SUB_DATABASE,
    Bytes,
    DatabaseRoot,
    Meta,
    Numbers,
    PageFault,
    PageNodes,
    children,
    decode_database,
    decode_meta,
    free_pages,
    judge_pages,
    numbers_at,
)
from agent.store.index.lmdb_errors import DATA_FILE
from suture.errors import Code, VolumeFailed
from suture.runtime.durable import open_file, raise_shortage

SMALL_BYTES: Final = 256 * 1024**2  # a file of this size takes two seconds to read
BATCH_PAGES: Final = 1024  # pages read and checked at once
UNWRITTEN_PAGES_MAX: Final = 2**20  # 8 times the dirty pages that LMDB keeps in memory at once
"""Maximum number of pages that may be missing at the end of a valid file. If a transaction
allocates and frees pages at the end, they are counted as free but not written. A file that is
shorter than its page count is checked completely."""
TRANSACTION_KEY_BYTES: Final = 8  # keys of the database of free pages
HINT: Final = (
    "check the disk and the kernel's log, then restart the agent; if the disk is lost, replace it: "
    "its replicas are copied from other datanodes"
)


def check_index(directory: Path, *, key_bytes: Mapping[str, int], whole: bool = False) -> int:
    """Check an index file. Return the number of bytes read, or 0 if the file does not exist yet.

    `key_bytes` has the key length of each named database. A file larger than SMALL_BYTES is checked
    completely only if `whole`. Otherwise, only its meta pages and the roots of its databases are
    checked. Raise `VolumeFailed` if the index is damaged. The message names the file and the page.
    """
    file = directory / DATA_FILE
    try:
        fd = open_file(file)
    except FileNotFoundError as error:
        if os.path.lexists(file):
            raise _index_failure(file, error.strerror or "is no file") from error
        return 0
    except OSError as error:
        raise_shortage(error, file)
        raise _index_failure(file, _words(error)) from error
    try:
        size_bytes = os.fstat(fd).st_size
        if not size_bytes:
            return 0
        check = _Check(fd, size_bytes)
        check.run(key_bytes, whole=whole)
    except PageFault as fault:
        raise _index_failure(file, str(fault)) from fault
    except OSError as error:
        raise_shortage(error, file)
        raise _index_failure(file, _words(error)) from error
    finally:
        os.close(fd)
    return check.read_bytes


def _index_failure(file: Path, why: str) -> VolumeFailed:
    return VolumeFailed(Code.UNABLE_TO_READ_METADATA_DB, f"{file}: {why}", hint=HINT)


def _words(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, 'unknown')}: {error.strerror or error}"


class _Check:
    """Check of one index file."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.read_bytes = 0
        self._fd = fd
        self._meta = self._newest_meta()
        self._page_bytes = self._meta.free.page_bytes
        page_count = self._meta.last_page + 1
        unwritten_count = page_count - size_bytes // self._page_bytes
        self._is_short = unwritten_count > 0
        if unwritten_count > UNWRITTEN_PAGES_MAX:
            raise PageFault(
                f"{size_bytes} bytes, but {page_count} pages of {self._page_bytes} are in use: "
                "the file was truncated"
            )
        self._is_reached = np.zeros(page_count, np.bool_)
        self._is_reached[:FIRST_PAGE] = True
        self._free: list[bytes] = []

    def run(self, key_bytes: Mapping[str, int], *, whole: bool) -> None:
        """Check all pages of the file. If the file is large and not `whole`, check only the roots.

        Raise `PageFault` if a page is invalid, and OSError if a page cannot be read.
        """
        named = dict(self._named())
        if (strange := named.keys() - key_bytes.keys()) and key_bytes.keys() - named.keys():
            raise PageFault(
                f"database {min(strange)!r} is unknown, and an expected database is missing"
            )
        is_large = len(self._is_reached) * self._page_bytes > SMALL_BYTES
        if is_large and not whole and not self._is_short:
            return
        for name, database in named.items():
            if database.flags:
                raise PageFault(f"database {name!r} has flags {database.flags:#x}")
            self._walk(database, key_bytes.get(name), node_count_min=2)
        self._walk(self._meta.free, TRANSACTION_KEY_BYTES, node_count_min=1, keep=self._free)
        for record in self._free:
            self._reach(free_pages(record), "is free, and in use")

    def _newest_meta(self) -> Meta:
        first = decode_meta(self._bytes_at(0, META_BYTES), 0)
        second = decode_meta(self._bytes_at(first.free.page_bytes, META_BYTES), 1)
        if first.free.page_bytes != second.free.page_bytes:
            raise PageFault("the meta pages disagree on the size of a page")
        return max(first, second, key=lambda meta: meta.transaction)

    def _named(self) -> Iterator[tuple[str, DatabaseRoot]]:
        for pages, nodes in self._leaves(self._meta.main, None, node_count_min=1):
            if (nodes.flags != SUB_DATABASE).any():
                raise PageFault("a named database has no root")
            flat, data_at = pages.reshape(-1), nodes.data_at
            for number, at in enumerate(nodes.at.tolist()):
                begin, size = int(data_at[number]), int(nodes.data_bytes[number])
                name = flat[at + 8 : begin].tobytes().decode("utf-8", "replace")
                yield name, decode_database(flat[begin : begin + size].tobytes())

    def _walk(
        self,
        database: DatabaseRoot,
        key_bytes: int | None,
        *,
        node_count_min: int,
        keep: list[bytes] | None = None,
    ) -> None:
        """Check all pages of a database. Append the values of its nodes to `keep`, if given.

        Raise `PageFault` if a page is invalid, or if the number of rows does not match the root.
        """
        entry_count = 0
        for pages, nodes in self._leaves(database, key_bytes, node_count_min=node_count_min):
            if (nodes.flags & ~BIG_DATA).any():
                raise PageFault("a node has unknown flags")
            entry_count += len(nodes.at)
            is_big = (nodes.flags & BIG_DATA) != 0
            flat, data_at = pages.reshape(-1), nodes.data_at
            if keep is not None:
                for number in np.nonzero(~is_big)[0].tolist():
                    begin = int(data_at[number])
                    keep.append(flat[begin : begin + int(nodes.data_bytes[number])].tobytes())
            if is_big.any():
                starts = numbers_at(pages, data_at[is_big]).astype(np.int64)
                sizes, in_order = nodes.data_bytes[is_big], np.argsort(starts)
                for number in in_order.tolist():
                    data = self._overflow(int(starts[number]), int(sizes[number]))
                    if keep is not None:
                        keep.append(data)
        if entry_count != database.entry_count:
            raise PageFault(f"a database counts {database.entry_count} rows, and has {entry_count}")

    def _leaves(
        self, database: DatabaseRoot, key_bytes: int | None, *, node_count_min: int
    ) -> Iterator[tuple[Bytes, PageNodes]]:
        """Yield the leaf pages of a database with their nodes.

        The levels above the leaf pages are checked first. The pages of a level are read in the
        order of the file, but their keys are checked in key order.
        """
        level = np.array([database.root] if database.depth else [], np.uint64).astype(np.int64)
        is_native = database.flags & INTEGER_KEY != 0
        keys = KeyOrder(key_bytes, is_native=is_native) if key_bytes and len(level) else None
        for depth in range(database.depth):
            is_leaf = depth == database.depth - 1
            self._reach(level, "is reached twice")
            below: list[tuple[Numbers, Numbers]] = []
            for pages, places in self._pages(level):
                nodes = judge_pages(
                    pages,
                    level[places],
                    is_leaf=is_leaf,
                    node_count_min=1 if is_leaf else node_count_min,
                )
                is_right = (nodes.key_bytes == key_bytes) | (nodes.is_first & (not is_leaf))
                if key_bytes is not None and not is_right.all():
                    raise PageFault(f"a key is not {key_bytes} bytes long")
                within = places[nodes.at // self._page_bytes]
                if is_leaf:
                    if keys is not None:
                        keys.add_leaves(pages, nodes, within, level)
                    yield pages, nodes
                    continue
                if keys is not None:
                    keys.add_branches(pages, nodes, within)
                below.append((within, children(pages, nodes)))
            if is_leaf and keys is not None:
                keys.end_leaves(level)
            elif not is_leaf:
                if keys is not None:
                    keys.end_branches()
                level = _in_order(below)

    def _reach(self, numbers: Numbers, what: str) -> None:
        """Mark these pages as used.

        Raise `PageFault` if a page does not exist or is already marked. The message for a page that
        is already marked contains `what`.
        """
        is_outside = (numbers < FIRST_PAGE) | (numbers >= len(self._is_reached))
        if is_outside.any():
            raise PageFault(f"page {numbers[is_outside][0]} is referenced but does not exist")
        again = self._is_reached[numbers]
        if again.any() or len(np.unique(numbers)) != len(numbers):
            named = numbers[again][0] if again.any() else numbers[0]
            raise PageFault(f"page {named} {what}")
        self._is_reached[numbers] = True

    def _pages(self, level: Numbers) -> Iterator[tuple[Bytes, Numbers]]:
        """Yield the pages of a level in batches, with the position of each page in `level`.

        The pages are read in the order of the file.
        """
        in_file = np.argsort(level)
        for begin in range(0, len(level), BATCH_PAGES):
            places = in_file[begin : begin + BATCH_PAGES]
            batch = level[places]
            pages = np.empty((len(batch), self._page_bytes), np.uint8)
            runs = np.flatnonzero(np.diff(batch) != 1) + 1
            edges = [0, *runs.tolist(), len(batch)]
            for first, end in pairwise(edges):
                self._read_into(pages[first:end], int(batch[first]))
            yield pages, places

    def _read_into(self, pages: Bytes, first: int) -> None:
        view, at = memoryview(pages.data).cast("B"), first * self._page_bytes
        while view:
            count = os.preadv(self._fd, [view], at)
            if not count:
                number = at // self._page_bytes
                raise PageFault(
                    f"page {number} is beyond the end of the file: the file was truncated"
                )
            view, at = view[count:], at + count
            self.read_bytes += count

    def _overflow(self, first: int, data_bytes: int) -> bytes:
        """Return a value that is stored in overflow pages, which contain nothing else.

        `first` is the number of the first page. Raise `PageFault` if the pages do not match the
        value.
        """
        page_bytes = self._page_bytes
        needed = -(-(HEADER_BYTES + data_bytes) // page_bytes)
        if not FIRST_PAGE <= first <= len(self._is_reached) - needed:
            raise PageFault(f"page {first} is referenced but does not exist")
        pages = np.empty((needed, page_bytes), np.uint8)
        self._read_into(pages, first)
        kind = int(pages[0].view(np.uint16)[5]) & KINDS
        count = int(pages[0].view(np.uint32)[3])
        if kind != OVERFLOW or int(pages[0].view(np.uint64)[0]) != first or count < needed:
            raise PageFault(f"page {first} does not have the expected data")
        if count > len(self._is_reached) - first:
            raise PageFault(f"page {first} claims {count} pages, more than the file has")
        self._reach(np.arange(first, first + count), "is reached twice")
        return pages.reshape(-1)[HEADER_BYTES : HEADER_BYTES + data_bytes].tobytes()

    def _bytes_at(self, offset: int, length_bytes: int) -> bytes:
        data = os.pread(self._fd, length_bytes, offset)
        self.read_bytes += len(data)
        return data


def _in_order(below: list[tuple[Numbers, Numbers]]) -> Numbers:
    """Return the page numbers of the next lower level, in the order of their keys."""
    places, found = (np.concatenate(column) for column in zip(*below, strict=True))
    return found[np.argsort(places, kind="stable")]
