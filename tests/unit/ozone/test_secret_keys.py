"""The keys that sign and verify tokens: rotation, an SCM that does not answer, unknown keys."""

from dataclasses import dataclass, field
from uuid import UUID

import pytest

from merkle.replica import BlockData, BlockId, ContainerId
from ozone.clients.datanode_messages import REQUEST, DatanodeCommand
from ozone.disk.encoding import encode_row
from ozone.security.secret_keys import CURRENT_MS, LIFETIME_MS, UNKNOWN_MS, SecretKeys, TokenSigner
from ozone.security.tokens import (
    AccessMode,
    SecretKey,
    parse_block_identifier,
    parse_container_identifier,
    parse_token,
)
from suture.errors import Code, UnavailableError

DAY_MS = 86_400_000
CONTAINER = ContainerId(7)
BLOCK = BlockId(42)
KEY = {"container_id": CONTAINER, "local_id": BLOCK}


@dataclass
class RotatingScm:
    """An SCM that makes a new key each day, which is valid for nine days."""

    now_ms: int = 1_000_000
    is_silent: bool = False
    questions: list[str] = field(default_factory=list)

    def made(self, day: int) -> SecretKey:
        """Return the key of a day."""
        created_ms = day * DAY_MS
        return SecretKey(
            UUID(int=day + 1), created_ms, created_ms + 9 * DAY_MS, "HmacSHA256", bytes([day])
        )

    def current_key(self) -> SecretKey:
        """Return the key of today."""
        self.questions.append("current")
        self._answer()
        return self.made(self.now_ms // DAY_MS)

    def key(self, key_id: UUID) -> SecretKey | None:
        """Return the key of any day until today."""
        self.questions.append("key")
        self._answer()
        day = key_id.int - 1
        return self.made(day) if day <= self.now_ms // DAY_MS else None

    def _answer(self) -> None:
        if self.is_silent:
            raise UnavailableError(Code.UNAVAILABLE, "no SCM answered")

    def clock(self) -> int:
        """Return the time."""
        return self.now_ms


@pytest.fixture
def scm() -> RotatingScm:
    """An SCM that answers."""
    return RotatingScm()


@pytest.fixture
def keys(scm: RotatingScm) -> SecretKeys:
    """The keys of that SCM."""
    return SecretKeys(scm, scm.clock)


def test_current_key_follows_the_rotation(scm: RotatingScm, keys: SecretKeys) -> None:
    """Each of ten days signs with its own key, with one question in ten minutes."""
    for day in range(10):
        scm.now_ms = day * DAY_MS + CURRENT_MS
        assert scm.made(day) == keys.current() == keys.current()

    assert ["current"] * 10 == scm.questions


def test_silent_scm_leaves_the_key_in_use_until_it_expires(
    scm: RotatingScm, keys: SecretKeys
) -> None:
    """After that there is nothing to sign with."""
    first = keys.current()
    scm.is_silent = True
    scm.now_ms = first.expires_ms - 1
    assert first == keys.current()

    scm.now_ms = first.expires_ms
    with pytest.raises(UnavailableError):
        keys.current()


def test_unknown_key_is_asked_for_once_and_kept(scm: RotatingScm, keys: SecretKeys) -> None:
    """As by a datanode that receives the first token after a rotation."""
    assert scm.made(0) == keys.find(UUID(int=1)) == keys.find(UUID(int=1))
    assert ["key"] == scm.questions


def test_invented_keys_do_not_flood_the_scm(scm: RotatingScm, keys: SecretKeys) -> None:
    """A stranger may name any number of ids; after a pause, a new key is found again."""
    for number in range(100, 1100):
        assert keys.find(UUID(int=number)) is None
    assert ["key"] == scm.questions

    scm.now_ms += UNKNOWN_MS
    assert scm.made(0) == keys.find(UUID(int=1))


@pytest.mark.parametrize(
    ("command", "body"),
    [
        (DatanodeCommand.READ_CONTAINER, {"read_container": {}}),
        (DatanodeCommand.LIST_BLOCK, {"list_block": {"count": 1}}),
        (DatanodeCommand.CREATE_CONTAINER, {"create_container": {"replica_index": 1}}),
        (DatanodeCommand.CLOSE_CONTAINER, {"close_container": {}}),
        (DatanodeCommand.DELETE_CONTAINER, {"delete_container": {}}),
        (DatanodeCommand.GET_CONTAINER_CHECKSUM_INFO, {"get_container_checksum_info": {}}),
    ],
)
def test_commands_of_a_container_have_its_token(
    scm: RotatingScm, keys: SecretKeys, command: DatanodeCommand, body: dict[str, object]
) -> None:
    """It is new, and for nothing else."""
    request = REQUEST(command=command, container_id=CONTAINER, **body)

    TokenSigner(keys, "suture", scm.clock).sign(request)

    token = parse_token(request.encoded_token)
    facts = parse_container_identifier(token.identifier)
    assert "HDDS_CONTAINER_TOKEN" == token.kind
    assert ("#7", scm.now_ms + LIFETIME_MS) == (facts.service, facts.expires_ms)
    assert keys.current().sign(token.identifier) == token.password


@pytest.mark.parametrize(
    ("command", "body", "mode"),
    [
        (DatanodeCommand.GET_BLOCK, {"get_block": {"block_id": KEY}}, AccessMode.READ),
        (DatanodeCommand.READ_CHUNK, {"read_chunk": {"block_id": KEY}}, AccessMode.READ),
        (DatanodeCommand.WRITE_CHUNK, {"write_chunk": {"block_id": KEY}}, AccessMode.WRITE),
        (
            DatanodeCommand.PUT_BLOCK,
            {"put_block": {"block": encode_row(CONTAINER, BlockData(BLOCK, 0, ()), 1)}},
            AccessMode.WRITE,
        ),
    ],
)
def test_commands_of_a_block_have_its_token_for_one_mode(
    scm: RotatingScm,
    keys: SecretKeys,
    command: DatanodeCommand,
    body: dict[str, object],
    mode: AccessMode,
) -> None:
    """A token for a read does not permit a write."""
    request = REQUEST(command=command, container_id=CONTAINER, **body)

    TokenSigner(keys, "suture", scm.clock).sign(request)

    token = parse_token(request.encoded_token)
    facts = parse_block_identifier(token.identifier)
    assert "HDDS_BLOCK_TOKEN" == token.kind
    assert ("conID: 7 locID: 42", {mode}) == (facts.service, facts.modes)
    assert keys.current().sign(token.identifier) == token.password
