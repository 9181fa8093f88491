"""SASL on Hadoop's RPC: the exchange of Ozone's own client and SCM 2.2.0, recorded, and refusals.

`tests/golden/ozone/sasl-exchange.json` has the messages of both sides as they were on the network.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ozone.clients.frames import FrameBuffer, parse_answer, parse_sasl
from ozone.clients.messages import SASL
from ozone.clients.sasl import ProtectionLevel, SaslExchange
from suture.errors import Code, RefusedError

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone" / "sasl-exchange.json"
GREETING = b"hrpc\x09\x00\xdf"
SERVER = "scm/localhost"
NEGOTIATE, INITIATE, CHALLENGE, RESPONSE, SUCCESS = 1, 2, 3, 4, 0
OFFER_ALL = bytes([7]) + (65_536).to_bytes(3, "big")


def recorded(side: str) -> list[bytes]:
    """Return the frames of one side, with their length."""
    lines = json.loads(GOLDEN.read_text())
    return [bytes.fromhex(line["frames"]) for line in lines if line["from"] == side]


def messages() -> Iterator[Any]:
    """Yield the messages of the server."""
    for data in recorded("server"):
        yield parse_sasl(parse_answer(data[4:]).body)


@dataclass
class ScriptedContext:
    """A context of GSSAPI whose tokens are known; `wrapped` is prefixed, as a real one is."""

    tokens: list[bytes]
    offer: bytes
    seen: list[bytes | None] = field(default_factory=list)
    wrapped: list[bytes] = field(default_factory=list)
    token_of: Callable[[bytes], bytes] = lambda data: b"W" + data

    @property
    def is_complete(self) -> bool:
        """True once all tokens were used."""
        return not self.tokens

    def step(self, token: bytes | None) -> bytes:
        """Return the next token."""
        self.seen.append(token)
        return self.tokens.pop(0)

    def wrap(self, data: bytes, *, is_private: bool) -> bytes:
        """Return a token that can be told from plain data."""
        self.wrapped.append(data)
        return (b"E" if is_private else b"") + self.token_of(data)

    def unwrap(self, data: bytes, *, is_private: bool) -> bytes:
        """Return the server's offer."""
        del is_private
        self.seen.append(data)
        return self.offer

    def size_max(self, wrapped_bytes: int, *, is_private: bool) -> int:
        """Return a size that leaves room for what a token adds."""
        del is_private
        return max(0, wrapped_bytes - 60)


def negotiated(server_id: str = "localhost", method: str = "KERBEROS") -> Any:
    """Return the server's first message."""
    auth = {"method": method, "mechanism": "GSSAPI", "protocol": "scm", "server_id": server_id}
    return SASL(state=NEGOTIATE, auths=[auth])


def exchanged(
    offer: bytes, level_min: ProtectionLevel = ProtectionLevel.AUTHENTICATION
) -> tuple[SaslExchange, ScriptedContext, bytes | None]:
    """Return an exchange up to the choice of a level, its context, and the frame of the choice."""
    context = ScriptedContext([b"one", b""], offer)
    exchange = SaslExchange(lambda: context, SERVER, level_min)
    exchange.begin()
    for message in (negotiated(), SASL(state=CHALLENGE, token=b"proof")):
        exchange.reply(message)
    return exchange, context, exchange.reply(SASL(state=CHALLENGE, token=b"offer"))


def test_exchange_sends_the_frames_of_ozones_own_client() -> None:
    """Byte for byte; only the tokens themselves are those that the recorded client sent."""
    theirs = recorded("client")
    initiate, choice = (parse_sasl_of(theirs[at]) for at in (1, 3))
    context = ScriptedContext(
        [initiate.token, b""], bytes.fromhex("01010000"), token_of=lambda _: choice.token
    )
    exchange = SaslExchange(lambda: context, SERVER, ProtectionLevel.AUTHENTICATION)

    sent = [GREETING + exchange.begin()]
    for message in messages():
        reply = exchange.reply(message)
        sent += [] if reply is None else [reply]

    assert theirs == sent
    assert exchange.protection is None
    assert [b"\x01\x00\x00\x00"] == context.wrapped
    assert [message.token for message in messages()][1:3] == context.seen[1:]


def parse_sasl_of(frame: bytes) -> Any:
    """Return the message in a frame of the client: after its length and its header."""
    header_bytes = frame[4]
    return SASL.FromString(_undelimited(frame[5 + header_bytes :]))


def _undelimited(data: bytes) -> bytes:
    at = next(place for place, byte in enumerate(data) if byte < 0x80)
    return data[at + 1 :]


@pytest.mark.parametrize(
    ("bits", "chosen"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (7, 4), (0x84, 4)]
)
def test_highest_offered_level_is_chosen(bits: int, chosen: int) -> None:
    """Unknown bits of a server are not chosen."""
    exchange, context, _ = exchanged(bytes([bits, 1, 0, 0]))

    assert chosen == context.wrapped[-1][0]
    assert (exchange.protection is None) is (chosen == 1)


def test_server_below_the_required_level_is_refused() -> None:
    """`hadoop.rpc.protection` of the client's files names privacy."""
    with pytest.raises(RefusedError, match="offers integrity at most, and privacy is required"):
        exchanged(bytes([3, 1, 0, 0]), ProtectionLevel.PRIVACY)


@pytest.mark.parametrize(
    "offer", [b"", b"\x01", b"\x00\x01\x00\x00", b"\x08\x01\x00\x00", b"12345"]
)
def test_offer_without_a_known_level_is_refused(offer: bytes) -> None:
    """Short, long or unknown: nothing is chosen."""
    with pytest.raises(RefusedError, match="no known protection level"):
        exchanged(offer)


def test_data_is_wrapped_in_parts_that_the_server_takes() -> None:
    """200,000 bytes of frames for a server that takes 64 KiB at once."""
    exchange, context, _ = exchanged(OFFER_ALL)
    assert exchange.protection is not None
    data = bytes(range(200)) * 1000

    sent = FrameBuffer()
    sent.feed(exchange.protection.wrap(data))
    tokens = []
    while (frame := sent.pop_frame()) is not None:
        tokens.append(SASL.FromString(_undelimited(frame[1 + frame[0] :])).token)

    assert 4 == len(tokens)
    assert all(len(token) <= 65_536 for token in tokens)
    assert data == b"".join(token.removeprefix(b"EW") for token in tokens)
    assert data == b"".join(context.wrapped[1:])


def test_server_with_another_name_is_refused_before_a_token_is_made() -> None:
    """The server names itself; only the configured principal may ask for a ticket."""
    exchange = SaslExchange(_no_context, SERVER, ProtectionLevel.AUTHENTICATION)

    with pytest.raises(RefusedError, match="calls itself scm/evil, expected scm/localhost"):
        exchange.reply(negotiated("evil"))


def _no_context() -> Any:
    raise AssertionError("no ticket may be requested")


@pytest.mark.parametrize("method", ["SIMPLE", "TOKEN"])
def test_server_without_kerberos_is_refused(method: str) -> None:
    """It would not prove its name."""
    exchange = SaslExchange(_no_context, SERVER, ProtectionLevel.AUTHENTICATION)

    with pytest.raises(RefusedError, match=f"offers {method} instead of KERBEROS"):
        exchange.reply(negotiated(method=method))


@pytest.mark.parametrize("after", [0, 1])
def test_success_before_the_server_proved_its_name_is_refused(after: int) -> None:
    """A server without the key of its principal could say so, and would be believed."""
    context = ScriptedContext([b"one", b"two"], OFFER_ALL)
    exchange = SaslExchange(lambda: context, SERVER, ProtectionLevel.AUTHENTICATION)
    exchange.reply(negotiated())
    if after:
        exchange.reply(SASL(state=CHALLENGE, token=b"proof"))

    with pytest.raises(RefusedError, match="before it proved its name") as refusal:
        exchange.reply(SASL(state=SUCCESS))

    assert Code.UNAUTHENTICATED is refusal.value.code


def test_message_that_is_no_data_is_refused_after_the_exchange() -> None:
    """Another state than WRAP has no verified content."""
    exchange, _, _ = exchanged(OFFER_ALL)
    assert exchange.protection is not None

    with pytest.raises(RefusedError, match="instead of data"):
        exchange.protection.unwrap(SASL(state=RESPONSE, token=b"x"))
