"""A minimal HTTP/2 client over a socket. It only follows the rules that a test requires, so that
tests can violate the other rules."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Final, Self

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
STREAMS_MAX: Final = 0x3  # of SETTINGS
WINDOW_BYTES: Final = 0x4
REFUSED_STREAM: Final = 0x7
ENHANCE_YOUR_CALM: Final = 0xB
PING: Final = b"are here"
TIMEOUT_S: Final = 30.0
WINDOW_BYTES_FIRST: Final = 65_535  # the default of RFC 9113, without a setting
FRAME_BYTES_MAX: Final = 16_384


class Type(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """A received frame."""

    type: int
    flags: int
    stream_id: int
    payload: bytes


class RawHttp2:
    """A connection. Reads raise TimeoutError after TIMEOUT_S."""

    def __init__(self, address: str, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection(
            (host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0)
        )

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.socket.close()

    def greet(self, *, window_bytes: int | None = None) -> dict[int, int]:
        """Exchange settings; return the server's settings.

        The server may send at most `window_bytes` of each answer, because the client never extends
        the window.
        """
        ours = b"" if window_bytes is None else struct.pack(">HI", WINDOW_BYTES, window_bytes)
        self.socket.sendall(PREFACE + frame(Type.SETTINGS, ours))
        settings = self.until(Type.SETTINGS).payload
        self.socket.sendall(frame(Type.SETTINGS, flags=ACK))
        return dict(struct.iter_unpack(">HI", settings))

    def begin(self, stream_id: int, path: str) -> None:
        """Begin a call without sending any part of its message."""
        headers = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)
        self.socket.sendall(frame(Type.HEADERS, block, flags=END_HEADERS, stream_id=stream_id))

    def finish(self, stream_id: int, message: bytes = b"") -> None:
        """Send a message, and end the stream."""
        data = b"\x00" + len(message).to_bytes(4, "big") + message  # of gRPC: not compressed
        self.socket.sendall(frame(Type.DATA, data, flags=END_STREAM, stream_id=stream_id))

    def push(self, stream_id: int, path: str, size_bytes: int, within_s: float) -> int:
        """Exchange settings, begin a call, and send its message without the last byte, as far as
        the server's windows allow. Stop after `within_s`. Return the number of bytes sent."""
        window_bytes = self.greet().get(WINDOW_BYTES, WINDOW_BYTES_FIRST)
        self.begin(stream_id, path)
        message = memoryview(b"\x00" + size_bytes.to_bytes(4, "big") + bytes(size_bytes - 1))
        rooms = {0: WINDOW_BYTES_FIRST, stream_id: window_bytes}
        sent_bytes, ends_at_s = 0, time.monotonic() + within_s
        self.socket.settimeout(within_s)
        with suppress(OSError):
            while sent_bytes < len(message) and time.monotonic() < ends_at_s:
                part = message[sent_bytes:][: min(*rooms.values(), FRAME_BYTES_MAX)]
                if part:
                    self.socket.sendall(frame(Type.DATA, bytes(part), stream_id=stream_id))
                    rooms = {key: room - len(part) for key, room in rooms.items()}
                    sent_bytes += len(part)
                    continue
                found = next(self.frames())
                if found.type == Type.WINDOW_UPDATE:
                    rooms[found.stream_id] += int.from_bytes(found.payload)
                elif found.type == Type.PING and not found.flags & ACK:
                    self.socket.sendall(frame(Type.PING, found.payload, flags=ACK))
                elif found.type == Type.RST_STREAM:
                    break
        return sent_bytes

    def settle(self) -> None:
        """Send a ping and wait for the answer. The server has then read everything that was sent
        before."""
        self.socket.sendall(frame(Type.PING, PING))
        while True:
            answer = self.until(Type.PING)
            if answer.flags & ACK and answer.payload == PING:
                return

    def frames(self) -> Iterator[Frame]:
        """Yield the received frames until the server closes the connection."""
        while header := self._read(9):
            length = int.from_bytes(header[:3], "big")
            kind, flags, stream_id = struct.unpack(">BBI", header[3:])
            payload = self._read(length) if length else b""
            yield Frame(kind, flags, stream_id, payload)

    def until(self, kind: Type) -> Frame:
        """Return the first frame of a type."""
        return next(frame for frame in self.frames() if frame.type == kind)

    def is_closed(self) -> bool:
        """Wait until the server closes the connection, ignoring frames before that."""
        return all(True for _ in self.frames())

    def _read(self, count: int) -> bytes:
        """Return exactly `count` received bytes; b"" if the connection ends before."""
        parts, missing = [], count
        while missing:
            try:
                part = self.socket.recv(missing)
            except ConnectionError:
                return b""
            if not part:
                return b""
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def frame(kind: Type, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    """Return the bytes of a frame on the wire."""
    header = len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id)
    return header + payload


def error_of(goaway: Frame) -> int:
    """Return the error of a GOAWAY or RST_STREAM frame."""
    return int.from_bytes(goaway.payload[-4:] if len(goaway.payload) == 4 else goaway.payload[4:8])


def _text(text: str) -> bytes:
    """Return a string of less than 127 bytes in HPACK's encoding, without Huffman coding."""
    data = text.encode()
    return bytes([len(data)]) + data
