"""Measures the datanode's processor time per ReadChunk of 64 KiB against bare gRPC.

The floor is a process without product code (`bench.clients.get_baseline`). It answers the same
request with a stream of one message: 64 KiB that one pread returned. The product side is an agent,
whose calls name the datanode and have deadlines, as those of clients do. Both have the same data,
in the page cache, and read it in order, so no disk is measured. One client calls both sides in
alternation, from one thread and from four. Its processor time is not counted.

BENCH_READCHUNK_CALLS is the number of calls per round (3000), BENCH_READCHUNK_ROUNDS the number of
rounds (7).
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import grpc

from bench.clients.measured_process import BenchProcess, Cost, node_cpu_s, paired
from bench.measure import Measure, at_most
from bench.scans.real_agent import running
from bench.scans.scan_world import DATANODE, Shape, fill
from merkle.replica import ContainerId
from suture.wire.mapping.addressee import ADDRESSEE_HEADER
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

CONTAINER: Final = ContainerId(1)
SHAPE: Final = Shape(block_count=16, chunk_count=16, chunk_bytes=64 * 1024)
THREADS: Final = (1, 4)
CPU_MAX: Final = 1.5
TIMEOUT_S: Final = 60.0
METHOD: Final = "/suture.v1.Datanode/ReadChunk"
FLOOR_METHOD: Final = "/floor/chunk"


def measures() -> list[Measure]:
    """Read chunks from both sides, with each number of threads."""
    calls = int(os.environ.get("BENCH_READCHUNK_CALLS", "3000"))
    rounds = int(os.environ.get("BENCH_READCHUNK_ROUNDS", "7"))
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as directory:
        folder = Path(directory)
        chunks = fill(folder / "volume", CONTAINER, SHAPE)
        same = folder / "same.bin"
        same.write_bytes(b"".join(file.read_bytes() for file in chunks.iterdir()))
        floor = BenchProcess("bench.clients.get_baseline", "serve", str(same))
        try:
            with running(folder, folder / "volume", "enabled = false\n") as agent:
                own = Reader(agent.address, METHOD, lambda: node_cpu_s(agent.process))
                bare = Reader(str(floor.hello["address"]), FLOOR_METHOD, floor.cpu_s)
                return [
                    measure
                    for threads in THREADS
                    for measure in compared(own, bare, calls, threads, rounds)
                ]
        finally:
            floor.close()


class Reader:
    """A client of one of the two servers."""

    def __init__(self, address: str, method: str, cpu_s: Callable[[], float]) -> None:
        """`cpu_s` returns the processor seconds of the server."""
        self._read: Any = grpc.insecure_channel(address).unary_stream(method)
        self._cpu_s = cpu_s

    def read(self, requests: Sequence[bytes], threads: int) -> Cost:
        """Send each request once, from several threads; return the time, and the processor time of
        the server."""

        def work(first: int) -> None:
            for request in requests[first::threads]:
                header = ((ADDRESSEE_HEADER, DATANODE),)
                (answer,) = self._read(request, timeout=TIMEOUT_S, metadata=header)
                assert len(answer) >= SHAPE.chunk_bytes

        before_s, begun_s = self._cpu_s(), perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        return Cost(perf_counter() - begun_s, self._cpu_s() - before_s)


def compared(own: Reader, bare: Reader, calls: int, threads: int, rounds: int) -> list[Measure]:
    """Compare the servers for one number of threads."""
    requests = [request(number) for number in range(calls)]
    for side in (own, bare):
        side.read(requests[:500], threads)  # to warm up
    pairs = paired(
        lambda: own.read(requests, threads), lambda: bare.read(requests, threads), rounds
    )
    own_ms, bare_ms = (
        statistics.median(one.cpu_s for one in side) * 1000 / calls
        for side in (pairs.own, pairs.floor)
    )
    name = f"readchunk, {threads} threads" if threads > 1 else "readchunk, 1 thread"
    return [
        Measure(f"{name}: processor time, datanode", own_ms, "ms/call", f"bare gRPC {bare_ms:.3f}"),
        at_most(f"{name}: processor time of bare gRPC's", pairs.cpu(), "x", CPU_MAX),
        Measure(f"{name}: speed of bare gRPC's", pairs.speed(), "x"),
    ]


def request(number: int) -> bytes:
    """Return a request for one of the chunks, in the order of their numbers."""
    block, chunk = divmod(number % (SHAPE.block_count * SHAPE.chunk_count), SHAPE.chunk_count)
    key = container_pb2.BlockId(container_id=CONTAINER, local_id=block + 1)
    asked = pb.ReadChunkRequest(block_id=key, offset=chunk * SHAPE.chunk_bytes)
    return asked.SerializeToString()
