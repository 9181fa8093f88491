"""A relay between a gRPC client and its server that records the frames of the client.

A gRPC server in Python cannot distinguish a cancelled call from a call whose client has sent
everything. In both cases the server first receives the end of the messages; the cancellation
follows a moment later. On the wire, these are two different frames (RFC 9113, sections 6.1 and
6.4).
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _RESET = 0, 3
_END_STREAM = 0x1


@dataclass
class Http2Tap:
    """The relay's port, and the endings of the client's streams, in order: "end" for a stream that
    was sent completely, "reset" for a cancelled call."""

    port: int
    endings: list[str] = field(default_factory=list)

    def _note(self, kind: int, flags: int) -> None:
        if kind == _RESET:
            self.endings.append("reset")
        elif kind == _DATA and flags & _END_STREAM:
            self.endings.append("end")


@contextmanager
def http2_tap(server_port: int) -> Iterator[Http2Tap]:
    """Relay one connection to a server on this machine that speaks HTTP/2 without TLS."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        tap = Http2Tap(listener.getsockname()[1])
        threads = [threading.Thread(target=_relay, args=(tap, listener, server_port))]
        threads[0].start()
        try:
            yield tap
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()


def _relay(tap: Http2Tap, listener: socket.socket, server_port: int) -> None:
    try:
        client, _ = listener.accept()
    except OSError:
        return  # no client connected before the relay was closed
    with client, socket.create_connection(("127.0.0.1", server_port)) as server:
        answers = threading.Thread(target=_pass_answers, args=(server, client))
        answers.start()
        try:
            _pass_frames(tap, client, server)
        except OSError:
            pass  # one side closed the connection
        finally:
            for end in (server, client):
                _shut(end)
            answers.join()


def _pass_frames(tap: Http2Tap, client: socket.socket, server: socket.socket) -> None:
    with client.makefile("rb") as said:
        server.sendall(said.read(_PREFACE_BYTES))
        while len(head := said.read(_HEAD_BYTES)) == _HEAD_BYTES:
            server.sendall(head + said.read(int.from_bytes(head[:3])))
            tap._note(kind=head[3], flags=head[4])


def _pass_answers(server: socket.socket, client: socket.socket) -> None:
    try:
        while data := server.recv(65_536):
            client.sendall(data)
    except OSError:
        pass  # one side closed the connection
    finally:
        _shut(client)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):  # the other side was quicker
        end.shutdown(socket.SHUT_RDWR)
