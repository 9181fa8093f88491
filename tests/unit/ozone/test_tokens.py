"""Tokens of Ozone, against those that an OM and an SCM of 2.2.0 signed with a known key."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from ozone.security.tokens import (
    AccessMode,
    SecretKey,
    SignedToken,
    block_token,
    container_token,
    parse_block_identifier,
    parse_container_identifier,
    parse_token,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone" / "tokens.json"
SAID: dict[str, Any] = json.loads(GOLDEN.read_text())
CONTAINER = ContainerId(SAID["container_id"])
BLOCK = BlockId(SAID["block_id"])


def key() -> SecretKey:
    """Return the key with which the recorded tokens were signed."""
    told = SAID["secret_key"]
    return SecretKey(
        UUID(told["id"]),
        told["created_ms"],
        told["expires_ms"],
        told["algorithm"],
        bytes.fromhex(told["key"]),
    )


def test_container_token_of_an_scm_is_signed_alike() -> None:
    """Text, identifier and password are the same bytes."""
    theirs = SAID["container_token"]
    facts = parse_container_identifier(parse_token(theirs).identifier)

    ours = container_token(key(), CONTAINER, owner=facts.owner, expires_ms=facts.expires_ms)

    assert ("admin@EXAMPLE.COM", "#1", key().key_id) == (facts.owner, facts.service, facts.key_id)
    assert theirs == ours.text()


def test_block_token_of_an_om_is_signed_alike() -> None:
    """Its password is that of our key. Its text has three NULs behind the service, which no server
    reads.
    """
    theirs = parse_token(SAID["block_token"])
    facts = parse_block_identifier(theirs.identifier)

    ours = block_token(
        key(), CONTAINER, BLOCK, owner="admin", expires_ms=facts.expires_ms, modes=[AccessMode.READ]
    )

    assert theirs.password == key().sign(theirs.identifier)
    assert (ours.kind, ours.service) == (theirs.kind, theirs.service.rstrip("\0"))
    assert parse_block_identifier(ours.identifier) == facts
    assert {AccessMode.READ} == facts.modes


def test_long_parts_have_the_lengths_of_hadoop() -> None:
    """WritableUtils.writeVInt: 127 is 7f, 128 is 8f 80, 300 is 8e 01 2c."""
    parts = {127: "7f", 128: "8f80", 300: "8e012c"}
    for length, prefix in parts.items():
        token = SignedToken(bytes(length), b"p", "kind", "service")
        data = __import__("base64").urlsafe_b64decode(token.text() + "==")

        assert data.startswith(bytes.fromhex(prefix) + bytes(length))
        assert token == parse_token(token.text())


@pytest.mark.parametrize(
    "text",
    ["", "A", "AAAA", "!!!!", "é", "x" * 10_000, "jwAA", "iAAAAAAAAAAA", SAID["block_token"][:40]],
)
def test_text_that_is_no_token_is_damaged(text: str) -> None:
    """Nothing is raised but DamagedData, whatever a stranger sends."""
    with pytest.raises(DamagedData):
        parse_token(text)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0a\x01a", b"\x12\x02\x08\x01"])
def test_identifier_without_owner_or_key_is_damaged(data: bytes) -> None:
    """An identifier of the other kind lacks them, too."""
    for parse in (parse_block_identifier, parse_container_identifier):
        with pytest.raises(DamagedData):
            parse(data)


def test_container_token_is_no_block_token() -> None:
    """The field of the key differs, so one kind cannot be read as the other."""
    with pytest.raises(DamagedData):
        parse_block_identifier(parse_token(SAID["container_token"]).identifier)
    with pytest.raises(DamagedData):
        parse_container_identifier(parse_token(SAID["block_token"]).identifier)


def test_secret_key_is_not_in_its_text() -> None:
    """A log line may have the object."""
    assert key().key.hex() not in repr(key())
    assert repr(key().key) not in repr(key())
