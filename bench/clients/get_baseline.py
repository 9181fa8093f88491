"""The floor for reading: gRPC without product code, controlled by lines.

    python -m bench.clients.get_baseline serve LARGE            answers with bytes of that file
    python -m bench.clients.get_baseline read SCM DATANODE...   asks, as `get_suture` does

Messages are byte strings, because the cost of protobuf is part of the comparison.
"""

import itertools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from bench.clients.line_server import keep_heaps, work_when_told

MIB: Final = 1024**2
SMALL_BYTES: Final = 8 * 1024
CHUNK_BYTES: Final = 64 * 1024
LOOKUP_BYTES: Final = 300  # a key, its block and three addresses
ASKED: Final = bytes(40)
SERVICE: Final = "floor"
TIMEOUT_S: Final = 60.0
THREAD_COUNT: Final = 16


def serve(path: str) -> None:
    """Serve bytes of the file `path` until stdin ends."""
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    turns = itertools.count()

    def lookup(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return bytes(LOOKUP_BYTES)

    def small(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return os.pread(fd, SMALL_BYTES, 0)

    def chunk(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield os.pread(fd, CHUNK_BYTES, next(turns) * CHUNK_BYTES % size)

    def large(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        for offset in range(0, size, MIB):
            yield os.pread(fd, MIB, offset)

    server = grpc.server(ThreadPoolExecutor(THREAD_COUNT))
    handlers: dict[str, Any] = {
        "lookup": grpc.unary_unary_rpc_method_handler(lookup),
        "small": grpc.unary_unary_rpc_method_handler(small),
        "chunk": grpc.unary_stream_rpc_method_handler(chunk),
        "large": grpc.unary_stream_rpc_method_handler(large),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    work_when_told({}, address=f"127.0.0.1:{port}")
    server.stop(0)


def read(scm: str, datanodes: list[str]) -> None:
    """Read from the servers as the lines on stdin command."""
    lookup: Any = grpc.insecure_channel(scm).unary_unary(f"/{SERVICE}/lookup")
    channels = [grpc.insecure_channel(address) for address in datanodes]
    smalls: list[Any] = [channel.unary_unary(f"/{SERVICE}/small") for channel in channels]
    large: Any = channels[0].unary_stream(f"/{SERVICE}/large")

    def read_small(_files: str, read_count: str, thread_count: str) -> None:
        reads, threads = int(read_count), int(thread_count)

        def work(first: int) -> None:
            for _number, small in zip(
                range(first, reads, threads), itertools.cycle(smalls), strict=False
            ):
                lookup(ASKED, timeout=TIMEOUT_S)
                small(ASKED, timeout=TIMEOUT_S)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))

    def read_large() -> None:
        for _ in large(ASKED, timeout=TIMEOUT_S):
            pass

    work_when_told({"small": read_small, "large": read_large})


if __name__ == "__main__":
    keep_heaps()
    match sys.argv[1:]:
        case ["serve", path]:
            serve(path)
        case ["read", scm, *datanodes]:
            read(scm, datanodes)
        case other:
            raise SystemExit(f"nobody understands {other}")
