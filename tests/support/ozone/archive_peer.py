"""A minimal datanode of Ozone that receives and sends container archives."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.support.ozone.ozone_wire import WIRE

SERVICE = "hadoop.hdds.datanode.IntraDatanodeProtocolService"
PART_BYTES = 3_000


@dataclass
class ArchivePeer:
    """A server on a free port. With `answers` False, it never acknowledges an upload and never
    sends a download. `spoil` changes the parts that it sends."""

    archive: bytes = b""
    answers: bool = True
    spoil: Callable[[list[Any]], list[Any]] = lambda parts: parts
    parts: list[Any] = field(default_factory=list)
    """The received parts of all uploads."""
    wishes: list[Any] = field(default_factory=list)
    ended: int = 0
    """Number of uploads that have ended, completed or cancelled. This server cannot always
    distinguish completed from cancelled uploads; `http2_tap` can."""
    port: int = 0
    _released: threading.Event = field(default_factory=threading.Event)

    def sent(self) -> bytes:
        """The received bytes of all uploads."""
        return b"".join(part.data for part in self.parts)

    def release(self) -> None:
        """Release all waiting calls."""
        self._released.set()

    def upload(self, requests: Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
        """Accept parts, without checks."""
        try:
            for data in requests:
                self.parts.append(WIRE["Upload"].FromString(data))
        finally:
            self.ended += 1
        if not self.answers:
            self._released.wait()
        return b""

    def download(self, request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        """Send the archive."""
        wish = WIRE["Wish"].FromString(request)
        self.wishes.append(wish)
        if not self.answers:
            self._released.wait()
            return
        ends = range(0, len(self.archive), PART_BYTES)
        parts = [
            WIRE["Part"](
                containerID=wish.containerID,
                readOffset=at,
                len=len(self.archive[at : at + PART_BYTES]),
                eof=at + PART_BYTES >= len(self.archive),
                data=self.archive[at : at + PART_BYTES],
            )
            for at in ends
        ]
        for part in self.spoil(parts):
            yield part.SerializeToString()


@contextmanager
def archive_peer(**wishes: Any) -> Iterator[ArchivePeer]:
    """Run an `ArchivePeer` with these fields, and yield it."""
    peer = ArchivePeer(**wishes)
    handlers = {
        "upload": grpc.stream_unary_rpc_method_handler(peer.upload),
        "download": grpc.unary_stream_rpc_method_handler(peer.download),
    }
    executor = ThreadPoolExecutor(8)
    server = grpc.server(executor)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    peer.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield peer
    finally:
        peer.release()
        server.stop(0).wait()
        executor.shutdown()
