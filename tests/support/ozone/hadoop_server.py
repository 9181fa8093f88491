"""A server on a free port of loopback, and the frames of Hadoop's RPC, parsed by hand."""

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

GREETING = b"hrpc\x09\x00\x00"
NO_ACCESS = "org.apache.hadoop.security.AccessControlException"


class HadoopServer(ABC):
    """A server that calls `serve` for each connection, in its own thread."""

    address: str
    """The address of the server."""

    def listen(self) -> None:
        """Accept connections from now on."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    @abstractmethod
    def serve(self, opened: socket.socket, stream: Any) -> None:
        """Read requests from `stream`, and send responses on the connection `opened`."""

    def close(self) -> None:
        """End the server and all its connections."""
        _end(self._listener)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for one in self._sockets:
            one.close()

    def hang_up(self) -> None:
        """End all connections, as a restart does."""
        for one in self._sockets:
            _end(one)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                opened, _ = self._listener.accept()
                self._sockets.append(opened)
                self._start(self._serve, opened)

    def _serve(self, opened: socket.socket) -> None:
        with opened, suppress(OSError, EOFError), opened.makefile("rb") as stream:
            self.serve(opened, stream)
            _end(opened)


def _end(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def exactly(stream: Any, length_bytes: int) -> bytes:
    """Return the next `length_bytes` of a stream. Raise EOFError if the stream ends before."""
    data: bytes = stream.read(length_bytes)
    if len(data) < length_bytes:
        raise EOFError
    return data


def frame_of(stream: Any) -> bytes:
    """Return the content of the next frame in a stream. Raise EOFError if the stream ends."""
    (length,) = struct.unpack(">I", exactly(stream, 4))
    return exactly(stream, length)


def delimited(data: bytes) -> tuple[bytes, bytes]:
    """Return the first length-delimited message of a frame, and the rest of the frame."""
    length, at = read_varint(data, 0)
    return data[at : at + length], data[at + length :]


def call_of(frame: bytes) -> tuple[dict[int, int | bytes], bytes]:
    """Return the fields of the header of a call, and the rest of its frame."""
    header, rest = delimited(frame)
    return fields_of(header), rest


def framed(body: bytes) -> bytes:
    """Return a frame with this content: the length in four bytes, and `body`."""
    return struct.pack(">I", len(body)) + body


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number in the varint that begins at `at`, and the position after the varint."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at


def varint(number: int) -> bytes:
    """Return a number as a varint of protobuf."""
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def number_field(number: int, value: int) -> bytes:
    """Return the bytes of field `number` of a message, with a varint as value."""
    return varint(number << 3) + varint(value)


def text_field(number: int, value: str) -> bytes:
    """Return the bytes of field `number` of a message, with a text as value."""
    return varint(number << 3 | 2) + varint(len(value.encode())) + value.encode()


def fields_of(message: bytes) -> dict[int, int | bytes]:
    """Return the values of a message's fields by number. All fields must be varints or bytes."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        value, at = read_varint(message, at)
        if tag & 7 == 2:
            found[tag >> 3], at = message[at : at + value], at + value
        else:
            found[tag >> 3] = value
    return found


def failure(call_id: int, exception: str, text: str, *, status: int = 1, detail: int = 1) -> bytes:
    """Return the content of the frame of an answer that reports an exception."""
    header = number_field(1, call_id % 2**32) + number_field(2, status) + number_field(3, 9)
    header += text_field(4, exception) + text_field(5, text) + number_field(6, detail)
    return varint(len(header)) + header


def renumbered(frame: bytes, call_id: int) -> bytes:
    """Return the frame of an answer with its call number replaced. The call number is the first
    field of the header."""
    length, at = read_varint(frame, 0)
    header = frame[at : at + length]
    assert header[0] == 1 << 3
    _, rest = read_varint(header, 1)
    header = number_field(1, call_id) + header[rest:]
    return varint(len(header)) + header + frame[at + length :]
