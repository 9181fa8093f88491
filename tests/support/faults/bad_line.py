"""A network connection between two datanodes that stalls or breaks after a number of bytes."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

PIECE_BYTES: Final = 16 * 1024
CONNECT_S: Final = 5.0


class BadLine:
    """A TCP proxy to `target`. After `bytes_max` bytes to the target, a connection breaks or stalls
    permanently."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.bytes_max = -1  # without end
        self.stalls = False
        self._closing = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        """The address of the proxy."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    def breaks_after(self, bytes_max: int, *, stalls: bool) -> None:
        """Pass only `bytes_max` bytes to the target on each new connection; -1 = unlimited. Then
        the connection stalls if `stalls`, or else breaks."""
        self.bytes_max, self.stalls = bytes_max, stalls

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, CONNECT_S)
            except OSError:
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets += [near, far]
            limit = self.bytes_max
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for source, sink, most in ((near, far, limit), (far, near, -1)):
                thread = threading.Thread(
                    target=self._pump, args=(source, sink, most, self.stalls), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, most: int, stalls: bool) -> None:
        passed = 0
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if 0 <= most < passed + len(piece):
                    sink.sendall(piece[: most - passed])
                    if stalls:
                        self._swallow(source)
                    break
                sink.sendall(piece)
                passed += len(piece)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _swallow(self, source: socket.socket) -> None:
        """Read nothing and pass nothing on, like a broken network, until the connection is cut."""
        while not self._closing.wait(0.05):
            with self._lock:
                if source not in self._sockets:
                    return
