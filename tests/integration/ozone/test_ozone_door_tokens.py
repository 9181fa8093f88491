"""Tokens at an agent in a secure cluster: the answers of a datanode of Ozone 2.2.0 to the same.

`tests/golden/ozone/token-answers.json` has the answers that Ozone's own datanode gave to the
requests of `tests.support.ozone.token_cases`, for container 1 and one of its blocks.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from merkle.replica import BlockId, ContainerId
from ozone.clients.datanode import Datanode, DatanodeAccess
from ozone.messages.security_pb2 import BlockTokenIdentifier
from ozone.security.secret_keys import SecretKeys, TokenSigner
from ozone.security.token_verifier import TokenVerifier
from ozone.security.tokens import SecretKey
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.ozone.ozone_agent import OzoneClient, served
from tests.support.ozone.ozone_wire import COMMANDS, RESULTS, WIRE
from tests.support.ozone.token_cases import (
    BLOCK_KIND,
    CONTAINER_KIND,
    Signer,
    TokenCase,
    block_identifier,
    body_of,
    container_identifier,
    right,
    signed,
    wrong,
)
from tests.support.storage.stored_replica import DATANODE

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone" / "token-answers.json"
THEIR_BLOCK = 117883640217600001
CONTAINER, BLOCK = 1, 2
KEY_ID = UUID("a1234567-89ab-cdef-8123-456789abcdef")
KEY = b"k" * 32
DAY_MS = 86_400_000


@dataclass
class OneKey:
    """An SCM with one secret key."""

    now_ms: int
    is_silent: bool = False
    asked: list[UUID] = field(default_factory=list)

    def current_key(self) -> SecretKey:
        """Return the key."""
        return SecretKey(KEY_ID, 0, self.now_ms + DAY_MS, "HmacSHA256", KEY)

    def key(self, key_id: UUID) -> SecretKey | None:
        """Return the key, if it is this one."""
        self.asked.append(key_id)
        if self.is_silent:
            raise UnavailableError(Code.UNAVAILABLE, "no SCM answered")
        return self.current_key() if key_id == KEY_ID else None


@dataclass
class World:
    """An agent that verifies tokens, its clock, and a client."""

    scm: OneKey
    client: OzoneClient

    @property
    def signer(self) -> Signer:
        """The key, and the present time."""
        return Signer(KEY_ID, KEY, self.scm.now_ms)

    def answer(self, case: TokenCase, **body: Any) -> Any:
        """Send a case; return the answer."""
        more = {} if case.token is None else {"encodedToken": case.token}
        request = WIRE["Request"](
            cmdType=COMMANDS[case.command],
            containerID=CONTAINER,
            datanodeUuid=DATANODE,
            **{case.command: body or body_of(case.command, CONTAINER, BLOCK)},
            **more,
        )
        (answer,) = self.client.send(request.SerializeToString())
        return answer


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Container 1 with three blocks."""
    scm = OneKey(int(time.time() * 1000))
    keys = SecretKeys(scm, lambda: scm.now_ms)
    verifier = TokenVerifier(keys, lambda: scm.now_ms)
    with served(tmp_path, verify=verifier.verify) as (agent, client):
        agent.replica.create()
        yield World(scm, client)


def expected(said: str) -> str:
    """Return the text of Ozone's datanode, for our block and key; without a binary identifier."""
    for theirs, ours in (
        (str(THEIR_BLOCK + 1), str(BLOCK + 1)),
        (str(THEIR_BLOCK), str(BLOCK)),
        ("<unknown>", str(UUID(int=KEY_ID.int ^ 1))),
    ):
        said = said.replace(theirs, ours)
    return said.partition("Ident: ")[0]


def test_wrong_tokens_are_refused_with_the_code_and_text_of_ozone(world: World) -> None:
    """No answer has a byte of data. All cases are sent, in the recorded order."""
    recorded = json.loads(GOLDEN.read_text())
    cases = list(wrong(world.signer, CONTAINER, BLOCK))
    assert len(cases) >= 15

    for case, theirs in zip(cases, recorded, strict=False):
        assert (case.name, case.command) == (theirs["case"], theirs["command"])
        answer = world.answer(case)
        said = answer.message.replace(case.token or "<none>", "<token>").partition("Ident: ")[0]
        assert (theirs["result"], expected(theirs["message"])) == (RESULTS[answer.result], said)
        assert answer.ByteSize() < 10 + len(answer.message.encode()), "only a result and a text"


def test_right_tokens_are_served(world: World) -> None:
    """As by Ozone's datanode."""
    for case in right(world.signer, CONTAINER, BLOCK):
        if case.command != "getContainerChecksumInfo":  # the container was not closed by a scan
            assert "SUCCESS" == RESULTS[world.answer(case).result], case


def test_checksum_info_needs_a_valid_token(world: World) -> None:
    """Ozone's datanode accepts any text that decodes; its own clients send the right token."""
    stranger = Signer(KEY_ID, b"x" * 32, world.scm.now_ms)
    for command in ("getContainerChecksumInfo", "echo", "listContainer"):
        identifier = container_identifier(stranger, CONTAINER)
        token = signed(stranger, identifier, CONTAINER_KIND)
        assert 41 == world.answer(TokenCase("stranger", command, token)).result


@pytest.mark.parametrize("command", ["writeChunk", "putBlock"])
def test_read_token_permits_no_write(world: World, command: str) -> None:
    """The mode is that of the command."""
    key = {"containerID": CONTAINER, "localID": BLOCK}
    body = {"blockData": {"blockID": key}} if command == "putBlock" else {"blockID": key}
    token = signed(world.signer, block_identifier(world.signer, CONTAINER, BLOCK), BLOCK_KIND)

    answer = world.answer(TokenCase("read", command, token), **body)

    assert (41, "doesn't have WRITE permission") == (answer.result, answer.message[-29:])


def test_token_ends_while_the_connection_stays(world: World) -> None:
    """Each request is verified, not each connection."""
    case = next(iter(right(world.signer, CONTAINER, BLOCK)))
    assert 1 == world.answer(case).result

    world.scm.now_ms += 3_600_000

    assert (41, "Expired token") == (
        (answer := world.answer(case)).result,
        answer.message.partition("null: ")[2][:13],
    )


def test_expired_secret_key_verifies_nothing(world: World) -> None:
    """Also a token that claims a later expiry."""
    late = block_identifier(world.signer, CONTAINER, BLOCK, late_ms=30 * DAY_MS)
    case = TokenCase("late", "getBlock", signed(world.signer, late, BLOCK_KIND))
    assert 1 == world.answer(case).result

    world.scm.now_ms += 2 * DAY_MS

    answer = world.answer(case)
    assert 41 == answer.result
    assert "due to expired secret key" in answer.message


def test_silent_scm_serves_nothing_to_an_unknown_key(world: World) -> None:
    """The key of a token cannot be fetched, so the caller tries again or another replica."""
    world.scm.is_silent = True

    answer = world.answer(next(iter(right(world.signer, CONTAINER, BLOCK))))

    assert "IO_EXCEPTION" == RESULTS[answer.result]
    assert not answer.HasField("getBlock")


def test_own_client_reads_with_its_tokens(world: World) -> None:
    """The client signs each request; without tokens it is refused."""
    signer = TokenSigner(
        SecretKeys(world.scm, lambda: world.scm.now_ms), "suture", lambda: world.scm.now_ms
    )
    address = world.client.address
    container_id, block_id = ContainerId(CONTAINER), BlockId(BLOCK)

    with Datanode(address, DATANODE, access=DatanodeAccess(sign=signer.sign)) as datanode:
        facts = datanode.container(container_id)
        row = datanode.block(container_id, block_id)
        data = datanode.read(container_id, block_id, row.chunks[0])
        assert [1, 2, 3] == list(datanode.block_ids(container_id))
    assert (3, row.chunks[0].length_bytes) == (facts.block_count, len(data))

    with Datanode(address, DATANODE) as datanode, pytest.raises(RefusedError) as refused:
        datanode.container(container_id)
    assert "Failed to find any token" in str(refused.value)


def test_clocks_that_differ_are_named(world: World) -> None:
    """The client's clock is two hours behind, so its new token has expired at the server."""
    late = TokenSigner(
        SecretKeys(world.scm, lambda: world.scm.now_ms),
        "suture",
        lambda: world.scm.now_ms - 7_200_000,
    )
    access = DatanodeAccess(sign=late.sign)
    with (
        Datanode(world.client.address, DATANODE, access=access) as datanode,
        pytest.raises(RefusedError, match="the clocks of the two hosts differ"),
    ):
        datanode.container(ContainerId(CONTAINER))


def test_identifier_by_hand_is_that_of_the_product() -> None:
    """The tokens of these tests are put together by Ozone's field numbers."""
    made = block_identifier(Signer(KEY_ID, KEY, 0), CONTAINER, BLOCK)

    assert "conID: 1 locID: 2" == BlockTokenIdentifier.FromString(made).block_id
