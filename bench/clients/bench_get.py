"""Measures `get` of many small files and of a large one, against bare gRPC.

    as many calls    each small file in two bare gRPC calls: to a process in place of the control
                     plane, and to one of three in place of a datanode, which reads it with a pread
    one stream       the large file as one bare gRPC stream of messages of 1 MiB

A floor is the minimum cost to compare with. The floors use no product code
(`bench.clients.get_baseline`): byte strings instead of messages, and no verification. The product
side is a control plane, three agents and the client, each in its own process. Processor seconds are
those of all processes of a side. Ratios are medians over pairs of runs, whose order alternates. All
files are in the page cache, so no disk is measured.

BENCH_GET_FILES is the number of small files (300), BENCH_GET_READS the number read per round
(1200), by four threads, BENCH_GET_MIB the size of the large one (256), BENCH_GET_ROUNDS the number
of pairs (7).
"""

import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.clients.measured_process import (
    BenchProcess,
    Cost,
    Pairs,
    cluster_cpu_s,
    node_cpu_s,
    paired,
)
from bench.measure import Measure, at_least, at_most
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from tools.demo.cluster import Cluster

MIB: Final = 1024**2
SMALL_BYTES: Final = 8 * 1024
REPLICAS: Final = 3
THREADS: Final = 4
SMALL_CPU_MAX: Final = 1.3
SPREAD_MAX: Final = 1.2
LARGE_SPEED_MIN: Final = 0.7


def measures() -> list[Measure]:
    """Store files, and read them in alternation with the floors."""
    file_count = int(os.environ.get("BENCH_GET_FILES", "300"))
    read_count = int(os.environ.get("BENCH_GET_READS", "1200"))
    large_mib = int(os.environ.get("BENCH_GET_MIB", "256"))
    rounds = int(os.environ.get("BENCH_GET_ROUNDS", "7"))
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as directory, ExitStack() as stack:
        root = Path(directory)
        own = SutureGet(root, stack)
        own.store(root, file_count, large_mib)
        floor = GetBaseline(stack, root / "large.bin")
        small = f"small {file_count} {read_count} {THREADS}"
        for side in (own, floor):
            side.get(small)
            side.get("large")
        before = own.shares_s()
        small_pairs = paired(lambda: own.get(small), lambda: floor.get(small), rounds)
        shares = [now - then for then, now in zip(before, own.shares_s(), strict=True)]
        large_pairs = paired(lambda: own.get("large"), lambda: floor.get("large"), rounds)
    return [
        *small_measures(small_pairs, shares, read_count),
        *large_measures(large_pairs, large_mib),
    ]


def small_measures(pairs: Pairs, shares: Sequence[float], read_count: int) -> list[Measure]:
    """Compare the reading of small files."""
    own, floor = pairs.own, pairs.floor
    own_cpu_ms, floor_cpu_ms = (
        statistics.median(one.cpu_s for one in side) * 1000 / read_count for side in (own, floor)
    )
    return [
        Measure(
            "get small: files",
            read_count / statistics.median(one.wall_s for one in own),
            "1/s",
            f"as many calls {read_count / statistics.median(one.wall_s for one in floor):,.0f}",
        ),
        Measure("get small: of gRPC with as many calls", pairs.speed(), "x"),
        Measure(
            "get small: processor time, all",
            own_cpu_ms,
            "ms/file",
            f"as many calls {floor_cpu_ms:.2f}",
        ),
        at_most("get small: processor time of gRPC's", pairs.cpu(), "x", SMALL_CPU_MAX),
        at_most(
            "get small: busiest datanode beside the idlest, processor time",
            max(shares) / max(min(shares), 0.01),
            "x",
            SPREAD_MAX,
        ),
    ]


def large_measures(pairs: Pairs, large_mib: int) -> list[Measure]:
    """Compare the reading of the large file."""
    own_s, floor_s = (
        statistics.median(one.wall_s for one in side) for side in (pairs.own, pairs.floor)
    )
    own_cpu_s, floor_cpu_s = (
        statistics.median(one.cpu_s for one in side) * 1000 / large_mib / 1.048576
        for side in (pairs.own, pairs.floor)
    )
    return [
        Measure(
            "get large: speed",
            large_mib * 1.048576 / own_s,
            "MB/s",
            f"one stream {large_mib * 1.048576 / floor_s:,.0f}",
        ),
        at_least("get large: of one bare stream", pairs.speed(), "x", LARGE_SPEED_MIN),
        Measure(
            "get large: processor time, all", own_cpu_s, "s/GB", f"one stream {floor_cpu_s:.2f}"
        ),
        Measure("get large: processor time of the stream's", pairs.cpu(), "x"),
    ]


class SutureGet:
    """The product's cluster and client."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._cluster = stack.enter_context(
            Cluster(
                root / "cluster",
                agents=REPLICAS,
                volumes=1,
                container_bytes_max=1024 * MIB,
                agent_sections="[scan]\nenabled = false\nwatch = false\n",
            )
        )
        self._client = BenchProcess("bench.clients.get_suture", self._cluster.scm.address)
        stack.callback(self._client.close)

    def store(self, root: Path, file_count: int, large_mib: int) -> None:
        """Store the small files and the large file, each on all datanodes."""
        source = random.Random(8)  # noqa: S311 - the same bytes in each run
        small, large = root / "small.bin", root / "large.bin"
        small.write_bytes(source.randbytes(SMALL_BYTES))
        with large.open("wb") as file:
            for _ in range(large_mib):
                file.write(source.randbytes(MIB))
        files = [SourceFile(f"small/{number}", small, SMALL_BYTES) for number in range(file_count)]
        with ClusterClient(self._cluster.scm.address) as client:
            client.put([*files, SourceFile("large", large, large_mib * MIB)], close=True)

    def get(self, line: str) -> Cost:
        """Have the client read."""
        before_s = self._cpu_s()
        wall_s = float(self._client.ask(line)["s"])
        return Cost(wall_s, self._cpu_s() - before_s)

    def shares_s(self) -> list[float]:
        """Return the processor seconds of each datanode so far."""
        return [node_cpu_s(node) for node in self._cluster.nodes]

    def _cpu_s(self) -> float:
        return self._client.cpu_s() + cluster_cpu_s(self._cluster)


class GetBaseline:
    """The floor: four servers and a client, without product code."""

    def __init__(self, stack: ExitStack, large: Path) -> None:
        self._servers = [
            BenchProcess("bench.clients.get_baseline", "serve", str(large))
            for _ in range(1 + REPLICAS)
        ]
        addresses = [str(server.hello["address"]) for server in self._servers]
        self._client = BenchProcess("bench.clients.get_baseline", "read", *addresses)
        for end in (*self._servers, self._client):
            stack.callback(end.close)

    def get(self, line: str) -> Cost:
        """Have the client read."""
        before_s = self._cpu_s()
        wall_s = float(self._client.ask(line)["s"])
        return Cost(wall_s, self._cpu_s() - before_s)

    def _cpu_s(self) -> float:
        return sum(end.cpu_s() for end in (*self._servers, self._client))
