"""The secret keys of a cluster, which sign and verify tokens, and the tokens of a caller.

The SCM makes a new key each day (`hdds.secret.key.rotate.duration`), and datanodes keep each key
until it expires. The signer requests the current key every ten minutes, as Ozone does. Each request
to a datanode gets a new token, so that a token never expires before its use.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import UUID

from merkle.replica import BlockId, ContainerId
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.disk.messages import BLOCK_DATA, parse
from ozone.security.tokens import AccessMode, SecretKey, block_token, container_token
from suture.errors import UnavailableError

CURRENT_MS: Final = 600_000  # age of the current key at which the SCM is asked again
RETRY_MS: Final = 10_000  # time until the next query if the SCM did not answer
UNKNOWN_MS: Final = 100  # time between queries for unknown keys, which anyone can name
KEYS_MAX: Final = 1_000  # by default, Ozone makes a key a day, valid for nine days
LIFETIME_MS: Final = 3_600_000  # lifetime of a token
BLOCK_COMMANDS: Final = {
    DatanodeCommand.GET_BLOCK: "get_block",
    DatanodeCommand.READ_CHUNK: "read_chunk",
    DatanodeCommand.WRITE_CHUNK: "write_chunk",
    DatanodeCommand.PUT_BLOCK: "put_block",
}
"""Commands to other datanodes that need a block token, and the names of their request fields."""
WRITES: Final = frozenset({DatanodeCommand.WRITE_CHUNK, DatanodeCommand.PUT_BLOCK})


class KeySource(Protocol):
    """Source of secret keys. `ozone.security.scm_security` implements it with calls to the SCM."""

    def current_key(self) -> SecretKey:
        """Return the secret key that signs tokens now.

        Raise RefusedError or UnavailableError if the source does not return one.
        """
        ...

    def key(self, key_id: UUID) -> SecretKey | None:
        """Return the secret key with this id, or None if there is none.

        Raise RefusedError or UnavailableError if the source does not answer.
        """
        ...


class SecretKeys:
    """Cache of secret keys from the SCM. Thread-safe."""

    def __init__(self, source: KeySource, now_ms: Callable[[], int]) -> None:
        self._source = source
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._known: dict[UUID, SecretKey] = {}
        self._current: SecretKey | None = None
        self._ask_at_ms = 0
        self._unknown_until_ms = 0

    def current(self) -> SecretKey:
        """Return the secret key that signs tokens now.

        If the SCM does not answer, the previous key is used until it expires. Raise RefusedError or
        UnavailableError if there is no such key.
        """
        with self._lock:
            now_ms = self._now_ms()
            if self._current is None or now_ms >= min(self._ask_at_ms, self._current.expires_ms):
                try:
                    self._current = self._cached_key(self._source.current_key())
                    self._ask_at_ms = now_ms + CURRENT_MS
                except UnavailableError:
                    if self._current is None or now_ms >= self._current.expires_ms:
                        raise
                    self._ask_at_ms = now_ms + RETRY_MS
            return self._current

    def find(self, key_id: UUID) -> SecretKey | None:
        """Return the secret key with this id, or None if the SCM has none.

        Raise RefusedError or UnavailableError if the SCM does not answer.
        """
        known = self._known.get(key_id)
        if known is not None:
            return known
        with self._lock:
            if self._now_ms() < self._unknown_until_ms:
                return None
            found = self._source.key(key_id)
            if found is None:
                self._unknown_until_ms = self._now_ms() + UNKNOWN_MS
                return None
            return self._cached_key(found)

    def _cached_key(self, key: SecretKey) -> SecretKey:
        if len(self._known) >= KEYS_MAX:
            self._known = {}
        self._known[key.key_id] = key
        return key


class TokenSigner:
    """Adds signed tokens to the requests of a caller to datanodes. Thread-safe."""

    def __init__(self, keys: SecretKeys, owner: str, now_ms: Callable[[], int]) -> None:
        """Sign with `keys`. `owner` is the name in the tokens, which Ozone writes to its logs."""
        self._keys = keys
        self._owner = owner
        self._now_ms = now_ms

    def sign(self, request: Any) -> None:
        """Add a token to a request, which permits only this request.

        Raise RefusedError or UnavailableError if there is no key to sign the token.
        """
        key = self._keys.current()
        expires_ms = min(self._now_ms() + LIFETIME_MS, key.expires_ms)
        container_id = ContainerId(request.container_id)
        field = BLOCK_COMMANDS.get(request.command)
        if field is None:
            token = container_token(key, container_id, owner=self._owner, expires_ms=expires_ms)
        else:
            is_write = request.command in WRITES
            token = block_token(
                key,
                container_id,
                _block_of(request, field),
                owner=self._owner,
                expires_ms=expires_ms,
                modes=[AccessMode.WRITE if is_write else AccessMode.READ],
            )
        request.encoded_token = token.text()


def _block_of(request: Any, field: str) -> BlockId:
    body = getattr(request, field)
    if request.command == DatanodeCommand.PUT_BLOCK:
        body = parse(BLOCK_DATA, body.block)
    return BlockId(body.block_id.local_id)
