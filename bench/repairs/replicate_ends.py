"""The ends of a transfer, each in its own process: `python -m bench.repairs.replicate_ends ROLE`.

    target FOLDER    serves ImportContainer
    source FOLDER    reads lines "push ID ADDRESS"
    sink             serves the same method, drops every message
    stream           reads lines "bare BYTES ADDRESS"

The first two use memory as the agent does; the others use gRPC's default or, with "shared"
appended, the agent's heaps. All read lines and print one line of JSON for each. "scan ID" scans a
replica of one of the first two; "rss" prints the peak of resident memory as the kernel counts it
(VmHWM), "clear" resets it; "cpu" prints the processor seconds so far.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from agent.leases import ContainerLeases
from agent.services.import_handlers import ImportHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.read_handlers import ReadHandlers
from agent.services.server import build_server
from agent.store.direct_io import ReadBuffers
from agent.store.operations.replica_import import ARRIVALS_MAX
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import ReplicaImporter
from agent.transfer.parts import PART_BYTES, blocks_part
from agent.transfer.replicate import Replicator
from bench.clients.line_server import say
from bench.scans.scan_own import scan
from bench.scans.scan_world import CLUSTER, DATANODE
from merkle.replica import BlockId, ContainerId
from suture.runtime.memory import share_heaps
from suture.wire.clients.channel import open_channel
from suture.wire.clients.peer import Peer
from suture.wire.mapping import rpc_services
from suture.wire.v1 import datanode_pb2

THREADS = 4
MIB = 1024**2


def open_store(folder: Path, name: str) -> ReplicaStore:
    """Open the store of one end."""
    options = StoreOptions(reserve_bytes=0)
    return ReplicaStore.open([folder], cluster_id=CLUSTER, datanode_id=name, options=options)


def peak_mib() -> float:
    """Return the peak of this process's resident memory since `clear`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell VmHWM")


def clear_peak() -> None:
    """Reset the peak."""
    Path("/proc/self/clear_refs").write_text("5")


def scanned(store: ReplicaStore, container_id: str) -> dict[str, Any]:
    """Scan a replica; return seconds and processor seconds."""
    buffers = ReadBuffers()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    outcome = scan(store, ContainerId(int(container_id)), buffers)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return {"s": wall_s, "cpu_s": cpu_s, "wrong": outcome.finding_count}


def told(word: str) -> dict[str, Any]:
    """Return the answer to a line that all roles accept."""
    match word:
        case "clear":
            clear_peak()
            return {}
        case "rss":
            return {"peak_mib": peak_mib()}
        case "cpu":
            return {"s": time.process_time()}
    raise ValueError(f"nobody understands {word!r}")


class Sink:
    """Receives data and drops it."""

    def ImportContainer(  # noqa: N802
        self, parts: Iterator[datanode_pb2.ImportPart], _context: grpc.ServicerContext
    ) -> datanode_pb2.ImportContainerResponse:
        """Read a stream to its end."""
        deque(parts, maxlen=0)
        return datanode_pb2.ImportContainerResponse()


def serve_target(folder: Path) -> None:
    """Serve imports over a store."""
    store = open_store(folder, "dn-target")
    writers = ThreadPoolExecutor(THREADS + ARRIVALS_MAX)
    leases = ContainerLeases()
    importer = ReplicaImporter(
        store=store,
        leases=leases,
        executor=writers,
        now_ms=lambda: 1,
    )
    limits = DatanodeServerLimits()
    groups = [ReadHandlers(store, limits=limits), ImportHandlers(importer)]
    built = build_server(
        groups, "127.0.0.1:0", ThreadPoolExecutor(THREADS), datanode_id="source", limits=limits
    )
    built.server.start()
    say({"address": f"127.0.0.1:{built.port}"})
    for line in sys.stdin:
        words = line.split()
        match words[0]:
            case "delete":
                store.delete_container(ContainerId(int(words[1])), force=True)
                say({})
            case "scan":
                say(scanned(store, words[1]))
            case "path":
                say({"path": str(store.paths(ContainerId(int(words[1]))).chunks)})
            case other:
                say(told(other))


def serve_sink() -> None:
    """Drop the data of the bare stream."""
    sink = grpc.server(
        ThreadPoolExecutor(1), options=[("grpc.max_receive_message_length", 64 * MIB)]
    )
    service = rpc_services.DATANODE
    handlers = rpc_services.method_handlers(service, [Sink()])
    sink.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service.full_name, handlers)]
    )
    port = sink.add_insecure_port("127.0.0.1:0")
    sink.start()
    say({"address": f"127.0.0.1:{port}"})
    for line in sys.stdin:
        say(told(line.strip()))


def run_source(folder: Path) -> None:
    """Push replicas as the lines on stdin command."""
    store = open_store(folder, DATANODE)
    readers = ThreadPoolExecutor(THREADS)
    replicator = Replicator(
        store=store,
        leases=ContainerLeases(),
        executor=readers,
        monotonic_s=time.monotonic,
        scan=lambda _: False,
        on_damage=lambda *_: None,
    )
    say({})
    for line in sys.stdin:
        words = line.split()
        match words[0]:
            case "push":
                with Peer(words[2]) as peer:
                    begun_s = time.perf_counter()
                    outcome = replicator.replicate(
                        ContainerId(int(words[1])), peer, stop=lambda: False
                    )
                    taken_s = time.perf_counter() - begun_s
                say({"s": taken_s, "bytes": outcome.bytes_sent, "blocks": outcome.block_count})
            case "scan":
                say(scanned(store, words[1]))
            case other:
                say(told(other))


def run_stream() -> None:
    """Send bare streams as the lines on stdin command."""
    say({})
    for line in sys.stdin:
        match line.split():
            case ["bare", size_bytes, address]:
                say({"s": bare(address, int(size_bytes))})
            case other:
                say(told(other[0]))


def bare(address: str, size_bytes: int) -> float:
    """Send `size_bytes` in messages of the same kind and size as a push; return the seconds that
    this takes."""
    data = memoryview(bytes(PART_BYTES))
    row = bytes(1024)

    def parts() -> Iterator[bytes]:
        for number in range(size_bytes // PART_BYTES):
            yield blocks_part([BlockId(number + 1)], [row], [PART_BYTES], data)

    channel = open_channel(address)
    stub = rpc_services.Stub(channel, rpc_services.DATANODE, encoders={"ImportContainer": None})
    begun_s = time.perf_counter()
    stub.ImportContainer(parts())
    taken_s = time.perf_counter() - begun_s
    channel.close()
    return taken_s


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["target", folder]:
            share_heaps()
            serve_target(Path(folder))
        case ["source", folder]:
            share_heaps()
            run_source(Path(folder))
        case [role, *memory]:
            if memory:
                share_heaps()
            (serve_sink if role == "sink" else run_stream)()
