"""Measures a container of half a million one-chunk blocks: build, diff, encode, decode its tree.

Each is measured in alternation with a plain implementation (reference_tree.py), which must not win:
a tree must be cheap both for a thousand chunks and for half a million blocks.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import numpy as np

from bench.measure import Measure, at_least, at_most, interleaved_medians
from bench.scans import reference_tree
from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, window_checksums
from merkle.diff import diff
from merkle.replica import (
    CHUNK_BYTES_DEFAULT,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from merkle.tree_codec import decode_tree, encode_tree

BLOCK_COUNT: Final = 500_000
CHUNK_BYTES: Final = 10_000  # half a million of them are a container of 5 GB
LARGE_CHUNK_COUNT: Final = 1_280  # of 4 MiB: also a container of 5 GB
WINDOW_BYTES: Final = 16_384
DIFFERENCE_COUNT: Final = 10
CONTAINER: Final = ContainerId(1)
BUILD_RATIO_MIN: Final = 8
DIFF_RATIO_MIN: Final = 5
BYTES_PER_BLOCK_MAX: Final = 40
SEED: Final = 14_908

Rows = list[tuple[BlockId, bytes]]
T = TypeVar("T")


def measures() -> list[Measure]:
    """Measure everything; takes a minute on two cores."""
    rows = small_rows()
    tree = build_from_rows(rows, {}, algorithm=Algorithm.XXH3_64)
    peer = build_from_rows(damaged(rows), {}, algorithm=Algorithm.XXH3_64)
    encoded = encode_tree(tree, CONTAINER)
    assert len(diff(tree, peer).differences) == DIFFERENCE_COUNT
    return [
        *building(rows),
        *diffing(tree, peer),
        *coding(tree, encoded),
        *large_chunks(),
    ]


def small_rows() -> Rows:
    """Return the rows of half a million blocks of one chunk each."""
    checksums = np.random.default_rng(SEED).bytes(4 * BLOCK_COUNT)
    return [
        one_chunk_row(BlockId(number + 1), checksums[4 * number : 4 * number + 4])
        for number in range(BLOCK_COUNT)
    ]


def one_chunk_row(block_id: BlockId, checksums: bytes) -> tuple[BlockId, bytes]:
    """Return the row of a block of one chunk with one window."""
    chunk = ChunkInfo(0, CHUNK_BYTES, ChecksumType.CRC32C, WINDOW_BYTES, checksums)
    return block_id, encode_block(BlockData(block_id, Bcsid(1), (chunk,)))


def damaged(rows: Rows) -> Rows:
    """Return the rows of a peer that differs in ten blocks: five are lost, and five have other
    data.
    """
    hit = range(BLOCK_COUNT // 20, BLOCK_COUNT, BLOCK_COUNT // DIFFERENCE_COUNT)
    lost = {rows[index][0] for index in hit[::2]}
    changed = {rows[index][0] for index in hit[1::2]}
    return [
        one_chunk_row(block_id, bytes(4)) if block_id in changed else (block_id, row)
        for block_id, row in rows
        if block_id not in lost
    ]


def building(rows: Rows) -> list[Measure]:
    """Measure building a tree from rows with both algorithms, and the memory for it."""
    taken = []
    for algorithm in Algorithm:
        built = partial(build_from_rows, rows, {}, algorithm=algorithm)
        referred = partial(reference_tree.build, rows, {}, algorithm)
        taken += against_plain(f"tree build {algorithm}", built, referred, BUILD_RATIO_MIN)
    ours = partial(build_from_rows, rows, {}, algorithm=Algorithm.XXH3_64)
    plain = partial(reference_tree.build, rows, {}, Algorithm.XXH3_64)
    with without_collector():
        ours_s, plain_s = interleaved_medians(ours, plain, rounds=3)
    ratio = plain_s / ours_s
    taken.append(Measure("tree build ratio, collector off", ratio, "x", "object per node"))
    tree, peak_bytes = peak_of(ours)
    held_bytes = sum(column.nbytes for column in tree.columns()) / BLOCK_COUNT
    taken.append(at_most("tree in memory", held_bytes, "bytes/block", BYTES_PER_BLOCK_MAX))
    _, plain_peak_bytes = peak_of(plain)
    taken.append(peak("tree build peak memory", peak_bytes, plain_peak_bytes))
    return taken


def diffing(mine: Tree, theirs: Tree) -> list[Measure]:
    """Measure the diff of two trees with ten differences."""
    plain_mine, plain_theirs = reference_tree.from_tree(mine), reference_tree.from_tree(theirs)
    plain = partial(reference_tree.diff, plain_mine, plain_theirs)
    ours = partial(diff, mine, theirs)
    assert tuple(plain()) == ours().differences
    taken = against_plain("tree diff, 10 differences", ours, plain, DIFF_RATIO_MIN)
    del plain_mine, plain_theirs, plain
    _, peak_bytes = peak_of(ours)
    return [*taken, peak("tree diff peak memory", peak_bytes)]


def coding(tree: Tree, encoded: bytes) -> list[Measure]:
    """Measure encoding and decoding."""
    plain = reference_tree.from_tree(tree)
    plain_encoded = reference_tree.encode(plain)
    plain_decode = partial(reference_tree.decode, plain_encoded, tree.algorithm, tree.root)
    assert plain_decode() == plain
    encode = partial(encode_tree, tree, CONTAINER)
    decode = partial(decode_tree, encoded, CONTAINER)
    decoded, decode_peak_bytes = peak_of(decode)
    whole = np.frombuffer(encoded, dtype=np.uint8)
    copied_bytes = sum(
        column.nbytes for column in decoded.columns() if not np.shares_memory(column, whole)
    )
    return [
        *against_plain("tree encode", encode, partial(reference_tree.encode, plain)),
        peak("tree encode peak memory", peak_of(encode)[1]),
        *against_plain("tree decode", decode, plain_decode),
        peak("tree decode peak memory", decode_peak_bytes),
        at_most("tree decode, columns copied", copied_bytes, "bytes", 0),
        Measure("tree file", len(encoded) / BLOCK_COUNT, "bytes/block"),
    ]


def large_chunks() -> list[Measure]:
    """Measure building the tree of a container with few blocks that have many large chunks."""
    rows = [large_row(BlockId(number + 1)) for number in range(LARGE_CHUNK_COUNT // 64)]
    ours = partial(build_from_rows, rows, {}, algorithm=Algorithm.XXH3_64)
    plain = partial(reference_tree.build, rows, {}, Algorithm.XXH3_64)
    assert ours().root == plain().root
    ours_s, plain_s = interleaved_medians(ours, plain)
    return [
        Measure("tree build, 1,280 chunks of 4 MiB", ours_s * 1e3, "ms"),
        Measure(
            "tree build ratio, 1,280 chunks of 4 MiB", plain_s / ours_s, "x", "object per node"
        ),
    ]


def large_row(block_id: BlockId) -> tuple[BlockId, bytes]:
    """Return the row of a block of 64 chunks of 4 MiB."""
    windows = CHUNK_BYTES_DEFAULT // WINDOW_BYTES
    checksums = window_checksums(ChecksumType.CRC32C, 4, bytes(range(256)) * (windows // 64))
    chunks = tuple(
        ChunkInfo(
            index * CHUNK_BYTES_DEFAULT,
            CHUNK_BYTES_DEFAULT,
            ChecksumType.CRC32C,
            WINDOW_BYTES,
            checksums[: 4 * windows],
        )
        for index in range(64)
    )
    return block_id, encode_block(BlockData(block_id, Bcsid(1), chunks))


def against_plain(
    name: str,
    ours: Callable[[], object],
    plain: Callable[[], object],
    ratio_min: float | None = None,
) -> list[Measure]:
    """Return the measures of the time per block, and of the plain version's time divided by
    ours."""
    ours_s, plain_s = interleaved_medians(ours, plain, rounds=5)
    ratio = plain_s / ours_s
    if ratio_min is None:
        compared = Measure(f"{name} ratio", ratio, "x", "object per node")
    else:
        compared = at_least(f"{name} ratio", ratio, "x", ratio_min, compared_with="object per node")
    plain_ns = plain_s / BLOCK_COUNT * 1e9
    return [
        Measure(name, ours_s / BLOCK_COUNT * 1e9, "ns/block", f"{plain_ns:,.0f}, object per node"),
        compared,
    ]


def peak_of(action: Callable[[], T]) -> tuple[T, int]:
    """Return the action's result, and its peak allocation."""
    gc.collect()
    tracemalloc.start()
    try:
        result = action()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak(name: str, peak_bytes: int, plain_peak_bytes: int | None = None) -> Measure:
    """Return the measure of a memory peak, in bytes per block."""
    plain = "" if plain_peak_bytes is None else f"{plain_peak_bytes / BLOCK_COUNT:,.0f}, plain"
    return Measure(name, peak_bytes / BLOCK_COUNT, "bytes/block", plain)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's cyclic garbage collector, whose cost grows with the number of live objects.

    The agent runs with the collector enabled, and so do the other measures. The difference shows
    how much of the ratio the collector causes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
