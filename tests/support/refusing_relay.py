"""A relay that refuses the first streams to a server, as HTTP/2 does if there are too many.

The relay passes all frames on, but resets the first streams on both sides. The reason in the reset
to the client is REFUSED_STREAM, which means that nothing was processed (RFC 9113, section 8.7), or
another reason.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_HEADERS, _RESET = 1, 3
REFUSED_STREAM, CANCEL = 7, 8


@dataclass
class RefusingRelay:
    """The relay's address, the number of streams still to refuse, and the number already
    refused."""

    address: str
    left_count: int
    why: int
    refused_count: int = 0
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def _refuses(self, kind: int) -> bool:
        if kind != _HEADERS or not self.left_count:
            return False
        self.left_count -= 1
        self.refused_count += 1
        return True


@contextmanager
def refusing_relay(
    server_port: int, count: int, why: int = REFUSED_STREAM
) -> Iterator[RefusingRelay]:
    """Relay one connection to a server on this machine that speaks HTTP/2 without TLS, and refuse
    the first `count` streams."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        relay = RefusingRelay(f"127.0.0.1:{listener.getsockname()[1]}", count, why)
        thread = threading.Thread(target=_relay, args=(relay, listener, server_port))
        thread.start()
        try:
            yield relay
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _relay(relay: RefusingRelay, listener: socket.socket, server_port: int) -> None:
    try:
        client, _ = listener.accept()
    except OSError:
        return  # no client connected before the relay was closed
    with client, socket.create_connection(("127.0.0.1", server_port)) as server:
        answers = threading.Thread(target=_pass_answers, args=(relay, server, client))
        answers.start()
        with suppress(OSError):  # one side closed the connection
            _pass_calls(relay, client, server)
        for end in (server, client):
            _shut(end)
        answers.join()


def _pass_calls(relay: RefusingRelay, client: socket.socket, server: socket.socket) -> None:
    with client.makefile("rb") as said:
        server.sendall(said.read(_PREFACE_BYTES))
        for frame in iter(lambda: _frame(said), b""):
            if not relay._refuses(frame[3]):
                server.sendall(frame)
                continue
            stream = frame[5:_HEAD_BYTES]  # the server sees it, too: headers build on each other
            server.sendall(frame + _reset(stream, CANCEL))
            with relay._sending:
                client.sendall(_reset(stream, relay.why))


def _pass_answers(relay: RefusingRelay, server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError), server.makefile("rb") as said:
        for frame in iter(lambda: _frame(said), b""):
            with relay._sending:
                client.sendall(frame)
    _shut(client)


def _frame(said: BinaryIO) -> bytes:
    """Return the next complete frame; b"" if the other side closed the connection."""
    head = said.read(_HEAD_BYTES)
    return head + said.read(int.from_bytes(head[:3])) if len(head) == _HEAD_BYTES else b""


def _reset(stream: bytes, why: int) -> bytes:
    return (4).to_bytes(3) + bytes([_RESET, 0]) + stream + why.to_bytes(4)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):  # the other side was quicker
        end.shutdown(socket.SHUT_RDWR)
