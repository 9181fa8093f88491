"""Verifies the token of each request, as Ozone's datanodes do (ShortLivedTokenVerifier).

A command for a block needs a token for this block with the right access mode. Any other command
needs a token for the container. For GetContainerChecksumInfo and Echo, Ozone accepts any token that
can be decoded. This module requires a valid token.
"""

import hmac
from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import UUID

from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.security.tokens import (
    AccessMode,
    SecretKey,
    SignedToken,
    TokenFacts,
    block_service,
    container_service,
    parse_block_identifier,
    parse_container_identifier,
    parse_token,
)
from suture.errors import Code, RefusedError

NO_TOKEN: Final = "Failed to find any token (empty or null.)"  # noqa: S105 - Ozone's text
MODES: Final = {
    DatanodeCommand.GET_BLOCK: AccessMode.READ,
    DatanodeCommand.GET_COMMITTED_BLOCK_LENGTH: AccessMode.READ,
    DatanodeCommand.READ_CHUNK: AccessMode.READ,
    DatanodeCommand.READ_BLOCK: AccessMode.READ,
    DatanodeCommand.WRITE_CHUNK: AccessMode.WRITE,
    DatanodeCommand.PUT_BLOCK: AccessMode.WRITE,
}
"""Commands that need a block token, and the access mode that the token must have."""


class KnownKeys(Protocol):
    """Source of the keys that verify tokens. `ozone.security.secret_keys` implements it."""

    def find(self, key_id: UUID) -> SecretKey | None:
        """Return the secret key with this id, or None if there is none.

        Raise RefusedError or UnavailableError if the source does not answer.
        """
        ...


class TokenVerifier:
    """Verifies tokens with the keys of the SCM. Thread-safe."""

    def __init__(self, keys: KnownKeys, now_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._now_ms = now_ms

    def verify(self, command: DatanodeCommand, request: Any, body: Any) -> str:
        """Verify the token of a request. Return the owner of the token.

        `body` is the part of the request for the command. Raise RefusedError(UNAUTHENTICATED)
        unless the token permits the request, and UnavailableError if its key cannot be fetched.
        """
        text = request.encoded_token.decode("utf-8", "replace")
        if not text:
            raise _refused(NO_TOKEN)
        try:
            token = parse_token(text)
        except DamagedData as error:
            raise _refused(f"Failed to decode token : {text}") from error
        mode = MODES.get(command)
        parse = parse_container_identifier if mode is None else parse_block_identifier
        try:
            facts = parse(token.identifier)
        except DamagedData as error:
            raise _refused(f"Failed to decode token : {_printable(token)}") from error
        user = f"{facts.owner} (auth:SIMPLE)"
        self._check_signature(token, facts, user)
        if facts.expires_ms <= self._now_ms():
            raise _refused(f"Expired token for user: {user}")
        service = _service_of(command, request, body)
        if facts.service != service:
            raise _refused(
                f"ID mismatch. Token for ID: {facts.service} can't be used to access: {service} "
                f"by user: {user}"
            )
        if mode is not None and mode not in facts.modes:
            raise _refused(f"Block token with {facts.service} doesn't have {mode.name} permission")
        return facts.owner

    def _check_signature(self, token: SignedToken, facts: TokenFacts, user: str) -> None:
        key = self._keys.find(facts.key_id)
        if key is None:
            raise _refused(
                f"Can't find the signing secret key {facts.key_id} of the token for user: {user}"
            )
        if key.expires_ms <= self._now_ms():
            raise _refused(f"Token can't be verified due to expired secret key {facts.key_id}")
        if not hmac.compare_digest(key.sign(token.identifier), token.password):
            raise _refused(f"Invalid token for user: {user}")


def _service_of(command: DatanodeCommand, request: Any, body: Any) -> str:
    """Return the name of the container or block for which the token of a request must be valid."""
    if command not in MODES:
        return container_service(ContainerId(request.container_id))
    named = body.block if command is DatanodeCommand.PUT_BLOCK else body
    return block_service(ContainerId(named.block_id.container_id), BlockId(named.block_id.local_id))


def _printable(token: SignedToken) -> str:
    return f"Kind: {token.kind}, Service: {token.service}, Ident: {token.identifier.hex(' ')}"


def _refused(text: str) -> RefusedError:
    return RefusedError(Code.UNAUTHENTICATED, f"BLOCK_TOKEN_VERIFICATION_FAILED for null: {text}")
