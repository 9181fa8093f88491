"""Whatever an SCM of Ozone sends is understood, refused or no answer; the heartbeat goes on."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from agent.config.loading import load
from agent.host.external_control_plane import AgentServices
from agent.host.host import AgentProcess
from agent.host.outbox import REGISTERED, Outbox
from agent.host.term_tracker import TermTracker
from merkle.replica import ID_MAX, ContainerId
from ozone.scm_link.command_translation import (
    ImmediateAnswer,
    Reregister,
    TranslatedCommand,
    UnknownCommand,
    translate_command,
)
from ozone.scm_link.messages import COMMAND, ScmCommandType
from ozone.wiring import make_scm_links
from suture.errors import Code
from suture.runtime.clock import SystemClock
from suture.runtime.loop import Busy, RetryAfter, Step
from suture.wire.v1 import scm_pb2
from tests.support.ozone.led_agent import WHO, built, store_of, written
from tests.support.ozone.standin_scm import COMMAND as OZONE_COMMAND
from tests.support.ozone.standin_scm import StandInScm, command, standin_scm
from tests.support.waiting import wait_until

NOW_MS = 1_900_000_000_000
FLIPS = 300
CALL_AT = 6  # behind the lengths of frame and header, and the tag: a call below 128
INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-2, 3)
PORTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from([b"STANDALONE", b"REPLICATION", b"\xff"]),
        "value": st.integers(0, 2**32),
    }
)
PEER = st.fixed_dictionaries(
    {
        "uuid": st.binary(max_size=40) | st.just(b"a1111111-2222-3333-8444-555555555555"),
        "ip_address": st.binary(max_size=300) | st.just(b"127.0.0.1"),
        "host_name": st.binary(max_size=20),
        "ports": st.lists(PORTS, max_size=3),
    }
)
PEERS = st.lists(PEER, max_size=3)
COPY = {"container_id": INT64, "command_id": INT64, "priority": SMALL, "replica_index": INT64}
PARTS = {
    "close": {"container_id": INT64, "command_id": INT64, "force": st.booleans()},
    "delete": {"container_id": INT64, "command_id": INT64, "replica_index": INT64},
    "reconcile": {"container_id": INT64, "peers": PEERS},
    "reconstruct": {"container_id": INT64, "command_id": INT64},
    "set_operational_state": {"command_id": INT64, "state": INT64 | SMALL, "expiry_s": INT64},
    "delete_blocks": {
        "command_id": INT64,
        "transactions": st.lists(
            st.fixed_dictionaries(
                {
                    "transaction_id": INT64 | SMALL,
                    "container_id": INT64 | SMALL,
                    "local_ids": st.lists(INT64 | SMALL, max_size=3),
                }
            ),
            max_size=3,
        ),
    },
}


@given(
    kind=INT64 | st.integers(0, 14),
    parts=st.fixed_dictionaries(
        {},
        optional={
            **{k: st.fixed_dictionaries(v) for k, v in PARTS.items()},
            "replicate": st.fixed_dictionaries(COPY, optional={"target": PEER, "sources": PEERS}),
        },
    ),
    term=INT64,
    deadline_ms=INT64 | st.just(0) | st.integers(1, NOW_MS),
)
def test_whatever_is_ordered_is_understood_or_refused(
    kind: int, parts: dict[str, Any], term: int, deadline_ms: int
) -> None:
    """An accepted command fits the agent's own message, is valid, and has the remaining
    lifetime.
    """
    meant = translate_command(
        COMMAND(type=kind, term=term, deadline_ms=deadline_ms, **parts), NOW_MS
    )

    if kind not in set(ScmCommandType):
        assert UnknownCommand(kind) == meant
    elif kind != ScmCommandType.REREGISTER and ScmCommandType(kind).name.lower() not in parts:
        assert isinstance(meant, ImmediateAnswer)
        assert Code.MALFORMED_REQUEST is meant.code  # it has a type, and nothing else
    elif isinstance(meant, TranslatedCommand):
        assert_can_be(meant, deadline_ms)
    else:
        assert isinstance(meant, ImmediateAnswer | Reregister)


def assert_can_be(meant: TranslatedCommand, deadline_ms: int) -> None:
    """Check a command that goes into the queues."""
    ours = scm_pb2.Command.FromString(meant.command.SerializeToString())
    kind = ours.WhichOneof("command")
    assert kind is not None
    if kind in {"close", "delete", "reconcile", "replicate"}:
        assert 1 <= getattr(ours, kind).container_id <= ID_MAX
    assert not 0 < deadline_ms <= NOW_MS
    assert ours.lifetime_ms == (deadline_ms - NOW_MS if deadline_ms > 0 else 0)
    assert meant.replica_index >= 0
    copy = ours.replicate
    if kind == "replicate":
        assert copy.HasField("target") != bool(copy.sources)
    for peer in (*ours.reconcile.peers, *copy.sources, *([copy.target] * copy.HasField("target"))):
        assert 36 == len(peer.datanode_id)
        assert 0 < int(peer.address.rpartition(":")[2]) <= 65_535


NUMBER = INT64 | st.integers(0, 20)


@given(data=NUMBER, parity=NUMBER, cell_bytes=NUMBER, replica_index=NUMBER)
def test_a_reconstruction_of_numbers_beyond_ours_is_refused(
    data: int, parity: int, cell_bytes: int, replica_index: int
) -> None:
    """
    Only that one: an error would drop all orders of the same answer, for ever.
    """
    peer = {
        "uuid": b"a1111111-2222-3333-8444-555555555555",
        "ip_address": b"127.0.0.1",
        "ports": [{"name": b"STANDALONE", "value": 9}],
    }
    order = {
        "container_id": 7,
        "sources": [{"peer": peer, "replica_index": replica_index}],
        "targets": [peer],
        "missing": b"\2",
        "coding": {"codec": b"RS", "data": data, "parity": parity, "cell_bytes": cell_bytes},
    }

    meant = translate_command(COMMAND(type=ScmCommandType.RECONSTRUCT, reconstruct=order), NOW_MS)

    if isinstance(meant, TranslatedCommand):
        scheme = meant.command.reconstruct.scheme
        assert (data, parity, cell_bytes) == (scheme.data, scheme.parity, scheme.cell_bytes)
    else:
        assert isinstance(meant, ImmediateAnswer)
        assert Code.MALFORMED_REQUEST is meant.code
        assert (
            max(data, parity, cell_bytes, replica_index) > 20 or min(data, parity, cell_bytes) < 1
        )


@given(st.binary(max_size=200))
def test_any_bytes_of_ozones_own_are_read_alike(data: bytes) -> None:
    """Bytes that Ozone's classes read as a complete command are a command of the same type here."""
    try:
        theirs = OZONE_COMMAND.FromString(data)
    except DecodeError:
        return
    meant = translate_command(COMMAND.FromString(data), NOW_MS)
    if theirs.commandType == 1:
        assert Reregister() == meant


@pytest.fixture
def scm() -> Iterator[StandInScm]:
    """A manager whose answers are damaged on the way."""
    with standin_scm(knows_all=True) as server:
        yield server


@pytest.fixture
def host(scm: StandInScm, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that was built, and is led step by step."""
    made = built(load(written(tmp_path, scm.address)))
    yield made
    assert [] == made.stop()


def test_a_damaged_answer_is_no_order(scm: StandInScm, host: AgentProcess) -> None:
    """
    Any bit of an answer may be another: each step ends as one of a heartbeat does.
    """
    rng = random.Random(20)
    ends: Counter[type[Step]] = Counter()
    accepted: list[scm_pb2.Command] = []
    outbox = Outbox()
    (leader,) = make_scm_links([f"ozone://{scm.address}"])
    worker = leader.worker(led(host, accepted), outbox, TermTracker().observe_term)
    wait_s = worker.step()
    assert isinstance(wait_s, RetryAfter)
    scm.spoil = lambda answer: spoilt(answer, rng)
    for _ in range(FLIPS):
        payload = {"containerID": 7, "cmdId": 9, "force": False}
        scm.commands.append(command("deleteContainer", payload))
        anew(worker)
        ends[type(worker.step())] += 1
        leader.close()

    assert {RetryAfter, Busy} >= set(ends)
    assert 10 < len(accepted) < FLIPS  # some flips change an id, most make no answer of it
    scm.spoil = None
    wait_until(lambda: isinstance(worker.step(), RetryAfter) and outbox.state == REGISTERED)


def test_the_answer_to_another_call_is_none(scm: StandInScm, host: AgentProcess) -> None:
    """The answer to an earlier call sends no command."""
    accepted: list[scm_pb2.Command] = []
    outbox = Outbox()
    (leader,) = make_scm_links([f"ozone://{scm.address}"])
    worker = leader.worker(led(host, accepted), outbox, TermTracker().observe_term)
    assert isinstance(worker.step(), RetryAfter)
    scm.commands.append(command("deleteContainer", {"containerID": 7, "cmdId": 9, "force": False}))
    scm.spoil = lambda answer: (
        answer[:CALL_AT] + bytes([answer[CALL_AT] ^ 1]) + answer[CALL_AT + 1 :]
    )
    anew(worker)

    worker.step()

    leader.close()
    assert [] == accepted
    assert "the answer to call" in outbox.state


def test_news_that_did_not_arrive_are_told_again(scm: StandInScm, host: AgentProcess) -> None:
    """Reports that the manager may not have received stay pending."""
    outbox = Outbox()
    (leader,) = make_scm_links([f"ozone://{scm.address}"])
    worker = leader.worker(led(host, []), outbox, TermTracker().observe_term)
    assert isinstance(worker.step(), RetryAfter)
    outbox.notify(ContainerId(5))
    scm.spoil = lambda _: b""
    anew(worker)

    worker.step()

    leader.close()
    assert [5] == outbox.pop_changed(10)


def anew(worker: Any) -> None:
    """Let the next step be a heartbeat at once, whatever the last answer was; its term, too, may
    have been a wrong one."""
    worker._sent_at_s, worker._is_registered = float("-inf"), True
    worker.leads = TermTracker().observe_term


def spoilt(answer: bytes, rng: random.Random) -> bytes:
    """Flip a bit."""
    data = bytearray(answer)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def led(host: AgentProcess, accepted: list[scm_pb2.Command]) -> AgentServices:
    """Return what a leader hears of a host, with its orders into a list."""
    return AgentServices(
        config=host.config,
        who=WHO,
        store=store_of(host),
        reporter=host.observer,
        clock=SystemClock(),
        protocol_addresses=host.protocol_addresses,
        leases=host.leases,
        submit=host.disk_writers.submit,
        request_scan=host.request_scan,
        accept=lambda commands, _term: accepted.extend(commands),
        answer=lambda _: None,
    )
