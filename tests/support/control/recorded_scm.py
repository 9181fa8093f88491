"""An SCM that answers, over real sockets, with the recorded bytes of a real SCM.

`tests/golden/ozone/scm.jsonl.zst` has each recorded call to the SCM of Ozone 2.2.0: the bytes after
the call's header, and the whole frame of the answer. This module parses requests by hand, by the
rules of protobuf's encoding. Of the answer, only the call number is replaced.
"""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone"
GREETING = b"hrpc\x09\x00\x00"
NO_ACCESS = "org.apache.hadoop.security.AccessControlException"


def recorded(server: str) -> dict[bytes, bytes]:
    """Return the recorded answers of one server by request. `server` is scm, dn, http or follower;
    a follower gives the same answer to all requests."""
    with (GOLDEN / "scm.jsonl.zst").open("rb") as packed:
        text = zstandard.ZstdDecompressor().stream_reader(packed).read()
    lines = map(json.loads, text.decode().splitlines())
    return {
        bytes.fromhex(line["request"]): bytes.fromhex(line["answer"])
        for line in lines
        if line["server"] == server
    }


def replicas_of_ozone() -> list[dict[str, object]]:
    """Return the replicas as the datanodes of that cluster themselves reported them."""
    text = (GOLDEN / "scm-replicas.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number in a varint, and its end."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def number_field(number: int, value: int) -> bytes:
    """Return a field that is a varint."""
    return varint(number << 3) + varint(value)


def text_field(number: int, value: str) -> bytes:
    """Return a field that is a text."""
    return varint(number << 3 | 2) + varint(len(value.encode())) + value.encode()


def fields_of(message: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message, varints and bytes only."""
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
    """Return the frame of an answer that is an exception."""
    header = number_field(1, call_id % 2**32) + number_field(2, status) + number_field(3, 9)
    header += text_field(4, exception) + text_field(5, text) + number_field(6, detail)
    return varint(len(header)) + header


def renumbered(frame: bytes, call_id: int) -> bytes:
    """Return the frame of an answer with another call number, which is its first field."""
    length, at = read_varint(frame, 0)
    header = frame[at : at + length]
    assert header[0] == 1 << 3
    _, rest = read_varint(header, 1)
    header = number_field(1, call_id) + header[rest:]
    return varint(len(header)) + header + frame[at + length :]


@dataclass
class RecordedScm:
    """A server on its own port, with one thread per connection."""

    answers: dict[bytes, bytes] = field(default_factory=lambda: recorded("scm"))
    leads: bool = True
    lets_in: bool = True
    hang_up_after: int = -1
    """Number of answers after which each connection ends; -1 = never."""
    held_back: int = 1
    """Number of calls that are read before they are answered, the last one first."""
    silent_after: int = -1
    """Number of calls that are answered; later calls get no answer. -1 = all are answered."""
    raw: bytes = b""
    """Bytes that are sent instead of any answer."""
    calls: list[bytes] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    most_under_way: int = 0
    address: str = field(init=False)
    """The address of the server."""
    _listener: socket.socket = field(init=False)
    _threads: list[threading.Thread] = field(default_factory=list)
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        """End it, and all its connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            _end(one)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(opened)
            self._start(self._serve, opened)

    def _serve(self, opened: socket.socket) -> None:
        try:
            with opened.makefile("rb") as stream:
                if self.raw:
                    stream.read(1)
                    opened.sendall(self.raw)
                else:
                    self._talk(opened, stream)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            _end(opened)
            opened.close()

    def _talk(self, opened: socket.socket, stream: object) -> None:
        assert _exactly(stream, len(GREETING)) == GREETING
        header, rest = _call(_frame(stream))
        assert header[3] == 5  # -3 as a zigzag number: the context
        context = fields_of(_delimited(rest)[0])
        assert context[3] == (
            b"org.apache.hadoop.hdds.scm.protocol.StorageContainerLocationProtocol"
        )
        user = fields_of(context[2])[1]  # type: ignore[arg-type]
        assert isinstance(user, bytes)
        self.users.append(user.decode())
        if not self.lets_in:
            said = failure(
                -3, NO_ACCESS, "SIMPLE authentication is not enabled.", status=2, detail=15
            )
            _say(opened, said)
            return
        answered = 0
        waiting: list[bytes] = []
        while True:
            call = _frame(stream)
            self.calls.append(_call(call)[1])
            if 0 <= self.silent_after < len(self.calls):
                continue
            waiting.append(self._answer(call))
            self.most_under_way = max(self.most_under_way, len(waiting))
            if len(waiting) < self.held_back:
                continue
            for answer in reversed(waiting):
                if answered == self.hang_up_after:
                    return
                _say(opened, answer)
                answered += 1
            waiting.clear()

    def _answer(self, frame: bytes) -> bytes:
        header, rest = _call(frame)
        zigzag = header[3]
        assert isinstance(zigzag, int)
        assert zigzag & 1 == 0
        if not self.leads:
            return renumbered(recorded("follower")[b""], zigzag >> 1)
        return renumbered(self.answers[rest], zigzag >> 1)


@contextmanager
def recorded_scm(**wishes: object) -> Iterator[RecordedScm]:
    """Run one."""
    server = RecordedScm(**wishes)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()


def _end(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _exactly(stream: object, length_bytes: int) -> bytes:
    data: bytes = stream.read(length_bytes)  # type: ignore[attr-defined]
    if len(data) < length_bytes:
        raise EOFError
    return data


def _frame(stream: object) -> bytes:
    (length,) = struct.unpack(">I", _exactly(stream, 4))
    return _exactly(stream, length)


def _delimited(data: bytes) -> tuple[bytes, bytes]:
    length, at = read_varint(data, 0)
    return data[at : at + length], data[at + length :]


def _call(frame: bytes) -> tuple[dict[int, int | bytes], bytes]:
    header, rest = _delimited(frame)
    return fields_of(header), rest


def _say(opened: socket.socket, frame: bytes) -> None:
    opened.sendall(struct.pack(">I", len(frame)) + frame)
