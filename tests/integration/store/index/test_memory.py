"""What a walk over many rows leaves in memory: nothing, and no byte of anyone is lost by that; and
what streams use again and again, which stays."""

import ctypes
import mmap
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.index.environment import Index
from agent.store.index.rows import ReplicaRow
from agent.store.index.transactions import IndexChange
from merkle.replica import ContainerId, ReplicaState
from suture.runtime.memory import let_go_of_pages, trim_heap

MIB = 1024**2
PAGE_BYTES = mmap.PAGESIZE
ROWS_COUNT = 20_000
ROW = ReplicaRow(state=ReplicaState.OPEN, origin_datanode_id="dn-1" * 40)
LEAST_BYTES = ROWS_COUNT * 200  # what the rows take at least
FEW_BYTES = MIB // 4  # the pages from which a tree is entered, and those that the kernel adds
PIECE_BYTES, PIECES_COUNT = 1024, 64 * 1024  # from the C library's heap, not from Python's


def resident_bytes(file: Path) -> int:
    """Return how much of a mapped file is in this process's memory."""
    smaps = Path("/proc/self/smaps").read_text()
    sizes_kib = re.findall(rf" {re.escape(str(file))}\n(?:\w+: .*\n)*?Rss:\s+(\d+) kB", smaps)
    assert sizes_kib, f"{file} is not mapped"
    return sum(map(int, sizes_kib)) * 1024


def anonymous_bytes() -> int:
    """Return the memory of this process that is not of files."""
    match = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An index with many replicas."""
    (tmp_path / "db").mkdir()
    index = Index(tmp_path / "db", map_bytes=32 * MIB)

    def fill(rows: IndexChange) -> None:
        for number in range(1, ROWS_COUNT + 1):
            rows.put_replica(ContainerId(number), ROW)

    index.write(fill)
    yield index
    index.close()


def test_a_walk_over_all_rows_leaves_no_pages(tmp_path: Path, index: Index) -> None:
    """
    The pages are mapped while rows are read, are let go of, and come back as they were.
    """
    file = tmp_path / "db" / "data.mdb"
    with index.read() as rows:
        before = list(rows.replicas())
        assert resident_bytes(file) > LEAST_BYTES

        columns, damaged = rows.columns()
        assert resident_bytes(file) < FEW_BYTES

        assert before == list(rows.replicas())
    assert ROWS_COUNT == len(columns)
    assert not damaged


def test_pages_are_let_go_of_while_they_are_read(tmp_path: Path, index: Index) -> None:
    """
    A reader in the middle of its rows, and one that begins, see nothing of it.
    """
    file = tmp_path / "db" / "data.mdb"
    with index.read() as rows:
        walk = rows.replicas()
        begun = [next(walk) for _ in range(ROWS_COUNT // 2)]
        let_go_of_pages(file)
        rest = list(walk)

    assert [(number, ROW) for number in range(1, ROWS_COUNT + 1)] == begun + rest


def test_private_pages_are_never_let_go_of(tmp_path: Path) -> None:
    """Bytes written to a private mapping exist nowhere else. Those written to a shared one are
    in the file.
    """
    file = tmp_path / "file"
    file.write_bytes(bytes(MIB))
    with file.open("r+b") as stored:
        shared = mmap.mmap(stored.fileno(), MIB)
        private = mmap.mmap(stored.fileno(), MIB, access=mmap.ACCESS_COPY)
    shared[:MIB] = b"s" * MIB
    private[:MIB] = b"p" * MIB
    held_bytes = resident_bytes(file)

    let_go_of_pages(file)

    assert held_bytes >= 2 * MIB
    assert MIB <= resident_bytes(file) < held_bytes - MIB // 2
    assert b"p" * MIB == private[:MIB]
    assert b"s" * MIB == shared[:MIB] == file.read_bytes()
    shared.close()
    private.close()


def test_a_file_that_is_not_mapped_is_no_error(tmp_path: Path) -> None:
    """
    Nothing is there to let go of.
    """
    let_go_of_pages(tmp_path / "never")


def test_freed_memory_is_given_back() -> None:
    """Freed blocks between used ones stay with the C library until it is asked to release them."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("this C library has no malloc_trim, and gives memory back as it likes")
    pieces = [b"%d" % number + bytes(PIECE_BYTES) for number in range(PIECES_COUNT)]
    last = pieces[-1]  # keeps the end of the heap where it is
    held_bytes = anonymous_bytes()
    del pieces

    trim_heap()

    assert last
    assert anonymous_bytes() < held_bytes - PIECES_COUNT * PIECE_BYTES // 2


STREAM = """
import resource
from suture.runtime.memory import share_heaps
{prepared}
def pass_messages():
    messages = [b"m" * 1024**2 for _ in range(8)]
pass_messages()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({rounds_count}):
    pass_messages()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ROUNDS_COUNT = 20
ROUND_PAGES = 8 * MIB // PAGE_BYTES


def pages_from_the_kernel(prepared: str) -> int:
    """Return how many pages a new process got for messages like those of a stream."""
    code = STREAM.format(prepared=prepared, rounds_count=ROUNDS_COUNT)
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(said.stdout)


def test_messages_are_not_new_memory_each_time() -> None:
    """By default the C library would fetch each megabyte from the kernel page by page and return
    it.
    """
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("this C library has no mallopt, and keeps memory as it likes")

    assert pages_from_the_kernel("") > ROUNDS_COUNT * ROUND_PAGES // 2
    assert pages_from_the_kernel("share_heaps()") < ROUND_PAGES
