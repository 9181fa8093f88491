"""SASL with Kerberos (GSSAPI, RFC 4752) in Hadoop's RPC: authentication, and protected frames.

No I/O.

    client  NEGOTIATE                   server  NEGOTIATE with the methods that it offers
            INITIATE, token                     CHALLENGE, token
            RESPONSE                            CHALLENGE with the protection levels that it offers
            RESPONSE with the choice            SUCCESS

At the levels integrity and privacy, frames are then sent inside WRAP messages. A WRAP message
contains a part of a frame, or several frames (SaslRpcClient of Hadoop).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from ozone.clients.frames import sasl_frame
from ozone.clients.messages import SASL
from suture.errors import Code, RefusedError

SUCCESS: Final = 0  # RpcSaslProto.SaslState
NEGOTIATE: Final = 1
INITIATE: Final = 2
CHALLENGE: Final = 3
RESPONSE: Final = 4
WRAP: Final = 5
KERBEROS: Final = "KERBEROS"
OFFER_BYTES: Final = 4
RECEIVED_BYTES_MAX: Final = 64 * 1024  # the limit that Hadoop's clients state; servers exceed it


class ProtectionLevel(IntEnum):
    """The protection levels of `hadoop.rpc.protection`, with their bits in the exchange.

    A higher level includes the lower levels.
    """

    AUTHENTICATION = 1
    INTEGRITY = 2
    PRIVACY = 4


class SecurityContext(Protocol):
    """A GSSAPI security context with one server.

    Its methods raise RefusedError or UnavailableError if the authentication fails.
    """

    @property
    def is_complete(self) -> bool:
        """True if client and server have both proven their identities."""
        ...

    def step(self, token: bytes | None) -> bytes:
        """Process a token of the server.

        Return the next token for the server, which may be empty.
        """
        ...

    def wrap(self, data: bytes, *, is_private: bool) -> bytes:
        """Return `data` with integrity protection. If `is_private`, also encrypt the data."""
        ...

    def unwrap(self, data: bytes, *, is_private: bool) -> bytes:
        """Verify a token, and return the data in it.

        Raise RefusedError if `is_private` is True and the token is not encrypted.
        """
        ...

    def size_max(self, wrapped_bytes: int, *, is_private: bool) -> int:
        """Return the maximum size in bytes of data that fit in one token.

        The wrapped token then has at most `wrapped_bytes` bytes.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrameProtection:
    """Protects the frames that are sent on a connection, and verifies received frames.

    `part_bytes_max` is the maximum number of data bytes in one token.
    """

    context: SecurityContext
    is_private: bool
    part_bytes_max: int

    def wrap(self, data: bytes) -> bytes:
        """Return frames that contain `data` in protected form.

        The data is divided into several frames if it exceeds the server's limit for a frame.
        """
        parts = [
            self.context.wrap(data[at : at + self.part_bytes_max], is_private=self.is_private)
            for at in range(0, len(data), self.part_bytes_max)
        ]
        return b"".join(sasl_frame(SASL(state=WRAP, token=part)) for part in parts)

    def unwrap(self, message: Any) -> bytes:
        """Verify a WRAP message, and return the data in it.

        Raise RefusedError if the message is of another type or the verification fails.
        """
        if message.state != WRAP:
            raise _refused(f"the server sent SASL state {message.state} instead of data")
        return self.context.unwrap(message.token, is_private=self.is_private)


class SaslExchange:
    """A SASL exchange, in which client and server authenticate each other.

    Its methods raise RefusedError or UnavailableError if the exchange fails.
    """

    def __init__(
        self, open_context: Callable[[], SecurityContext], server: str, level_min: ProtectionLevel
    ) -> None:
        """Prepare an exchange.

        `server` is the principal that the server must prove, without its realm. `level_min` is the
        lowest protection level to accept.
        """
        self._open_context = open_context
        self._server = server
        self._level_min = level_min
        self._context: SecurityContext | None = None
        self._chosen: ProtectionLevel | None = None
        self.protection: FrameProtection | None = None

    def begin(self) -> bytes:
        """Return the first frame of the exchange, which the client sends."""
        return sasl_frame(SASL(state=NEGOTIATE))

    def reply(self, message: Any) -> bytes | None:
        """Return the frame that answers a message of the server.

        Return None if the exchange is complete.
        """
        if self._context is None:
            return self._initiate(message)
        if message.state == SUCCESS and self._chosen is not None:
            return None
        if message.state != CHALLENGE or self._chosen is not None:
            raise _refused(f"the server sent SASL state {message.state} before it proved its name")
        if not self._context.is_complete:
            return _response(self._context.step(message.token))
        return self._choose(self._context, message.token)

    def _initiate(self, message: Any) -> bytes:
        if message.state != NEGOTIATE:
            raise _refused("the server does not use SASL", "it is perhaps not secure")
        offered = [auth for auth in message.auths if auth.method == KERBEROS]
        if not offered:
            methods = ", ".join(sorted({auth.method for auth in message.auths})) or "nothing"
            raise _refused(f"the server offers {methods} instead of {KERBEROS}")
        auth = offered[0]
        named = f"{auth.protocol}/{auth.server_id}"
        if named != self._server:
            raise _refused(
                f"the server calls itself {named}, expected {self._server}",
                "check hdds.scm.kerberos.principal, or --scm-principal",
            )
        self._context = self._open_context()
        token = self._context.step(None)
        return sasl_frame(SASL(state=INITIATE, token=token, auths=[auth]))

    def _choose(self, context: SecurityContext, token: bytes) -> bytes:
        """Choose the highest protection level that the server offers.

        Return the message with the choice. Raise RefusedError if this level is lower than the
        required level.
        """
        offer = context.unwrap(token, is_private=False)
        levels = [level for level in ProtectionLevel if offer[:1] and offer[0] & level]
        if len(offer) != OFFER_BYTES or not levels:
            raise _refused(f"the server offers no known protection level: {offer[:8].hex()}")
        chosen = max(levels)
        if chosen < self._level_min:
            raise _refused(
                f"the server offers {chosen.name.lower()} at most, and "
                f"{self._level_min.name.lower()} is required",
                "check hadoop.rpc.protection here and at the server",
            )
        received_bytes_max = 0
        if chosen is not ProtectionLevel.AUTHENTICATION:
            received_bytes_max = RECEIVED_BYTES_MAX
            is_private = chosen is ProtectionLevel.PRIVACY
            their_bytes_max = int.from_bytes(offer[1:], "big")
            part_bytes_max = context.size_max(their_bytes_max, is_private=is_private)
            if part_bytes_max < 1:
                raise _refused(f"the server takes messages of {their_bytes_max} bytes only")
            self.protection = FrameProtection(context, is_private, part_bytes_max)
        self._chosen = chosen
        answer = bytes([chosen]) + received_bytes_max.to_bytes(OFFER_BYTES - 1, "big")
        return _response(context.wrap(answer, is_private=False))


def _response(token: bytes) -> bytes:
    return sasl_frame(SASL(state=RESPONSE, token=token))


def _refused(message: str, hint: str = "") -> RefusedError:
    return RefusedError(Code.UNAUTHENTICATED, f"cannot authenticate: {message}", hint=hint)
