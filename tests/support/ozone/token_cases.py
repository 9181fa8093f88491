"""Requests with valid and invalid tokens, for an agent and for a datanode of Ozone.

This module encodes the tokens itself, with Python's HMAC and Ozone's field numbers.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from tests.support.ozone.hadoop_server import number_field, varint

READ, WRITE = 1, 2
HOUR_MS: Final = 3_600_000
BLOCK_KIND: Final = "HDDS_BLOCK_TOKEN"
CONTAINER_KIND: Final = "HDDS_CONTAINER_TOKEN"


@dataclass(frozen=True)
class Signer:
    """A secret key of a cluster with its id, and the present time."""

    key_id: UUID
    key: bytes
    now_ms: int


@dataclass(frozen=True)
class TokenCase:
    """A request with a token. If `token` is None, it has none. `command` is Ozone's name of the
    request."""

    name: str
    command: str
    token: str | None


def _bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _uuid(value: UUID) -> bytes:
    return number_field(1, _signed(value.bytes[:8])) + number_field(2, _signed(value.bytes[8:]))


def block_identifier(
    signer: Signer, container: int, block: int, *, mode: int = READ, late_ms: int = HOUR_MS,
    owner: bytes = b"dn"
) -> bytes:  # fmt: skip
    """Return the identifier of a block token that expires in `late_ms`."""
    service = f"conID: {container} locID: {block}".encode()
    return (
        _bytes_field(1, owner)
        + _bytes_field(2, service)
        + number_field(3, signer.now_ms + late_ms)
        + number_field(5, mode)
        + number_field(6, 2**28)
        + _bytes_field(7, _uuid(signer.key_id))
    )


def container_identifier(signer: Signer, container: int, *, late_ms: int = HOUR_MS) -> bytes:
    """Return the identifier of a container token that expires in `late_ms`."""
    return (
        _bytes_field(1, b"dn")
        + _bytes_field(2, number_field(1, container))
        + number_field(3, signer.now_ms + late_ms)
        + _bytes_field(5, _uuid(signer.key_id))
    )


def password(signer: Signer, identifier: bytes) -> bytes:
    """Return the password of a token: the HMAC of its identifier."""
    return hmac.new(signer.key, identifier, hashlib.sha256).digest()


def text(identifier: bytes, secret: bytes, kind: str, service: str = "") -> str:
    """Return the URL-safe text of a token. Each part must be at most 127 bytes long."""
    parts = (identifier, secret, kind.encode(), service.encode())
    data = b"".join(bytes([len(part)]) + part for part in parts)
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(signer: Signer, identifier: bytes, kind: str) -> str:
    """Return a token that is signed with the key."""
    return text(identifier, password(signer, identifier), kind)


def wrong(signer: Signer, container: int, block: int) -> Iterator[TokenCase]:
    """Yield requests for a block and a container that no server may answer."""
    right = block_identifier(signer, container, block)
    secret = password(signer, right)
    stranger = Signer(signer.key_id, b"x" * 32, signer.now_ms)
    unknown = Signer(UUID(int=signer.key_id.int ^ 1), signer.key, signer.now_ms)

    def block_case(name: str, token: str | None) -> TokenCase:
        return TokenCase(name, "getBlock", token)

    yield block_case("none", None)
    yield block_case("empty", "")
    yield block_case("undecodable", "x")
    yield block_case("no parts", "AAAAAA")
    yield block_case("cut off", signed(signer, right, BLOCK_KIND)[:60])
    yield block_case(
        "of the container",
        signed(signer, container_identifier(signer, container), CONTAINER_KIND),
    )
    for name, identifier in {
        "another block": block_identifier(signer, container, block + 1),
        "another container": block_identifier(signer, container + 1, block),
        "for writes": block_identifier(signer, container, block, mode=WRITE),
        "expired": block_identifier(signer, container, block, late_ms=-1000),
    }.items():
        yield block_case(name, signed(signer, identifier, BLOCK_KIND))
    for name, other in {"another cluster's key": stranger, "unknown key": unknown}.items():
        identifier = block_identifier(other, container, block)
        yield block_case(name, signed(other, identifier, BLOCK_KIND))
    late = block_identifier(signer, container, block, late_ms=2 * HOUR_MS)
    yield block_case("altered expiry", text(late, secret, BLOCK_KIND))
    owner = block_identifier(signer, container, block, owner=b"om")
    yield block_case("altered owner", text(owner, secret, BLOCK_KIND))
    yield block_case("short signature", text(right, secret[:16], BLOCK_KIND))
    yield block_case("no signature", text(right, b"", BLOCK_KIND))
    yield TokenCase("none", "readContainer", None)
    yield TokenCase("of a block", "readContainer", signed(signer, right, BLOCK_KIND))
    for name, identifier in {
        "another container": container_identifier(signer, container + 1),
        "expired": container_identifier(signer, container, late_ms=-1000),
    }.items():
        yield TokenCase(name, "readContainer", signed(signer, identifier, CONTAINER_KIND))
    yield TokenCase("none", "getContainerChecksumInfo", None)
    yield TokenCase("undecodable", "echo", "x")


def right(signer: Signer, container: int, block: int) -> Iterator[TokenCase]:
    """Yield requests that a server must answer."""
    of_block = signed(signer, block_identifier(signer, container, block), BLOCK_KIND)
    of_container = signed(signer, container_identifier(signer, container), CONTAINER_KIND)
    yield TokenCase("right", "getBlock", of_block)
    yield TokenCase("right", "getCommittedBlockLength", of_block)
    yield TokenCase("right", "readContainer", of_container)
    yield TokenCase("right", "listBlock", of_container)
    yield TokenCase("right", "getContainerChecksumInfo", of_container)
    yield TokenCase("right", "echo", of_container)
    any_kind = block_identifier(signer, container, block)
    yield TokenCase("of another kind, by name", "getBlock", signed(signer, any_kind, "OTHER"))


def body_of(command: str, container: int, block: int) -> dict[str, Any]:
    """Return the body of a request."""
    bodies: dict[str, dict[str, Any]] = {
        "getBlock": {"blockID": {"containerID": container, "localID": block}},
        "getCommittedBlockLength": {"blockID": {"containerID": container, "localID": block}},
        "listBlock": {"count": 10},
        "getContainerChecksumInfo": {"containerID": container},
        "echo": {"payload": b"x"},
    }
    return bodies.get(command, {})
