"""A connection to one address of a service with Hadoop's RPC.

The connection is blocking and for one thread. The caller may send several calls before it reads
their answers, in the server's order. These calls must fit into the kernel's buffers; otherwise both
sides would wait for each other. The caller ensures this with `scm.WINDOW`.
"""

import socket
from dataclasses import dataclass
from typing import Final

from merkle.damaged_data import DamagedData
from ozone.clients import frames
from ozone.clients.authentication import HadoopIdentity, not_accepted
from suture.errors import Code, RefusedError, UnavailableError

READ_BYTES: Final = 256 * 1024
HTTP: Final = b"HTTP"
CLIENT_PORT: Final = "use the port of ozone.scm.client.address, by default 9860"
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Return the addresses in `HOST:PORT[,HOST:PORT...]`. Raise ValueError if one is invalid."""
    found = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
            raise ValueError(f"invalid address {part.strip()!r}: expected HOST:PORT")
        found.append(Address(host, int(port)))
    return tuple(dict.fromkeys(found))


class Connection:
    """An open connection. Every method raises UnavailableError after the connection has failed."""

    def __init__(
        self,
        address: Address,
        identity: HadoopIdentity,
        *,
        client_id: bytes,
        protocol: str,
        timeout_s: float,
        hint: str = CLIENT_PORT,
    ) -> None:
        """`hint` names the expected port, for the error if another service answers."""
        self.address = address
        self._timeout_s = timeout_s
        self._hint = hint
        self._received = bytearray()
        self._at = 0
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise self._lost(_reason(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(identity.opening(client_id, protocol))

    @property
    def local_host(self) -> str:
        """The local address of the connection, which the server sees."""
        return str(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close it; outstanding answers are lost."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send frames."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(_reason(error)) from error

    def receive(self) -> frames.Answer:
        """Wait for an answer. Raise RefusedError if the server rejects the caller or uses another
        protocol.
        """
        try:
            answer = frames.parse_answer(self._frame())
        except DamagedData as error:
            raise self._foreign(str(error)) from error
        failure = answer.failure
        if failure is None or not (failure.is_fatal or answer.call_id < 0):
            return answer
        if failure.is_unauthorized or failure.name == "AccessControlException":
            raise not_accepted(str(self.address), failure)
        raise self._lost(f"it ended the connection: {failure.name}: {failure.text}")

    def _frame(self) -> bytes:
        self._fill(frames.LENGTH_BYTES)
        head = bytes(self._received[self._at : self._at + frames.LENGTH_BYTES])
        length_bytes = int.from_bytes(head, "big")
        if not 0 < length_bytes <= frames.ANSWER_BYTES_MAX:
            raise self._foreign("HTTP" if head == HTTP else f"{length_bytes} bytes in one answer")
        self._fill(frames.LENGTH_BYTES + length_bytes)
        begin = self._at + frames.LENGTH_BYTES
        self._at = begin + length_bytes
        return bytes(self._received[begin : self._at])

    def _fill(self, wanted_bytes: int) -> None:
        """Read until this many unconsumed bytes are available."""
        if len(self._received) - self._at >= wanted_bytes:
            return
        del self._received[: self._at]
        self._at = 0
        while len(self._received) < wanted_bytes:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError as error:
                raise self._lost(_reason(error, self._timeout_s)) from error
            if not data:
                raise self._lost("it closed the connection")
            self._received += data

    def _lost(self, reason: str) -> UnavailableError:
        return UnavailableError(Code.UNAVAILABLE, f"{self.address}: {reason}")

    def _foreign(self, reason: str) -> RefusedError:
        return RefusedError(
            Code.MALFORMED_REQUEST,
            f"{self.address} does not use Hadoop RPC: {reason}",
            hint=self._hint,
        )


def _reason(error: OSError, timeout_s: float = 0.0) -> str:
    if isinstance(error, TimeoutError):
        waited = f" within {timeout_s:g} s" if timeout_s else ""
        return f"no answer{waited}"
    return error.strerror or str(error)
