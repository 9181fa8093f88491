"""Signs, encodes, decodes and verifies the container and block tokens of Ozone. No I/O.

A token permits access to one container, or some modes of access to one block. Its identifier has
the owner, the permission, and the expiry. The password is the HMAC of the identifier with a secret
key that the SCM gives to all datanodes and to the OM (ShortLivedTokenIdentifier of Ozone).

    text  URL-safe Base64, without padding, of identifier, password, kind and service; each has its
          length before it
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from google.protobuf.message import DecodeError

from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from ozone.messages import security_pb2

CONTAINER_KIND: Final = "HDDS_CONTAINER_TOKEN"
BLOCK_KIND: Final = "HDDS_BLOCK_TOKEN"
ALGORITHMS: Final = {
    "HmacSHA256": hashlib.sha256,
    "HmacSHA384": hashlib.sha384,
    "HmacSHA512": hashlib.sha512,
}
TEXT_CHARS_MAX: Final = 8 * 1024  # usual tokens have about 250
PARTS: Final = 4
BLOCK_BYTES_MAX: Final = 2**28  # a large value, because Ozone does not compare the size


class AccessMode(IntEnum):
    """An access mode that a block token can permit."""

    READ = 1
    WRITE = 2
    DELETE = 4


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A key that signs tokens. It is valid from its creation to its expiry."""

    key_id: UUID
    created_ms: int
    expires_ms: int
    algorithm: str
    key: bytes

    def __repr__(self) -> str:
        """Return a text without the secret, which must not be logged."""
        return f"SecretKey({self.key_id})"

    def sign(self, identifier: bytes) -> bytes:
        """Return the password of a token, which is the HMAC of its identifier."""
        return hmac.new(self.key, identifier, ALGORITHMS[self.algorithm]).digest()


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A token: identifier, password, kind and service (Token of Hadoop)."""

    identifier: bytes
    password: bytes
    kind: str
    service: str

    def text(self) -> str:
        """Return the text form of the token, in which it is sent.

        The format is that of Hadoop's Token.encodeToUrlString.
        """
        parts = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        data = b"".join(_vint(len(part)) + part for part in parts)
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """The fields of the identifier of a token. `modes` is empty for a container token."""

    owner: str
    service: str
    expires_ms: int
    key_id: UUID
    modes: frozenset[int] = frozenset()


def container_service(container_id: ContainerId) -> str:
    """Return the name that a container has in its tokens."""
    return f"#{container_id}"


def block_service(container_id: ContainerId, block_id: BlockId) -> str:
    """Return the name that a block has in its tokens."""
    return f"conID: {container_id} locID: {block_id}"


def container_token(
    key: SecretKey, container_id: ContainerId, *, owner: str, expires_ms: int
) -> SignedToken:
    """Return a token for a container."""
    identifier = security_pb2.ContainerTokenIdentifier(
        owner_id=owner,
        container_id={"id": container_id},
        expires_ms=expires_ms,
        secret_key_id=uuid_message(key.key_id),
    ).SerializeToString()
    service = container_service(container_id)
    return SignedToken(identifier, key.sign(identifier), CONTAINER_KIND, service)


def block_token(
    key: SecretKey,
    container_id: ContainerId,
    block_id: BlockId,
    *,
    owner: str,
    expires_ms: int,
    modes: Sequence[AccessMode],
) -> SignedToken:
    """Return a token for a block."""
    service = block_service(container_id, block_id)
    identifier = security_pb2.BlockTokenIdentifier(
        owner_id=owner,
        block_id=service,
        expires_ms=expires_ms,
        modes=modes,
        max_length=BLOCK_BYTES_MAX,
        secret_key_id=uuid_message(key.key_id),
    ).SerializeToString()
    return SignedToken(identifier, key.sign(identifier), BLOCK_KIND, service)


def parse_token(text: str) -> SignedToken:
    """Return the four parts of a token. Raise DamagedData if the text is not a token."""
    if len(text) > TEXT_CHARS_MAX:
        raise DamagedData(f"a token of {len(text)} characters")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_")
    except (binascii.Error, ValueError) as error:
        raise DamagedData("a token that is not Base64") from error
    parts = []
    at = 0
    for _ in range(PARTS):
        length, at = _length(data, at)
        if not 0 <= length <= len(data) - at:
            raise DamagedData(f"a token with a part of {length} bytes")
        parts.append(data[at : at + length])
        at += length
    identifier, password, kind, service = parts
    return SignedToken(
        identifier, password, kind.decode("utf-8", "replace"), service.decode("utf-8", "replace")
    )


def parse_container_identifier(data: bytes) -> TokenFacts:
    """Return the fields of the identifier of a container token.

    Raise DamagedData if it is invalid.
    """
    said = _parsed(security_pb2.ContainerTokenIdentifier, data)
    container_id = ContainerId(said.container_id.id)
    return TokenFacts(
        said.owner_id,
        container_service(container_id),
        said.expires_ms,
        uuid_of(said.secret_key_id),
    )


def parse_block_identifier(data: bytes) -> TokenFacts:
    """Return the fields of the identifier of a block token. Raise DamagedData if it is invalid."""
    said = _parsed(security_pb2.BlockTokenIdentifier, data)
    return TokenFacts(
        said.owner_id,
        said.block_id,
        said.expires_ms,
        uuid_of(said.secret_key_id),
        frozenset(said.modes),
    )


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        said = kind.FromString(data)
    except DecodeError as error:
        raise DamagedData(f"{len(data)} bytes are no identifier of a token") from error
    if not said.HasField("secret_key_id") or not said.HasField("owner_id"):
        raise DamagedData("an identifier of a token without owner and secret key")
    return said


def uuid_message(value: UUID) -> Any:
    """Return a message with the two halves of a UUID as signed numbers, as in Java."""
    most, least = (
        int.from_bytes(half, "big", signed=True) for half in (value.bytes[:8], value.bytes[8:])
    )
    return security_pb2.Uuid(most=most, least=least)


def uuid_of(message: Any) -> UUID:
    """Return the UUID in a message that has its two halves as numbers."""
    return UUID(
        bytes=message.most.to_bytes(8, "big", signed=True)
        + message.least.to_bytes(8, "big", signed=True)
    )


def _vint(number: int) -> bytes:
    """Encode a length as Hadoop's WritableUtils do.

    A length up to 127 takes one byte. Otherwise, the first byte is -112 minus the number of bytes
    that follow.
    """
    if number <= 127:
        return bytes([number])
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(data)]) + data


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length at offset `at`. Return the length, and the offset after it.

    Raise DamagedData if there is no complete length.
    """
    first = int.from_bytes(data[at : at + 1], "big", signed=True)
    count = 0 if first >= -112 else -112 - first
    if at >= len(data) or count > 8 or at + 1 + count > len(data):
        raise DamagedData("a token that ends too early")
    if not count:
        return first, at + 1
    return int.from_bytes(data[at + 1 : at + 1 + count], "big"), at + 1 + count
