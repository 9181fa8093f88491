"""After damage, what lies beside it on the disk is read next: on a real file system, by a map of a
test's own, and where no file system tells."""

import errno
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.config.options import ScanConfig
from agent.scan.adjacent_scan import (
    AGAIN_S,
    FILE_COST_BYTES,
    FILES_PER_STEP,
    NEIGHBOURS_MAX,
    AdjacentScanWorker,
)
from agent.scan.ondemand import ScanPriority
from agent.scan.scan_manager import ScanManager
from agent.store.disk_adjacency import DamagedExtent, MappedFile, distance
from agent.store.files.fiemap import NOT_SUPPORTED, Extent, extents_of
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault, ScanFinding, Verdict
from suture.runtime.loop import Busy, Idle
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, StoredReplica, opened

COUNT = 8
NEAR_BYTES = 67_108_864  # 64 MiB, as docs/adr/0038 says
CONFIG = ScanConfig(watch=False)
EXTENT_LINE = re.compile(r"^\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+)\.\.\s*\d+:\s*(\d+):", re.MULTILINE)
BLOCK_SIZE = re.compile(r"blocks? of (\d+) bytes")


def tells_places(directory: Path) -> bool:
    """Whether the file system below a directory says where files lie."""
    path = directory / "probe"
    path.write_bytes(os.urandom(5000))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        try:
            return bool(list(extents_of(file.fileno())))
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
            return False


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with eight containers, closed and whole, on a file system with places."""
    if not tells_places(tmp_path):
        pytest.skip("the file system of the tests does not tell where files lie (FIEMAP)")
    for result in opened(tmp_path / "volume"):
        for number in range(2, COUNT + 1):
            result.create(ContainerId(number), blocks=2)
        yield result


def filefrag(path: Path) -> list[tuple[int, int, int]]:
    """Return the extents of a file as e2fsprogs tells them: logical, physical, length in bytes."""
    program = shutil.which("filefrag")
    if program is None:
        pytest.skip("filefrag of e2fsprogs is not installed")
    said = subprocess.run(
        [program, "-v", str(path)], capture_output=True, check=True, text=True
    ).stdout
    size = BLOCK_SIZE.search(said)
    assert size is not None, said
    scale = int(size[1])
    return [
        (int(a) * scale, int(b) * scale, int(c) * scale) for a, b, c in EXTENT_LINE.findall(said)
    ]


def places_of(replica: StoredReplica, container_id: ContainerId) -> list[tuple[int, int]]:
    """Return where the files of a replica begin and end on the device, by filefrag."""
    chunks = replica.store.paths(container_id).chunks
    return [
        (physical, physical + length)
        for path in chunks.iterdir()
        for _, physical, length in filefrag(path)
    ]


class TestFiemap:
    """The ioctl, beside e2fsprogs."""

    def test_a_file_in_pieces_is_told_as_filefrag_tells_it(self, tmp_path: Path) -> None:
        """With holes in it, each piece where it is."""
        if not tells_places(tmp_path):
            pytest.skip("the file system of the tests does not tell where files lie (FIEMAP)")
        path = tmp_path / "pieces"
        with path.open("wb") as file:
            for number in range(5):
                file.seek(number * 300_000)
                file.write(os.urandom(40_000))
            file.flush()
            os.fsync(file.fileno())

        with path.open("rb") as file:
            told = [(e.offset, e.physical, e.length_bytes) for e in extents_of(file.fileno())]
            [part] = extents_of(file.fileno(), 300_000, 4_096)

        assert told == filefrag(path)
        assert len(told) >= 5
        [holder] = [e for e in told if e[0] <= 300_000 < e[0] + e[2]]
        assert part == Extent(300_000, holder[1] + 300_000 - holder[0], 4_096)

    def test_file_without_extents_raises_not_supported(self) -> None:
        """A pipe has no extents."""
        reading, writing = os.pipe()
        try:
            with pytest.raises(OSError, match=r".") as caught:
                list(extents_of(reading))
        finally:
            os.close(reading)
            os.close(writing)

        assert caught.value.errno in NOT_SUPPORTED


class TestOnDisk:
    """A store on a real file system."""

    def test_replicas_beside_damage_are_scanned_next(self, replica: StoredReplica) -> None:
        """The replicas are scanned nearest first, by the extents that filefrag prints. No other
        replica is scanned, and the damaged one is not scanned again.
        """
        scrub = ScanManager(replica.tools, CONFIG, threading.Event())
        names = {loop.status().name for loop in scrub.loops()}
        bad = filefrag(replica.file(2, ContainerId(4)))
        flip(replica.file(2, ContainerId(4)), 100)  # in the first chunk
        ranges = [
            (physical, physical + min(length, CHUNK_BYTES - logical))
            for logical, physical, length in bad
            if logical < CHUNK_BYTES
        ]
        expected = sorted(
            (min(gap(one, other) for one in places_of(replica, number) for other in ranges), number)
            for number in map(ContainerId, range(1, COUNT + 1))
            if number != 4
        )

        assert scrub.queue(ContainerId(4))
        assert Busy() == scrub.on_demand.step()
        while scrub._neighbours.step() == Busy():
            pass
        waiting = scrub.on_demand._waiting
        order = list(waiting)

        near = [number for between, number in expected if between <= NEAR_BYTES][:NEIGHBOURS_MAX]
        assert near == order
        assert {ScanPriority.NEIGHBOUR} == {request.priority for request in waiting.values()}
        assert "neighbours" in names
        assert Busy() == scrub.on_demand.step()
        assert near[1:] == list(scrub.on_demand._waiting)
        assert replica.store.replica(near[0]).data_scan_at_ms

    def test_a_scan_without_damage_asks_for_nothing(self, replica: StoredReplica) -> None:
        """There is nothing that anything could lie beside."""
        scrub = ScanManager(replica.tools, CONFIG, threading.Event())

        scrub.queue(CONTAINER)
        scrub.on_demand.step()

        assert Idle() == scrub._neighbours.step()

    def test_disabled_background_scan_reads_no_neighbours(self, replica: StoredReplica) -> None:
        """With background scans off, only requested scans run."""
        off = ScanConfig(enabled=False, watch=False)
        scrub = ScanManager(replica.tools, off, threading.Event())
        flip(replica.file(2, ContainerId(4)), 100)

        scrub.queue(ContainerId(4))
        scrub.on_demand.step()

        assert Idle() == scrub._neighbours.step()


def flip(path: Path, at: int) -> None:
    """Change a byte of a file where it lies."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def gap(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return how many bytes lie between two ranges."""
    return max(0, one[0] - other[1], other[0] - one[1])


@dataclass
class Map:
    """A disk in a test: where the files of each replica lie."""

    files_of: dict[int, list[tuple[Extent, ...]]]
    error: OSError | None = None

    def replicas(self, _volume_id: str) -> Sequence[ContainerId]:
        return sorted(map(ContainerId, self.files_of))

    def bad(self, places: Iterable[DamagedExtent]) -> list[Extent]:
        if self.error is not None:
            raise self.error
        return [
            extent
            for place in places
            for extents in self.files_of[place.container_id]
            for extent in extents
        ]

    def files(self, container_ids: Iterable[ContainerId]) -> Iterator[MappedFile]:
        for container_id in container_ids:
            for extents in self.files_of[container_id]:
                yield MappedFile(container_id, extents)


@dataclass
class Rig:
    """The worker over a map; `read_bytes` is what its pace was told."""

    map: Map
    clock: FakeClock = field(default_factory=FakeClock)
    asked: list[int] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)
    has_room: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self.worker = AdjacentScanWorker(
            self.map, self.ask, pace=self.read_bytes.append, clock=self.clock
        )

    def ask(self, container_id: ContainerId, _reason: str) -> bool:
        if self.has_room():
            self.asked.append(container_id)
        return self.has_room()

    def damage(self, container_id: int, verdict: Verdict = Verdict.CORRUPT) -> None:
        finding = ScanFinding(
            ContainerId(container_id),
            verdict,
            DamageFault.CHUNK_CHECKSUM,
            BlockId(1),
            0,
            4096,
            1,
            "test",
        )
        self.worker.queue_search("volume", [finding])

    def run(self) -> int:
        steps = 0
        while self.worker.step() == Busy():
            steps += 1
        return steps


def at(*places: int) -> list[tuple[Extent, ...]]:
    """Return one file for each place, 4 KiB long."""
    return [(Extent(0, place, 4096),) for place in places]


class TestByMap:
    """A map that a test has drawn."""

    def test_the_nearest_come_first_and_the_far_do_not_come(self) -> None:
        """By the nearest of a replica's files, on either side."""
        near = {2: at(900_000), 3: at(2_000_000, 1_010_000), 4: at(990_000), 5: at(1_004_096)}
        rig = Rig(Map({1: at(1_000_000), **near, 6: at(900_000_000)}))

        rig.damage(1)
        rig.run()

        assert [5, 3, 4, 2] == sorted(rig.asked, key=rig.asked.index)

    @pytest.mark.parametrize("is_above", [True, False])
    @pytest.mark.parametrize(("gap_bytes", "asked"), [(NEAR_BYTES, [2]), (NEAR_BYTES + 1, [])])
    def test_a_neighbour_is_within_64_mib(
        self, gap_bytes: int, asked: list[int], *, is_above: bool
    ) -> None:
        """Between the nearest edges of the two files, below the damage and above it."""
        offset = gap_bytes + 4096
        places = (1_000, 1_000 + offset) if is_above else (1_000 + offset, 1_000)
        rig = Rig(Map({number: at(place) for number, place in enumerate(places, 1)}))

        rig.damage(1)
        rig.run()

        assert asked == rig.asked

    def test_no_more_than_a_few_are_asked_for(self) -> None:
        """A disk full of small replicas is not read whole for one bad sector."""
        rig = Rig(Map({number: at(number * 8192) for number in range(1, 50)}))

        rig.damage(25)
        rig.run()

        assert NEIGHBOURS_MAX == len(rig.asked)
        assert {24, 26, 23, 27, 22, 28, 21, 29} == set(rig.asked)

    def test_looking_is_budgeted(self) -> None:
        """Some files a step, each as if a page was read."""
        rig = Rig(Map({1: at(0), 2: at(*range(0, 4096 * 200, 4096))}))

        rig.damage(1)
        steps = rig.run()

        assert steps == 200 // FILES_PER_STEP + 1
        assert all(one <= FILES_PER_STEP * FILE_COST_BYTES for one in rig.read_bytes)
        assert sum(rig.read_bytes) >= 200 * FILE_COST_BYTES

    def test_damaged_replica_triggers_neighbour_scans_once_per_period(self) -> None:
        """Its bad sectors stay bad, and its neighbours were requested already."""
        rig = Rig(Map({1: at(0), 2: at(4096)}))

        for _ in range(3):
            rig.damage(1)
            rig.run()
        before = list(rig.asked)
        rig.clock.advance_s(AGAIN_S)
        rig.damage(1)
        rig.run()

        assert ([2], [2, 2]) == (before, rig.asked)

    @pytest.mark.parametrize("number", sorted(NOT_SUPPORTED | {errno.EIO}))
    def test_without_places_the_next_by_id_are_read(self, number: int) -> None:
        """Replicas with neighbouring ids were written at about the same time."""
        files = {one: at(0) for one in (1, 7, 8, 9, 30)}
        rig = Rig(Map(files, error=OSError(number, os.strerror(number))))

        rig.damage(8)
        rig.run()

        assert [7, 9, 1, 30] == rig.asked

    def test_suspect_host_triggers_no_neighbour_scans(self) -> None:
        """A host with bad memory says nothing about the disk."""
        rig = Rig(Map({1: at(0), 2: at(4096)}))

        rig.damage(1, Verdict.SUSPECT_HOST)

        assert Idle() == rig.worker.step()

    def test_distances(self) -> None:
        """Between the nearest edges; 0 where they touch or overlap."""
        bad = [Extent(0, 100, 50), Extent(0, 1000, 10)]

        assert 0 == distance(bad, [Extent(0, 150, 10)])
        assert 0 == distance(bad, [Extent(0, 90, 20)])
        assert 40 == distance(bad, [Extent(0, 190, 10), Extent(0, 5000, 1)])
        assert 90 == distance(bad, [Extent(0, 1100, 10)])
