"""A connection to one address of a service with Hadoop's RPC.

Calls block, and only one thread may use the connection. The caller may send several calls before it
reads their answers, in the server's order. These calls must fit in the kernel's socket buffers.
Otherwise, client and server would wait for each other. Therefore, `scm.WINDOW` limits the number of
calls in flight.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from merkle.damaged_data import DamagedData
from ozone.clients import frames
from ozone.clients.authentication import Identity, not_accepted
from ozone.clients.sasl import FrameProtection, SaslExchange
from suture.errors import Code, RefusedError, UnavailableError

READ_BYTES: Final = 256 * 1024
CLIENT_PORT: Final = "use the port of ozone.scm.client.address, by default 9860"
PORT_MAX: Final = 65_535
EXCHANGE_MAX: Final = 16  # maximum messages of one authentication; Hadoop's servers need 4

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a service. The text form is `HOST:PORT`, with brackets for IPv6."""

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
        identity: Identity,
        *,
        client_id: bytes,
        protocol: str,
        timeout_s: float,
        hint: str = CLIENT_PORT,
    ) -> None:
        """Connect and authenticate. Raise UnavailableError or RefusedError if this fails.

        `hint` names the port that the operator should use. The error has this hint if another
        service answers at this address.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._hint = hint
        self._identity = identity
        self._received = frames.FrameBuffer()
        self._opened = frames.FrameBuffer()  # frames that arrived inside protected messages
        self._protection: FrameProtection | None = None
        exchange = identity.exchange(address.host)  # before connecting: fails without credentials
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise self._connection_error(_reason(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._open(exchange, client_id, protocol)
        except BaseException:
            self.close()
            raise

    def _open(self, exchange: SaslExchange | None, client_id: bytes, protocol: str) -> None:
        """Send the connection header, authenticate, and send the name of the protocol.

        The name is that of the protocol of all later calls.
        """
        self._write(frames.connection_header(frames.SASL_CALL if exchange else frames.SIMPLE))
        if exchange is not None:
            self._protection = self._authenticated(exchange)
        self.send(frames.context_frame(client_id, self._identity.user, protocol))

    def _authenticated(self, exchange: SaslExchange) -> FrameProtection | None:
        """Authenticate.

        Return the protection of all later frames, or None if they are sent unprotected.
        """
        reply: bytes | None = exchange.begin()
        for _ in range(EXCHANGE_MAX):
            if reply is None:
                return exchange.protection
            self._write(reply)
            answer = self.receive()
            if answer.call_id != frames.SASL_CALL:
                raise self._foreign(f"an answer to call {answer.call_id} in an authentication")
            reply = exchange.reply(self._parsed(frames.parse_sasl, answer.body))
        raise self._foreign(f"more than {EXCHANGE_MAX} messages of one authentication")

    @property
    def local_host(self) -> str:
        """Local address of the connection, which the server sees."""
        return str(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close the connection. Answers that were not received yet are lost."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send frames. If the server requires protection, first protect the frames."""
        self._write(data if self._protection is None else self._protection.wrap(data))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._connection_error(_reason(error)) from error

    def receive(self) -> frames.Answer:
        """Wait for an answer and return it.

        Raise RefusedError if the server rejects the caller or uses another protocol.
        """
        answer = self._answer()
        failure = answer.failure
        if failure is None or not (failure.is_fatal or answer.call_id < 0):
            return answer
        if failure.is_unauthorized or failure.name == "AccessControlException":
            raise not_accepted(str(self.address), failure, self._identity)
        raise self._connection_error(f"it ended the connection: {failure.name}: {failure.text}")

    def _answer(self) -> frames.Answer:
        """Return the next answer.

        On a protected connection, accept an unprotected answer only if it is an error that ends the
        connection.
        """
        while True:
            frame = self._parsed(frames.FrameBuffer.pop_frame, self._opened)
            if frame is not None:
                return self._parsed(frames.parse_answer, frame)
            answer = self._parsed(frames.parse_answer, self._frame())
            if self._protection is None or (answer.failure is not None and answer.call_id < 0):
                return answer
            if answer.call_id != frames.SASL_CALL or answer.failure is not None:
                raise self._foreign(f"an answer to call {answer.call_id} without protection")
            wrapped = self._parsed(frames.parse_sasl, answer.body)
            self._opened.feed(self._protection.unwrap(wrapped))

    def _frame(self) -> bytes:
        """Wait for the next frame on the socket. Return the frame without its length field."""
        while True:
            frame = self._parsed(frames.FrameBuffer.pop_frame, self._received)
            if frame is not None:
                return frame
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError as error:
                raise self._connection_error(_reason(error, self._timeout_s)) from error
            if not data:
                raise self._connection_error("it closed the connection")
            self._received.feed(data)

    def _parsed(self, parse: Callable[[T], R], data: T) -> R:
        try:
            return parse(data)
        except DamagedData as error:
            raise self._foreign(str(error)) from error

    def _connection_error(self, reason: str) -> UnavailableError:
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
