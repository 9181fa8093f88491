"""The floor for `put`: a simple implementation of each end in its own process, without product
code.

    python -m bench.clients.put_baseline keep FOLDER     receives, makes durable, answers
    python -m bench.clients.put_baseline send            reads lines "large PATH ADDRESS ..." and
                                              "small FOLDER LANES ADDRESS ..."

large    one gRPC stream of raw bytes to each receiver, in messages of 1 MiB that are read once,
         before the clock starts; O_DIRECT writes of 4 MiB from aligned memory beside the
         receiving, a file for each 16 MiB, fdatasync of each, the directory synced and one LMDB
         commit for each file; heaps that keep what they get
small    one unary call for each file and receiver, three at once, in as many threads as the client
         has lanes: create, pwrite, fdatasync, fsync of the directory, one LMDB commit, then the
         answer
"""

import mmap
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc
import lmdb

from bench.clients.line_server import keep_heaps, work_when_told

MIB: Final = 1024**2
MESSAGE_BYTES: Final = MIB
WRITE_BYTES: Final = 4 * MIB
FILE_BYTES: Final = 16 * MIB
BUFFERS: Final = 2
THREADS: Final = 16
OPTIONS: Final = [
    ("grpc.max_receive_message_length", 64 * MIB),
    ("grpc.max_send_message_length", 64 * MIB),
]
FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Keeper:
    """Receives data and makes it durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._directory_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        (folder / "index").mkdir()
        self._index = lmdb.open(str(folder / "index"), map_size=1024**3)
        self._numbers = count()

    def stream(self, messages: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
        """Write a stream to files with direct I/O, and make them durable."""
        with ThreadPoolExecutor(1) as writer:
            return self._written(messages, writer)

    def _written(self, messages: Iterator[bytes], writer: ThreadPoolExecutor) -> bytes:
        buffers = [memoryview(mmap.mmap(-1, WRITE_BYTES)) for _ in range(BUFFERS)]
        jobs: list[Future[Any]] = []
        filled = offset = total = 0
        fd = self._new(os.O_DIRECT)
        for message in messages:
            buffers[0][filled : filled + len(message)] = message
            filled += len(message)
            if filled == WRITE_BYTES:
                if len(jobs) == BUFFERS - 1:
                    jobs.pop(0).result()
                jobs.append(writer.submit(os.pwrite, fd, buffers[0], offset))
                buffers.append(buffers.pop(0))
                offset, filled, total = offset + WRITE_BYTES, 0, total + WRITE_BYTES
            if offset == FILE_BYTES:
                while jobs:
                    jobs.pop(0).result()
                self._end(fd)
                fd, offset = self._new(os.O_DIRECT), 0
        assert filled == offset == 0, "whole files are sent"
        os.close(fd)
        return str(total).encode()

    def file(self, message: bytes, _context: grpc.ServicerContext) -> bytes:
        """Write one small file, and make it durable."""
        fd = self._new(0)
        os.pwrite(fd, message, 0)
        self._end(fd)
        return b"ok"

    def _new(self, flags: int) -> int:
        return os.open(
            f"{next(self._numbers)}.file", FLAGS | flags, 0o640, dir_fd=self._directory_fd
        )

    def _end(self, fd: int) -> None:
        os.fdatasync(fd)
        os.close(fd)
        os.fsync(self._directory_fd)
        with self._index.begin(write=True) as rows:
            rows.put(next(self._numbers).to_bytes(8), bytes(200))


def keep(folder: Path) -> None:
    """Serve a `Keeper` until stdin ends."""
    keeper = Keeper(folder)
    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
    handlers: dict[str, Any] = {
        "Stream": grpc.stream_unary_rpc_method_handler(keeper.stream),
        "File": grpc.unary_unary_rpc_method_handler(keeper.file),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Floor", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    work_when_told({}, address=f"127.0.0.1:{port}")


def send() -> None:
    """Send files to receivers as the lines on stdin command."""
    channels: dict[str, grpc.Channel] = {}

    def dialled(addresses: list[str]) -> list[grpc.Channel]:
        for address in addresses:
            if address not in channels:
                channels[address] = grpc.insecure_channel(address, OPTIONS)
        return [channels[address] for address in addresses]

    work_when_told(
        {
            "large": lambda path, *addresses: send_large(Path(path), dialled(list(addresses))),
            "small": lambda folder, lanes, *addresses: send_small(
                Path(folder), int(lanes), dialled(list(addresses))
            ),
        }
    )


def send_large(path: Path, channels: list[grpc.Channel]) -> float:
    """Send a file to all receivers concurrently; return the seconds until all have acknowledged
    it."""
    with path.open("rb", buffering=0) as file:
        pieces = list(iter(lambda: file.read(MESSAGE_BYTES), b""))
    size_bytes = sum(map(len, pieces))
    begun_s = time.perf_counter()
    calls: list[Any] = []
    for channel in channels:
        method: Any = channel.stream_unary("/Floor/Stream")
        calls.append(method.future(iter(pieces)))
    assert all(int(call.result()) == size_bytes for call in calls)
    return time.perf_counter() - begun_s


def send_small(folder: Path, lanes: int, channels: list[grpc.Channel]) -> float:
    """Send the files of a folder, `lanes` at a time. Return the seconds until all receivers have
    acknowledged all files.
    """
    methods: list[Any] = [channel.unary_unary("/Floor/File") for channel in channels]

    def put(path: Path) -> None:
        data = path.read_bytes()
        for call in [method.future(data) for method in methods]:
            assert call.result() == b"ok"

    begun_s = time.perf_counter()
    with ThreadPoolExecutor(lanes) as pool:
        for _ in pool.map(put, sorted(folder.iterdir())):
            pass
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    keep_heaps(arenas_max=2)
    match sys.argv[1:]:
        case ["keep", folder_name]:
            keep(Path(folder_name))
        case _:
            send()
