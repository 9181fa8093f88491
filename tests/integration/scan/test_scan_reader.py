"""A scan's way to the disk: whole small blocks in three calls, and no trace in the page cache."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.store.direct_io import BUFFER_BYTES, HUGE_PAGE_BYTES, ReadBuffers
from agent.store.replica.quarantine import QuarantineEntry, quarantine_bytes
from agent.store.scan_reader import StoreReplicaReader
from merkle.checksum import Algorithm
from merkle.replica import BlockId
from scanner.finding import Forensic
from scanner.replica_scan import scan_replica
from scanner.scan_outcome import ScanOutcome
from tests.support.faults.page_cache import cached_pages, drop_pages
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, noise

PAGE_BYTES = 4_096
LENGTHS = [1, 100, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 10_000, 1024**2]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredReplica]:
    """A closed replica of one small block of each length."""
    replica = StoredReplica(tmp_path)
    replica.store.create_container(CONTAINER)
    for block_id, length_bytes in enumerate(LENGTHS, start=1):
        replica.put(block_id, length_bytes)
    replica.store.close_container(CONTAINER, bcsid=0, force=True)
    yield replica
    replica.close()


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def reader(stored: StoredReplica, request: pytest.FixtureRequest) -> Iterator[StoreReplicaReader]:
    """A reader of it, with and without O_DIRECT."""
    result = StoreReplicaReader(
        stored.store, CONTAINER, stored.store.begin_scan(CONTAINER), direct=request.param
    )
    yield result
    result.close()


@pytest.mark.parametrize("block_id", range(1, len(LENGTHS) + 1))
def test_a_whole_block_is_read(
    stored: StoredReplica, reader: StoreReplicaReader, block_id: int
) -> None:
    """Every byte, and no byte more, whatever the length."""
    length_bytes = LENGTHS[block_id - 1]

    view = reader.read_whole(BlockId(block_id), length_bytes)

    assert stored.file(block_id).read_bytes() == view


class Cut:
    """Pieces of a fixed length (scanner.ports.ReadSplitting)."""

    def __init__(self, length_bytes: int) -> None:
        self.length_bytes = length_bytes
        self.rests: list[int] = []

    def piece_bytes(self) -> int:
        """Return the length."""
        return self.length_bytes

    def throttle_part(self, length_bytes: int) -> None:
        """Note the piece."""
        self.rests.append(length_bytes)


@pytest.mark.parametrize("direct", [True, False])
def test_a_large_read_is_cut_into_pieces(stored: StoredReplica, direct: bool) -> None:
    """Others get the disk in between, the bytes are the same, and small reads stay whole."""
    cut = Cut(256 * 1024)
    base = stored.store.begin_scan(CONTAINER)
    reader = StoreReplicaReader(stored.store, CONTAINER, base, direct=direct, pieces=cut)
    large, small = len(LENGTHS), LENGTHS.index(10_000) + 1
    content = stored.file(large).read_bytes()

    assert content == reader.read_whole(BlockId(large), len(content))
    assert {cut.length_bytes} == set(cut.rests)
    file = reader.open_block(BlockId(large))
    cut.rests.clear()
    assert content[5_000:900_000] == file.read(5_000, 895_000)
    assert [cut.length_bytes] * 3 == cut.rests
    cut.rests.clear()
    assert 10_000 <= len(reader.read_whole(BlockId(small), 10_000))
    assert [] == cut.rests
    file.close()
    reader.close()


@pytest.mark.parametrize("block_id", range(1, len(LENGTHS) + 1))
def test_a_file_of_another_length_shows(
    stored: StoredReplica, reader: StoreReplicaReader, block_id: int
) -> None:
    """One byte more or less changes the length of the view."""
    length_bytes = LENGTHS[block_id - 1]
    path = stored.file(block_id)

    os.truncate(path, length_bytes + 1)
    assert len(reader.read_whole(BlockId(block_id), length_bytes)) > length_bytes

    os.truncate(path, length_bytes - 1)
    assert length_bytes - 1 == len(reader.read_whole(BlockId(block_id), length_bytes))


def test_reading_a_special_file_as_a_block_fails(
    stored: StoredReplica, reader: StoreReplicaReader
) -> None:
    """Links, pipes and directories are never read as blocks, and no read hangs."""
    chunks = stored.file(1).parent
    (chunks / "101.block").symlink_to(stored.file(1))
    os.mkfifo(chunks / "102.block")
    (chunks / "103.block").mkdir()

    for block_id in (101, 102, 103, 104):
        with pytest.raises(OSError, match=r"\[Errno"):
            reader.read_whole(BlockId(block_id), 100)


def test_no_descriptor_is_left_open(stored: StoredReplica, reader: StoreReplicaReader) -> None:
    """No descriptor is left open, even if reading fails."""
    os.mkfifo(stored.file(1).parent / "102.block")
    before = len(list(Path("/proc/self/fd").iterdir()))

    for block_id in (1, 2, 3):
        reader.read_whole(BlockId(block_id), LENGTHS[block_id - 1])
    with pytest.raises(OSError, match="Errno"):
        reader.read_whole(BlockId(102), 100)

    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_missing_directory_has_no_files(stored: StoredReplica) -> None:
    """Without its chunks directory every block of a replica is missing, and that is all."""
    stored.file(1).parent.rename(stored.file(1).parent.with_name("elsewhere"))
    reader = StoreReplicaReader(stored.store, CONTAINER, stored.store.begin_scan(CONTAINER))

    with pytest.raises(FileNotFoundError) as caught:
        reader.read_whole(BlockId(1), 1)

    assert errno.ENOENT == caught.value.errno


@pytest.mark.parametrize("direct", [True, False])
def test_a_scan_leaves_the_page_cache_as_it_was(stored: StoredReplica, direct: bool) -> None:
    """Files that were cold stay cold; with O_DIRECT, files that clients use stay warm."""
    large, cold = stored.file(7), [stored.file(number) for number in (2, 4, 6)]
    for path in [large, *cold]:
        drop_pages(path)
    assert 1024**2 == len(large.read_bytes())
    warm_pages = cached_pages(large)

    outcome = scan(stored, direct=direct)

    assert outcome.complete
    assert sum(LENGTHS) == outcome.bytes_read
    assert [0, 0, 0] == [cached_pages(path) for path in cold]
    assert warm_pages == 1024**2 // mmap.PAGESIZE
    if direct:
        assert warm_pages == cached_pages(large)


def test_bytes_that_a_repair_took_away_are_known_again(stored: StoredReplica) -> None:
    """A repair whose write was lost leaves what quarantine has: the damage is stale."""
    bad = b"\x5a" * 10_000
    good = stored.file(6).read_bytes()
    stored.overwrite(6, 0, bad)
    assert stored.scan().findings
    (chunk,) = stored.store.view(CONTAINER).block(BlockId(6)).chunks
    stored.store.repair(CONTAINER).install_chunk(BlockId(6), chunk, good)
    assert () == stored.scan().findings

    stored.overwrite(6, 0, bad)

    (finding,) = stored.scan().findings
    assert Forensic.STALE == finding.forensic
    assert "what was here before the last write" in finding.evidence
    assert [finding] == stored.store.findings(CONTAINER)


def test_buffers_begin_at_a_huge_page() -> None:
    """A direct read pins two huge pages, not a thousand small ones."""
    buffers = ReadBuffers()

    for view in (buffers.first, buffers.again):
        assert BUFFER_BYTES == len(view)
        assert 0 == np.frombuffer(view, dtype=np.uint8).ctypes.data % HUGE_PAGE_BYTES


def scan(stored: StoredReplica, *, direct: bool) -> ScanOutcome:
    """Scan through a real reader."""
    base = stored.store.begin_scan(CONTAINER)
    reader = StoreReplicaReader(stored.store, CONTAINER, base, direct=direct)
    try:
        return scan_replica(
            reader,
            algorithm=Algorithm.XXH3_64,
            now_ms=lambda: 0,
            stop=lambda: False,
            progress=lambda _: None,
            pace=lambda _: None,
        )
    finally:
        reader.close()


def test_quarantine_is_listed_once_per_scan(
    stored: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundred thousand files, each listing takes a third of a second."""
    (volume,) = stored.store.volume_set.working
    for block_id, length_bytes in enumerate(LENGTHS, start=1):
        old = noise(length_bytes, block_id)
        for at_ms in (1, 2):
            note = QuarantineEntry(CONTAINER, BlockId(block_id), 0, length_bytes, at_ms, "replaced")
            quarantine_bytes(volume.layout, note, old if at_ms == 2 else old[:1])
    listed: list[str] = []
    listdir, scandir = os.listdir, os.scandir

    def counted(list_it: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def call(path: Path) -> Any:
            listed.extend([str(path)] if str(path) == str(volume.layout.quarantine) else [])
            return list_it(path)

        return call

    monkeypatch.setattr(os, "listdir", counted(listdir))
    monkeypatch.setattr(os, "scandir", counted(scandir))
    reader = StoreReplicaReader(stored.store, CONTAINER, stored.store.begin_scan(CONTAINER))

    for block_id, length_bytes in enumerate(LENGTHS, start=1):
        old = noise(length_bytes, block_id)
        assert [old, old[:1]] == list(reader.former_bytes(BlockId(block_id), 0))
    assert [] == list(reader.former_bytes(BlockId(1), 5))

    reader.close()
    assert 1 == len(listed)
