"""Measures pushes of replicas over loopback against their transport, in the same run.

    bare stream     gRPC messages of the same size from one process to one that drops them, over a
                    channel with the same options, as grpcio comes; and with the agent's heaps.
                    As it comes, how fast it is depends on where glibc happens to have put its
                    memory: so each round has processes of its own
    the disk        as much read and written side by side, directly, in pieces of the same size:
                    here one disk is under both ends
    plain files     as many files of the same size created, written and closed by one thread, then
                    synced together: what the file system takes for a file for each small block
    tar             the small blocks through `tar -c | tar -x`, from cold, then synced together: a
                    copy without a network that checks nothing. Ozone sends replicas as such streams
    own files       the small blocks at the source, each in a file of its own: what a scan of them
                    costs beside one of the copy, where they share a file

Sources, target and sinks are separate processes, the former with stores on a real file system.
Between two hosts one disk is read and another is written; if one disk does both, the copy gets
half. So the large container is pushed twice: from a volume on a second device, for which memory
serves (BENCH_REPLICATE_SOURCE, /dev/shm), and from one on the target's disk. BENCH_REPLICATE_MIB is
the size of the large container (1,024), BENCH_REPLICATE_BLOCKS the number of small blocks of the
other (50,000), BENCH_REPLICATE_FOLDER the place (the temporary folder).

No small file is deleted before the end, because creating files soon after many deletes was several
times slower here. Apparently ext4 without a journal keeps the inodes of deleted files unused. If a
host reclaims free memory from its virtual machine, each page costs some 8 us at its first use.
Plain files show both effects.
"""

import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.measure import Measure, at_least, at_most
from bench.repairs.replicate_ends import MIB
from bench.scans.scan_world import Shape, fill
from merkle.replica import ContainerId
from suture.runtime.durable import sync_file_system
from tests.support.faults.page_cache import cached_pages, drop_pages

MEMORY: Final = "/dev/shm"  # noqa: S108  # a folder of our own is made in it
TAR: Final = "/bin/tar"
LARGE: Final = ContainerId(1)
SMALL: Final = ContainerId(2)
CHUNKS_PER_BLOCK: Final = 32
CHUNK_BYTES: Final = 4 * MIB
SMALL_BYTES: Final = 10_000
ROUNDS: Final = 9  # one pair of new processes means little: their bare streams differ by half
SMALL_ROUNDS: Final = 5  # each leaves its files until the end
RATIO_MIN: Final = 0.8
TAR_RATIO_MIN: Final = 1.5
SMALL_TIME_MAX: Final = 2.0
SMALL_PER_S_MIN: Final = 20_000
PEAK_MIB_MAX: Final = 200
CACHED_SHARE_MAX: Final = 0.01
PAGE_BYTES: Final = 4_096
MIB_PER_GIB: Final = 1024


class End:
    """A process at one end of the transfers, which is controlled by lines."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.repairs.replicate_ends", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


class Series:
    """The costs of all rounds of one kind of transfer: seconds, and processor seconds of both
    ends.
    """

    def __init__(self) -> None:
        self.taken_s: list[float] = []
        self.cpu_s: list[list[float]] = []

    def run(self, line: str, source: End, target: End) -> None:
        """Run one transfer, and record its cost."""
        before = [end.ask("cpu")["s"] for end in (source, target)]
        self.taken_s.append(source.ask(line)["s"])
        after = [end.ask("cpu")["s"] for end in (source, target)]
        self.cpu_s.append([end - begin for begin, end in zip(before, after, strict=True)])

    @property
    def median_s(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.taken_s)

    def median_cpu_s(self) -> tuple[float, float]:
        """Return the median processor seconds of source and target."""
        source, target = (statistics.median(column) for column in zip(*self.cpu_s, strict=True))
        return source, target


def measures() -> list[Measure]:
    """Measure pushes of the large container and of the container with small blocks."""
    parent = os.environ.get("BENCH_REPLICATE_FOLDER")
    second = os.environ.get("BENCH_REPLICATE_SOURCE", MEMORY)
    large_mib = int(os.environ.get("BENCH_REPLICATE_MIB", "1024"))
    small_count = int(os.environ.get("BENCH_REPLICATE_BLOCKS", "50000"))
    with (
        tempfile.TemporaryDirectory(prefix="suture-bench-", dir=parent) as directory,
        tempfile.TemporaryDirectory(prefix="suture-bench-", dir=second) as elsewhere,
    ):
        folder = Path(directory)
        prepare_large(Path(elsewhere), large_mib)
        prepare_large(folder / "source", large_mib)
        fill(folder / "source", SMALL, Shape(small_count, 1, SMALL_BYTES))
        with (
            End("source", str(folder / "source")) as source,
            End("source", elsewhere) as other,
        ):
            return [
                *large(source, other, folder, large_mib),
                *small(source, folder, small_count),
            ]


def prepare_large(folder: Path, large_mib: int) -> None:
    """Fill a store with the large container."""
    chunk_count = max(1, large_mib * MIB // CHUNK_BYTES)
    per_block = min(CHUNKS_PER_BLOCK, chunk_count)
    fill(folder, LARGE, Shape(chunk_count // per_block, per_block, CHUNK_BYTES))


def large(source: End, other: End, folder: Path, large_mib: int) -> list[Measure]:
    """Measure pushes of the large container from both sources, alternating with bare streams and
    with plain disk I/O."""
    own, near, bare, shared = Series(), Series(), Series(), Series()
    disk_s, cached_share = [], 0.0
    chunks = chunks_of(folder / "source", LARGE)
    drop(chunks)
    with (
        End("target", str(folder / "target")) as target,
        End("stream", "shared") as shared_stream,
        End("sink", "shared") as shared_sink,
    ):
        for end in (source, target):
            end.ask("clear")
        for _ in range(ROUNDS):
            size_bytes = large_mib * MIB
            with End("stream") as stream, End("sink") as sink:
                bare.run(f"bare {size_bytes} {sink.hello['address']}", stream, sink)
            own.run(f"push {LARGE} {target.hello['address']}", other, target)
            target.ask(f"delete {LARGE}")
            line = f"bare {size_bytes} {shared_sink.hello['address']}"
            shared.run(line, shared_stream, shared_sink)
            disk_s.append(copied_s(chunks, folder / "copied"))
            near.run(f"push {LARGE} {target.hello['address']}", source, target)
            here = Path(target.ask(f"path {LARGE}")["path"])
            cached_share = max(cached_share, cached(chunks), cached(here))
            target.ask(f"delete {LARGE}")
        peaks = [end.ask("rss")["peak_mib"] for end in (source, target)]
    disk_median_s = statistics.median(disk_s)
    slower_s = max(bare.median_s, disk_median_s)
    bare_speed, shared_speed, disk_speed = (
        f"{large_mib / taken_s:,.0f}" for taken_s in (bare.median_s, shared.median_s, disk_median_s)
    )
    return [
        Measure(
            "replicate large: speed",
            large_mib / own.median_s,
            "MiB/s",
            f"bare stream {bare_speed}, with our heaps {shared_speed}",
        ),
        at_least("replicate large: of a bare stream", bare.median_s / own.median_s, "x", RATIO_MIN),
        *processor_times("large", own, bare, large_mib),
        Measure(
            "replicate large, one disk: speed",
            large_mib / near.median_s,
            "MiB/s",
            f"the disk alone {disk_speed}",
        ),
        at_least(
            "replicate large, one disk: of the slower of stream and disk",
            slower_s / near.median_s,
            "x",
            RATIO_MIN,
        ),
        *processor_times("large, one disk", near, bare, large_mib),
        *peak_measures("large", peaks),
        at_most("replicate large: left in page cache", cached_share, "share", CACHED_SHARE_MAX),
    ]


def processor_times(which: str, own: Series, bare: Series, large_mib: int) -> list[Measure]:
    """Return the measures of processor seconds per GiB at both ends."""
    pairs = zip(("source", "target"), own.median_cpu_s(), bare.median_cpu_s(), strict=True)
    return [
        Measure(
            f"replicate {which}: processor time, {end}",
            own_s * MIB_PER_GIB / large_mib,
            "s/GiB",
            f"bare stream {bare_s * MIB_PER_GIB / large_mib:.2f}",
        )
        for end, own_s, bare_s in pairs
    ]


def small(source: End, folder: Path, small_count: int) -> list[Measure]:
    """Measure pushes of the container with small blocks, each to a new store, alternating with
    a bare stream, with plain files and with tar.
    """
    own, bare, plain_s, tar_s, peaks = Series(), Series(), [], [], []
    scans: list[tuple[dict[str, Any], dict[str, Any]]] = []  # of source and target
    chunks = chunks_of(folder / "source", SMALL)
    drop(chunks)
    source.ask("clear")
    for index in range(SMALL_ROUNDS):
        plain_s.append(created_s(folder / f"plain-{index}", small_count))
        with End("target", str(folder / f"target-{index}")) as target:
            target.ask("clear")
            own.run(f"push {SMALL} {target.hello['address']}", source, target)
            peaks.append(target.ask("rss")["peak_mib"])
            scans.append((source.ask(f"scan {SMALL}"), target.ask(f"scan {SMALL}")))
        with End("stream") as stream, End("sink") as sink:
            bare.run(f"bare {small_count * SMALL_BYTES} {sink.hello['address']}", stream, sink)
        tar_s.append(tarred_s(chunks, folder / f"tar-{index}"))
        drop(chunks)
    plain_median_s, tar_median_s = statistics.median(plain_s), statistics.median(tar_s)
    source_us, target_us = (1e6 * taken_s / small_count for taken_s in own.median_cpu_s())
    return [
        at_least(
            "replicate small: blocks",
            small_count / own.median_s,
            "1/s",
            SMALL_PER_S_MIN,
            compared_with=f"plain files {small_count / plain_median_s:,.0f}/s",
        ),
        at_most(
            "replicate small: time of a bare stream's",
            statistics.median(
                taken_s / bare_s for taken_s, bare_s in zip(own.taken_s, bare.taken_s, strict=True)
            ),
            "x",
            SMALL_TIME_MAX,
            compared_with=f"{bare.median_s:.2f} s, here {own.median_s:.2f} s",
        ),
        Measure("replicate small: of plain files", plain_median_s / own.median_s, "x"),
        at_least(
            "replicate small: of tar",
            tar_median_s / own.median_s,
            "x",
            TAR_RATIO_MIN,
            compared_with=f"tar {small_count / tar_median_s:,.0f}/s",
        ),
        *scan_measures(scans, small_count),
        Measure("replicate small: processor time, source", source_us, "us/block"),
        Measure("replicate small: processor time, target", target_us, "us/block"),
        *peak_measures("small", [source.ask("rss")["peak_mib"], max(peaks)]),
    ]


def scan_measures(
    scans: list[tuple[dict[str, Any], dict[str, Any]]], small_count: int
) -> list[Measure]:
    """Return the cost of scanning the copy, relative to the source."""
    wrong = sum(one["wrong"] for pair in scans for one in pair)
    seconds, cpu = (
        [statistics.median(one[key] for one in column) for column in zip(*scans, strict=True)]
        for key in ("s", "cpu_s")
    )
    return [
        Measure(
            "scan of the copy: blocks",
            small_count / seconds[1],
            "1/s",
            f"own files {small_count / seconds[0]:,.0f}/s",
        ),
        Measure(
            "scan of the copy: processor time",
            1e6 * cpu[1] / small_count,
            "us/block",
            f"own files {1e6 * cpu[0] / small_count:.1f}",
        ),
        at_most("scan of the copy and of the source: found", wrong, "findings", 0),
    ]


def peak_measures(which: str, peaks_mib: list[float]) -> list[Measure]:
    """Return the memory peaks of source and target."""
    return [
        at_most(f"replicate {which}: peak memory, {end}", peak_mib, "MiB", PEAK_MIB_MAX)
        for end, peak_mib in zip(("source", "target"), peaks_mib, strict=True)
    ]


def copied_s(chunks: Path, copy: Path) -> float:
    """Read the block files, and at the same time write as many bytes to another file, with direct
    I/O and one thread each. Return the seconds until the written file is durable.
    """
    files = sorted(chunks.iterdir())
    size_bytes = sum(file.stat().st_size for file in files)

    def read() -> None:
        with mmap.mmap(-1, MIB) as buffer:
            for file in files:
                fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
                offset = 0
                while count := os.preadv(fd, [buffer], offset):
                    offset += count
                os.close(fd)

    reader = threading.Thread(target=read)
    begun_s = time.perf_counter()
    reader.start()
    with mmap.mmap(-1, MIB) as buffer:
        fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        for offset in range(0, size_bytes, MIB):
            os.pwrite(fd, buffer, offset)
        os.fsync(fd)
        os.close(fd)
    reader.join()
    taken_s = time.perf_counter() - begun_s
    copy.unlink()
    return taken_s


def created_s(folder: Path, count: int) -> float:
    """Create `count` small files and sync them; return the seconds that this takes."""
    folder.mkdir()
    directory_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    data = os.urandom(SMALL_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    begun_s = time.perf_counter()
    for number in range(count):
        fd = os.open(f"{number}.block", flags, 0o640, dir_fd=directory_fd)
        os.write(fd, data)
        os.close(fd)
    sync_file_system(directory_fd)
    taken_s = time.perf_counter() - begun_s
    os.close(directory_fd)
    return taken_s


def tarred_s(chunks: Path, folder: Path) -> float:
    """Copy the block files with `tar -c | tar -x` and sync them; return the seconds that this
    takes."""
    folder.mkdir()
    begun_s = time.perf_counter()
    with subprocess.Popen([TAR, "-C", chunks, "-c", "."], stdout=subprocess.PIPE) as packing:
        subprocess.run([TAR, "-C", folder, "-x"], stdin=packing.stdout, check=True)
    if packing.returncode:
        raise RuntimeError(f"tar ended with {packing.returncode}")
    directory_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    sync_file_system(directory_fd)
    taken_s = time.perf_counter() - begun_s
    os.close(directory_fd)
    return taken_s


def chunks_of(folder: Path, container_id: ContainerId) -> Path:
    """Return the path of a replica's block files."""
    [found] = folder.glob(f"hdds/*/current/*/{container_id}/chunks")
    return found


def drop(chunks: Path) -> None:
    """Drop the block files from the page cache."""
    for path in chunks.iterdir():
        drop_pages(path)


def cached(chunks: Path) -> float:
    """Return the share of the block files' bytes that is in the page cache."""
    pages = sum(cached_pages(path) for path in chunks.iterdir())
    return pages * PAGE_BYTES / max(1, sum(path.stat().st_size for path in chunks.iterdir()))
