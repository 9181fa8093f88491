"""Sends and receives a tree as columns in pages, down to the requested level.

- ROOT returns only the summary, in one small page.
- RANGES returns a checksum per range of block ids. The caller names the first id of each range.
- BLOCKS returns a row per block. A caller requests it for the ranges that differ.
- CHUNKS adds a row per chunk. A caller requests it for the blocks that differ.

Therefore, the traffic depends on the amount of damage. The size of a page is limited, so the tree
of a container of any size can be sent. numpy converts complete columns; no single rows are
processed in Python.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.diff import in_scope
from merkle.replica import CHUNK_BYTES_MAX, ID_MAX
from merkle.tree import Tree
from merkle.tree_descent import range_checksums
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb

PAGE_BYTES_MAX: Final = 1024**2  # the best size for a gRPC stream
SELECTION_MAX: Final = 65_536  # maximum number of ids, ranges or starts in one request: half a MiB
BLOCK_ROW_BYTES: Final = 21  # id, checksum, flag and a count, as protobuf packs them
CHUNK_ROW_BYTES: Final = 20  # offset, length, checksum, flag
ROWS_MAX: Final = 8 * 1024**2  # maximum number of blocks or chunks in one answer: 200 MB of columns


@dataclass(frozen=True, slots=True)
class TreeQuery:
    """The requested part of a tree. Without ids and ranges, the complete tree is requested."""

    level: int
    block_ids: U64s
    firsts: U64s
    lasts: U64s
    starts: U64s


def parse_selection(request: pb.GetContainerHashesRequest) -> TreeQuery:
    """Convert a request to the requested part of the tree. Raise RefusedError(MALFORMED_REQUEST) if
    the request is invalid."""
    if request.level not in {pb.ROOT, pb.RANGES, pb.BLOCKS, pb.CHUNKS}:
        raise codec.malformed("level", f"level {request.level} is unknown")
    if request.block_ids and request.ranges:
        raise codec.malformed("ranges", "ids and ranges exclude each other")
    wants_rows = request.level in {pb.BLOCKS, pb.CHUNKS}
    if (request.block_ids or request.ranges) and not wants_rows:
        raise codec.malformed("block_ids", "ids and ranges select blocks or chunks only")
    if bool(request.range_starts) != (request.level == pb.RANGES):
        raise codec.malformed("range_starts", "level RANGES needs them, and only RANGES")
    block_ids = np.unique(_ids(request.block_ids, "block_ids"))
    firsts = _ids([item.first for item in _bounded(request.ranges, "ranges")], "ranges.first")
    lasts = _ids([item.last for item in request.ranges], "ranges.last")
    if (firsts > lasts).any() or (firsts[1:] <= lasts[:-1]).any():
        raise codec.malformed("ranges", "must ascend and not overlap")
    starts = _ids(request.range_starts, "range_starts")
    if (starts[1:] <= starts[:-1]).any() or (len(starts) > 0 and starts[0] != 0):
        raise codec.malformed("range_starts", "must begin with 0 and ascend")
    return TreeQuery(request.level, block_ids, firsts, lasts, starts)


def _bounded(values: Sequence[pb.BlockRange], where: str) -> Sequence[pb.BlockRange]:
    if len(values) > SELECTION_MAX:
        raise codec.malformed(where, f"{len(values)} are more than {SELECTION_MAX}")
    return values


def _ids(values: Sequence[int], where: str) -> U64s:
    if len(values) > SELECTION_MAX:
        raise codec.malformed(where, f"{len(values)} are more than {SELECTION_MAX}")
    ids = np.array(values, dtype=np.uint64)
    if (ids > np.uint64(ID_MAX)).any():
        raise codec.malformed(where, f"ids end at {ID_MAX}")
    return ids


def pages(tree: Tree, selection: TreeQuery) -> Iterator[pb.HashesPage]:
    """Yield the requested part of a tree in pages. The first page has the summary, even if there
    are no rows."""
    summary = codec.summary_message(tree.summary())
    if selection.level == pb.ROOT:
        yield pb.HashesPage(summary=summary)
    elif selection.level == pb.RANGES:
        checksums = range_checksums(tree, selection.starts)
        yield pb.HashesPage(summary=summary, range_checksums=checksums.tolist())
    else:
        with_chunks = selection.level == pb.CHUNKS
        indexes = _selected(tree, selection)
        for number, part in enumerate(_page_parts(tree, indexes, with_chunks=with_chunks)):
            page = _rows(tree, part, with_chunks=with_chunks)
            if number == 0:
                page.summary.CopyFrom(summary)
            yield page


def _selected(tree: Tree, selection: TreeQuery) -> npt.NDArray[np.intp]:
    """Return the positions of the requested blocks in ascending order."""
    if len(selection.block_ids):
        return np.flatnonzero(np.isin(tree.block_ids, selection.block_ids))
    ranges = list(zip(selection.firsts.tolist(), selection.lasts.tolist(), strict=True))
    return np.arange(len(tree.block_ids))[in_scope(tree.block_ids, ranges or None)]


def _page_parts(
    tree: Tree, indexes: npt.NDArray[np.intp], *, with_chunks: bool
) -> Iterator[npt.NDArray[np.intp]]:
    """Divide the blocks at the positions `indexes` into pages, at least one. All chunks of a block
    are in the same page."""
    sizes = np.full(len(indexes), BLOCK_ROW_BYTES, dtype=np.int64)
    if with_chunks:
        sizes += tree.chunk_counts[indexes] * CHUNK_ROW_BYTES
    ends = np.cumsum(sizes)
    start = 0
    while True:
        done_bytes = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, done_bytes + PAGE_BYTES_MAX, side="right"))
        end = min(max(end, start + 1), len(indexes))
        yield indexes[start:end]
        if end >= len(indexes):
            return
        start = end


def _rows(tree: Tree, indexes: npt.NDArray[np.intp], *, with_chunks: bool) -> pb.HashesPage:
    page = pb.HashesPage(
        block_ids=tree.block_ids[indexes].tolist(),
        block_checksums=tree.block_checksums[indexes].tolist(),
        block_deleted=tree.deleted[indexes].tolist(),
    )
    if with_chunks and len(indexes):
        part = tree.select(tree.block_ids[indexes])
        page.block_chunk_counts.extend(part.chunk_counts.tolist())
        page.chunk_offsets.extend(part.chunk_offsets.tolist())
        page.chunk_lengths.extend(part.chunk_lengths.tolist())
        page.chunk_checksums.extend(part.chunk_checksums.tolist())
        page.chunk_healthy.extend(part.chunk_healthy.tolist())
    return page


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A peer's blocks as columns, in ascending order of their ids: the id, the checksum, and True
    if the block is deleted."""

    summary: TreeSummary
    block_ids: U64s
    block_checksums: U64s
    deleted: npt.NDArray[np.bool_]


def read_summary(answer: Iterable[pb.HashesPage]) -> TreeSummary:
    """Return the summary of a peer's tree from the pages that the peer sent."""
    return _collect(answer).summary


def read_ranges(answer: Iterable[pb.HashesPage], *, count: int) -> tuple[TreeSummary, U64s]:
    """Return the summary and the checksums of the `count` requested ranges from the pages that a
    peer sent. Raise RefusedError if the number of checksums is wrong."""
    columns = _collect(answer)
    if len(columns.ranges) != count:
        raise _bad_answer(f"{len(columns.ranges)} range checksums, {count} were asked for")
    return columns.summary, columns.ranges


def read_blocks(answer: Iterable[pb.HashesPage]) -> BlockRows:
    """Return the rows of blocks from the pages that a peer sent. Raise RefusedError if the columns
    are inconsistent."""
    columns = _collect(answer)
    sizes = {len(columns.block_ids), len(columns.block_checksums), len(columns.deleted)}
    if len(sizes) != 1:
        raise _bad_answer(f"block columns of {sorted(sizes)} rows")
    if (columns.block_ids[1:] <= columns.block_ids[:-1]).any():
        raise _bad_answer("block ids do not ascend")
    return BlockRows(columns.summary, columns.block_ids, columns.block_checksums, columns.deleted)


def read_tree(answer: Iterable[pb.HashesPage]) -> tuple[TreeSummary, Tree]:
    """Return the summary, and the requested blocks as a tree, from the pages that a peer sent.
    Raise RefusedError if the columns are inconsistent."""
    columns = _collect(answer)
    if (columns.lengths > CHUNK_BYTES_MAX).any() or (columns.lengths == 0).any():
        raise _bad_answer(f"chunk lengths beyond 1..{CHUNK_BYTES_MAX}")
    try:
        tree = Tree.from_columns(
            columns.summary.algorithm,
            block_ids=columns.block_ids,
            block_checksums=columns.block_checksums,
            deleted=columns.deleted,
            chunk_counts=columns.counts,
            chunk_offsets=columns.offsets,
            chunk_lengths=columns.lengths,
            chunk_checksums=columns.checksums,
            chunk_healthy=columns.healthy,
            generation=columns.summary.generation,
        )
    except (DamagedData, ValueError) as error:
        raise _bad_answer(str(error)) from error
    return columns.summary, tree


@dataclass(frozen=True, slots=True)
class _Columns:
    summary: TreeSummary
    ranges: U64s
    block_ids: U64s
    block_checksums: U64s
    deleted: npt.NDArray[np.bool_]
    counts: U64s
    offsets: U64s
    lengths: U64s
    checksums: U64s
    healthy: npt.NDArray[np.bool_]


def _collect(answer: Iterable[pb.HashesPage]) -> _Columns:
    """Join the columns of all pages. Raise RefusedError if a peer sends too many rows, or no
    summary."""
    received: list[pb.HashesPage] = []
    row_count = 0
    for page in answer:
        received.append(page)
        row_count += 1 + len(page.range_checksums) + len(page.block_ids) + len(page.chunk_offsets)
        if row_count > ROWS_MAX:
            raise _bad_answer(f"more than {ROWS_MAX} rows")
    if not received or not received[0].HasField("summary"):
        raise _bad_answer("it does not begin with a summary")

    def column(name: str) -> U64s:
        parts = [np.array(getattr(page, name), dtype=np.uint64) for page in received]
        return np.concatenate(parts)

    return _Columns(
        summary=codec.parse_summary(received[0].summary, "answer.summary"),
        ranges=column("range_checksums"),
        block_ids=column("block_ids"),
        block_checksums=column("block_checksums"),
        deleted=column("block_deleted").astype(np.bool_),
        counts=column("block_chunk_counts"),
        offsets=column("chunk_offsets"),
        lengths=column("chunk_lengths"),
        checksums=column("chunk_checksums"),
        healthy=column("chunk_healthy").astype(np.bool_),
    )


def _bad_answer(what: str) -> RefusedError:
    return RefusedError(Code.MALFORMED_REQUEST, f"answer: {what}", field="answer")
