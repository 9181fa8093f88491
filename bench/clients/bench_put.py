"""Measures `put` of one large file and of many small ones, against floors in the same run.

    gRPC, O_DIRECT   the large file as one bare gRPC stream to each of three processes that write
                     it the same way: past the page cache, files of 16 MiB, each synced with its
                     name and an index commit before the answer. One answer in all; the file
                     is in the sender's memory before the clock starts
    one by one       each small file in one bare gRPC call to each of three processes that make it
                     durable as an agent does: its bytes, its name, an index commit
                     (single puts take a call of `Client.put` each, from 1, 4 and 16 threads)
    one process      the bytes of three replicas written by one process, O_DIRECT and fdatasync for
                     each 16 MiB: what the disk takes; for information

The product side is a control plane, three agents and the client, each in its own process, with
their other work: heartbeats, containers, keys. Processor seconds are those of all processes of a
side. The floors use no product code (`bench.clients.put_baseline`). Before each round the file
systems are synced, so that no side pays for the other's writes; ratios are medians over pairs,
whose order alternates.

BENCH_PUT_MIB is the size of the large file (256), BENCH_PUT_FILES the number of small ones (600),
BENCH_PUT_ROUNDS the number of pairs (5), BENCH_PUT_FOLDER the place (the temporary folder).
"""

import mmap
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.clients.measured_process import BenchProcess, Cost, cluster_cpu_s, paired
from bench.measure import Measure, at_least, at_most
from tools.demo.cluster import Cluster

MIB: Final = 1024**2
FILE_BYTES: Final = 16 * MIB
SMALL_BYTES: Final = 8 * 1024
REPLICAS: Final = 3
LANES: Final = 4
SINGLE_THREADS: Final = (1, 4, 16)
CONTAINER_BYTES_MAX: Final = 1024**3
LARGE_RATIO_MIN: Final = 0.5
LARGE_CPU_MAX: Final = 1.6
SMALL_RATIO_MIN: Final = 0.9
SMALL_RATIO_BEFORE: Final = 0.41  # when each small file took a separate call to each replica
SMALL_GAIN_MIN: Final = 2.5


def measures() -> list[Measure]:
    """Measure puts of the large file and of the small files."""
    large_mib = int(os.environ.get("BENCH_PUT_MIB", "256")) // 16 * 16
    small_count = int(os.environ.get("BENCH_PUT_FILES", "600"))
    rounds = int(os.environ.get("BENCH_PUT_ROUNDS", "5"))
    parent = os.environ.get("BENCH_PUT_FOLDER")
    with (
        tempfile.TemporaryDirectory(prefix="suture-bench-", dir=parent) as directory,
        ExitStack() as stack,
    ):
        root = Path(directory)
        large, small = prepared(root, large_mib, small_count)
        own = SuturePut(root, stack)
        floor = PutBaseline(root, stack)
        own.put(f"large {large} warm")
        floor.put(f"large {large}")
        return [
            *large_measures(own, floor, large, large_mib, rounds, root),
            *small_measures(own, floor, small, small_count, rounds),
            *[
                measure
                for threads in SINGLE_THREADS
                for measure in single_measures(own, floor, small, small_count, rounds, threads)
            ],
        ]


def prepared(root: Path, large_mib: int, small_count: int) -> tuple[Path, Path]:
    """Create the files to put; return the large file, and the folder of the small files."""
    large, small = root / "large.bin", root / "small"
    source = random.Random(8)  # noqa: S311  # the same bytes in each run
    with large.open("wb") as file:
        for _ in range(large_mib):
            file.write(source.randbytes(MIB))
    small.mkdir()
    for number in range(small_count):
        (small / f"{number:06}").write_bytes(source.randbytes(SMALL_BYTES))
    return large, small


class SuturePut:
    """The product's cluster and client."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._cluster = stack.enter_context(
            Cluster(
                root / "cluster",
                agents=REPLICAS,
                volumes=1,
                container_bytes_max=CONTAINER_BYTES_MAX,
            )
        )
        self._client = BenchProcess("bench.clients.put_suture", self._cluster.scm.address)
        stack.callback(self._client.close)
        self._number = 0

    def put(self, line: str) -> Cost:
        """Make the client run a put under a new key; return its cost."""
        self._number += 1
        return cost(lambda: self._client.ask(f"{line}-{self._number}")["s"], self._cpu_s)

    def _cpu_s(self) -> float:
        """Return the processor seconds of all processes so far."""
        return self._client.cpu_s() + cluster_cpu_s(self._cluster)


class PutBaseline:
    """The floor: three receivers and a sender, without product code."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._keepers = []
        for index in range(REPLICAS):
            folder = root / f"floor{index}"
            folder.mkdir()
            self._keepers.append(BenchProcess("bench.clients.put_baseline", "keep", str(folder)))
        self._sender = BenchProcess("bench.clients.put_baseline", "send")
        for end in (*self._keepers, self._sender):
            stack.callback(end.close)

    def put(self, line: str) -> Cost:
        """Make the sender send files to all receivers; return the cost."""
        addresses = " ".join(str(keeper.hello["address"]) for keeper in self._keepers)
        return cost(lambda: self._sender.ask(f"{line} {addresses}")["s"], self._cpu_s)

    def _cpu_s(self) -> float:
        return sum(end.cpu_s() for end in (*self._keepers, self._sender))


def cost(put: Callable[[], float], cpu_s: Callable[[], float]) -> Cost:
    """Sync all disks, run a put, and return its cost."""
    os.sync()
    before_s = cpu_s()
    wall_s = put()
    return Cost(wall_s, cpu_s() - before_s)


def large_measures(
    own: SuturePut, floor: PutBaseline, large: Path, large_mib: int, rounds: int, root: Path
) -> list[Measure]:
    """Measure puts of the large file, compared with the floor."""
    pairs = paired(
        lambda: own.put(f"large {large} large"), lambda: floor.put(f"large {large}"), rounds
    )
    plain_s = statistics.median(written_s(root / "plain", large_mib) for _ in range(rounds))
    own_s, floor_s = (
        statistics.median(c.wall_s for c in side) for side in (pairs.own, pairs.floor)
    )
    own_cpu_s, floor_cpu_s = (
        statistics.median(c.cpu_s for c in side) * 1000 / large_mib / 1.048576
        for side in (pairs.own, pairs.floor)
    )
    return [
        Measure(
            "put large: speed",
            large_mib * 1.048576 / own_s,
            "MB/s",
            f"gRPC, O_DIRECT {large_mib * 1.048576 / floor_s:,.0f}; "
            f"one process {large_mib * 1.048576 / plain_s:,.0f}",
        ),
        at_least("put large: of gRPC, O_DIRECT", pairs.speed(), "x", LARGE_RATIO_MIN),
        Measure(
            "put large: processor time, all", own_cpu_s, "s/GB", f"gRPC, O_DIRECT {floor_cpu_s:.2f}"
        ),
        at_most("put large: processor time of gRPC's", pairs.cpu(), "x", LARGE_CPU_MAX),
    ]


def small_measures(
    own: SuturePut, floor: PutBaseline, small: Path, small_count: int, rounds: int
) -> list[Measure]:
    """Measure puts of all small files in one call, compared with the floor."""
    line = f"small {small} {LANES}"
    pairs = paired(lambda: own.put(f"{line} small"), lambda: floor.put(line), rounds)
    own_s, floor_s = (
        statistics.median(c.wall_s for c in side) for side in (pairs.own, pairs.floor)
    )
    own_cpu_ms, floor_cpu_ms = (
        statistics.median(c.cpu_s for c in side) * 1000 / small_count
        for side in (pairs.own, pairs.floor)
    )
    return [
        Measure(
            "put small: files",
            small_count / own_s,
            "1/s",
            f"one by one {small_count / floor_s:,.0f}",
        ),
        at_least("put small: of gRPC one by one", pairs.speed(), "x", SMALL_RATIO_MIN),
        at_least(
            "put small: of what it was",
            pairs.speed() / SMALL_RATIO_BEFORE,
            "x",
            SMALL_GAIN_MIN,
            compared_with=f"then {SMALL_RATIO_BEFORE} of one by one",
        ),
        Measure(
            "put small: processor time, all",
            own_cpu_ms,
            "ms/file",
            f"one by one {floor_cpu_ms:.2f}",
        ),
        Measure("put small: processor time of gRPC's", pairs.cpu(), "x"),
    ]


def single_measures(
    own: SuturePut, floor: PutBaseline, small: Path, small_count: int, rounds: int, threads: int
) -> list[Measure]:
    """Measure puts of the small files in one call each, compared with the floor."""
    pairs = paired(
        lambda: own.put(f"single {small} {threads} single-{threads}"),
        lambda: floor.put(f"small {small} {threads}"),
        rounds,
    )
    own_s, floor_s = (
        statistics.median(c.wall_s for c in side) for side in (pairs.own, pairs.floor)
    )
    own_cpu_ms, floor_cpu_ms = (
        statistics.median(c.cpu_s for c in side) * 1000 / small_count
        for side in (pairs.own, pairs.floor)
    )
    name = f"put single, {threads} at once"
    return [
        Measure(
            f"{name}: files", small_count / own_s, "1/s", f"one by one {small_count / floor_s:,.0f}"
        ),
        Measure(f"{name}: of gRPC one by one", pairs.speed(), "x"),
        Measure(
            f"{name}: processor time, all", own_cpu_ms, "ms/file", f"one by one {floor_cpu_ms:.2f}"
        ),
        Measure(f"{name}: processor time of gRPC's", pairs.cpu(), "x"),
    ]


def written_s(path: Path, large_mib: int) -> float:
    """Write the bytes of three replicas with direct I/O; return the seconds that this takes."""
    os.sync()
    begun_s = time.perf_counter()
    with mmap.mmap(-1, 4 * MIB) as buffer:
        for _ in range(REPLICAS * large_mib * MIB // FILE_BYTES):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
            for offset in range(0, FILE_BYTES, len(buffer)):
                os.pwrite(fd, buffer, offset)
            os.fdatasync(fd)
            os.close(fd)
    return time.perf_counter() - begun_s
