"""Small chunks are scanned as if they were large ones: same tree, same findings, as one by one."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.checksum import Algorithm, leaf_checksum, window_checksums
from merkle.replica import ChecksumType
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from scanner import replica_scan
from scanner.finding import Verdict
from scanner.rows.small_blocks import runs_and_alike
from scanner.scan_outcome import ScanOutcome
from tests.support.storage.replica_reader import (
    AlteredReader,
    MemoryReader,
    MemoryReplica,
    failing,
    flipping,
    noise,
    scan,
)

WINDOW_BYTES = 512
READ_BYTES = 8 * WINDOW_BYTES  # so that a block of a few chunks takes several reads


@pytest.fixture(scope="module", autouse=True)
def short_reads() -> Iterator[None]:
    """Read little in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_scan, "READ_BYTES_MAX", READ_BYTES)
        yield


@dataclass(frozen=True)
class Shape:
    """A block: bytes of each chunk, and how they are checksummed."""

    lengths: tuple[int, ...]
    checksum_type: ChecksumType


WHOLE = st.integers(1, 6).map(lambda windows: windows * WINDOW_BYTES)
ANY = st.integers(1, 4 * WINDOW_BYTES)
LENGTHS = st.one_of(
    st.tuples(st.lists(WHOLE, min_size=1, max_size=12), ANY).map(lambda pair: (*pair[0], pair[1])),
    st.lists(ANY, min_size=1, max_size=8).map(tuple),
)
TYPES = st.sampled_from([ChecksumType.CRC32C, ChecksumType.CRC32, ChecksumType.SHA256])
BLOCKS = st.lists(st.builds(Shape, LENGTHS, TYPES), min_size=1, max_size=4)


def stored(shapes: list[Shape]) -> MemoryReplica:
    """Return blocks of these shapes, by ids from 1."""
    replica = MemoryReplica()
    for number, shape in enumerate(shapes, 1):
        pieces = [noise(length, 100 * number + n) for n, length in enumerate(shape.lengths)]
        replica.put(
            number, *pieces, checksum_type=shape.checksum_type, bytes_per_checksum=WINDOW_BYTES
        )
    return replica


def one_by_one(reader: MemoryReader, *, stop: Callable[[], bool] = lambda: False) -> ScanOutcome:
    """Scan without a look at how alike chunks are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_scan, "runs_and_alike", partial(runs_and_alike, are_sought=False))
        return scan(reader, stop=stop)


def medium_tree(replica: MemoryReplica, shapes: list[Shape], bad: set[tuple[int, int]]) -> Tree:
    """Return the tree of what the files hold, where `bad` are chunks by block and offset."""
    builder = TreeBuilder(Algorithm.XXH3_64)
    for number, shape in enumerate(shapes, 1):
        builder.add_block(number)
        at = 0
        for length in shape.lengths:
            data = replica.files[number][at : at + length]
            sums = window_checksums(shape.checksum_type, WINDOW_BYTES, data)
            leaf = leaf_checksum(Algorithm.XXH3_64, at, length, sums)
            builder.add_leaf(Leaf(at, length, leaf, (number, at) not in bad))
            at += length
    return builder.build()


@settings(max_examples=150, deadline=None)
@given(BLOCKS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), max_size=6))
def test_damage_is_found_where_it_is_and_nowhere_else(
    shapes: list[Shape], wishes: list[tuple[int, int]]
) -> None:
    """
    Flips anywhere: the chunks that hold one are damaged, the tree is that of what the files hold,
    and all of it is what looking at each chunk by itself gives.
    """
    replica = stored(shapes)
    bad = set()
    for block, place in {(w[0] % len(shapes), w[1]) for w in wishes}:
        shape = shapes[block]
        at = place % sum(shape.lengths)
        starts = [sum(shape.lengths[:n]) for n in range(len(shape.lengths))]
        offset = max(start for start in starts if start <= at)
        if (block + 1, offset) not in bad:  # a second flip could undo the first
            bad.add((block + 1, offset))
            replica.flip(block + 1, at)

    outcome = scan(MemoryReader(replica))

    assert bad == {(found.block_id, found.offset) for found in outcome.findings}
    assert {Verdict.CORRUPT} >= {found.verdict for found in outcome.findings}
    assert medium_tree(replica, shapes, bad) == outcome.tree
    assert one_by_one(MemoryReader(replica)) == outcome


@settings(max_examples=150, deadline=None)
@given(
    BLOCKS,
    st.integers(0, 3),
    st.integers(0, 10**6),
    st.sampled_from(["cut", "longer", "gone", "flipping", "failing"]),
)
def test_whatever_else_is_wrong_gives_the_same_as_one_by_one(
    shapes: list[Shape], block: int, place: int, what: str
) -> None:
    """
    A file that is cut short, goes on or is gone; memory that flips a bit in a first read; reads
    that fail.
    """
    replica = stored(shapes)
    block_id = block % len(shapes) + 1
    content = replica.files[block_id]
    at = place % len(content)
    match what:
        case "cut":
            replica.files[block_id] = content[:at]
        case "longer":
            replica.files[block_id] = content + b"?"
        case "gone":
            del replica.files[block_id]

    def read() -> MemoryReader:
        if what == "flipping":
            return AlteredReader(replica, flipping(at, share=0.5))
        if what == "failing":
            return AlteredReader(replica, failing(errno.EIO, times=1 + at % 3))
        return MemoryReader(replica)

    assert one_by_one(read()) == scan(read())


@settings(max_examples=100, deadline=None)
@given(BLOCKS, st.integers(0, 40))
def test_a_scan_that_is_stopped_has_what_it_read(shapes: list[Shape], count: int) -> None:
    """
    The tree holds the chunks before the stop, the same as one by one.
    """
    replica = stored(shapes)

    def stopped(sought: Callable[..., ScanOutcome]) -> ScanOutcome:
        left = iter(range(count))
        return sought(MemoryReader(replica), stop=lambda: next(left, None) is None)

    assert stopped(one_by_one) == stopped(scan)
