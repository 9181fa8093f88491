"""Copies that an Ozone SCM orders of an agent: pushed to a target, or fetched from sources."""

import io
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zstandard

from agent.host.host import AgentProcess
from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId, ReplicaState
from ozone.transfer.messages import Compression
from ozone.transfer.replicate_handler import ContainerReplicator
from ozone.wiring import importer
from suture.errors import UnavailableError
from suture.wire.security.tls import LOOPBACK_ONLY
from suture.wire.v1.scm_pb2 import ReplicateCommand
from tests.integration.ozone.test_ozone_archives import (
    BLOCKS,
    GONE,
    ROOT,
    WHOLE,
    packed,
    plain,
)
from tests.integration.ozone.test_ozone_archives import (
    SHARD as CODED,
)
from tests.support.http2_tap import http2_tap
from tests.support.ozone.archive_peer import archive_peer
from tests.support.ozone.led_agent import led_agent, store_of
from tests.support.ozone.ozone_agent import OzoneAgent, served
from tests.support.ozone.ozone_datanode import java_random
from tests.support.ozone.standin_scm import StandInScm, command, standin_scm
from tests.support.storage.stores import CHUNK_BYTES, content, write_block
from tests.support.waiting import wait_until

EXECUTED, FAILED = 2, 3
ONE, OPEN, SHARD = ContainerId(1), ContainerId(2), ContainerId(3)
NONE, ZSTD = 1, 5
LARGE, LARGE_CHUNKS, LARGE_BYTES = (
    14,
    30,
    100_000,
)  # more than gRPC takes at once: what breaks does so in the middle
UUID = "a1111111-2222-3333-8444-555555555555"
NOWHERE = 1
PATIENCE_S = 0.4


@pytest.fixture
def scm() -> Iterator[StandInScm]:
    """A manager that leads in term 5."""
    with standin_scm(term=5) as server:
        yield server


@pytest.fixture
def agent(scm: StandInScm, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that it leads, with a closed replica, an open one and a shard."""
    with led_agent(tmp_path / "agent", scm.address) as host:
        fill(host)
        yield host


def fill(host: AgentProcess) -> None:
    """Write what is to be copied."""
    store = store_of(host)
    store.create_container(ONE)
    for block_id in (11, 12, 9):
        write_block(store, ONE, block_id)
    write_block(store, ONE, LARGE, chunk_count=LARGE_CHUNKS, chunk_bytes=LARGE_BYTES)
    store.close_container(ONE, force=True)
    store.create_container(OPEN)
    write_block(store, OPEN, 21)
    store.create_container(SHARD, replica_index=2)
    write_block(store, SHARD, 31)
    store.close_container(SHARD, force=True)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[OzoneAgent]:
    """Another agent, which has nothing."""
    with served(tmp_path / "target", algorithm=Algorithm.CRC32C) as (made, _):
        yield made


def at(port: int | str) -> dict[str, Any]:
    """Return how the manager names a datanode; other ports of it lead nowhere."""
    ports = [{"name": "STANDALONE", "value": NOWHERE}, {"name": "REPLICATION", "value": int(port)}]
    return {"uuid": UUID, "ipAddress": "127.0.0.1", "hostName": "dn2", "ports": ports}


def port_of(made: OzoneAgent) -> int:
    """Return where an agent is reached."""
    return made.door.port


def answered(scm: StandInScm, command_id: int, *, deadline_ms: int = 0, **payload: Any) -> Any:
    """Order a copy; return the answer."""
    said = {"containerID": 1, "sources": [], "cmdId": command_id, **payload}
    scm.commands.append(command("replicateContainer", said, term=5, deadline_ms=deadline_ms))
    wait_until(lambda: any(status.cmdId == command_id for status in scm.statuses()))
    return next(status for status in scm.statuses() if status.cmdId == command_id)


def test_a_replica_is_pushed_to_an_agent(
    scm: StandInScm, agent: AgentProcess, target: OzoneAgent
) -> None:
    """Rows, bytes, state and root are there, and it is scanned there."""
    status = answered(scm, 71, target=at(port_of(target)))

    assert (EXECUTED, "") == (status.status, status.msg)
    store = target.replica.store
    assert ReplicaState.CLOSED is store.replica(ONE).state
    assert store_of(agent).view(ONE).tree().root == store.view(ONE).tree().root
    small = [(block_id, 2, CHUNK_BYTES) for block_id in (9, 11, 12)]
    for block_id, count, size_bytes in (*small, (LARGE, LARGE_CHUNKS, LARGE_BYTES)):
        written = b"".join(content((block_id, number), size_bytes) for number in range(count))
        assert written == store.view(ONE).read(BlockId(block_id), 0, len(written))
    assert [ONE] == target.scans
    assert [("ImportContainer", "OK")] == [line[:2] for line in target.audit.lines]


def test_a_shard_is_pushed_with_its_index(
    scm: StandInScm, agent: AgentProcess, target: OzoneAgent
) -> None:
    """The shard is pushed with its index, and a shard that the manager did not mean is refused."""
    del agent
    other = answered(scm, 71, containerID=3, target=at(port_of(target)), replicaIndex=1)
    meant = answered(scm, 72, containerID=3, target=at(port_of(target)), replicaIndex=2)

    assert (FAILED, "the replica here is not shard 1") == (other.status, other.msg[-31:])
    assert EXECUTED == meant.status
    assert 2 == target.replica.store.replica(SHARD).replica_index


@pytest.mark.parametrize(("more", "compression"), [("", NONE), ("compress_copies = true", ZSTD)])
def test_pushed_archive_is_an_ozone_archive(
    scm: StandInScm, tmp_path: Path, more: str, compression: int
) -> None:
    """Every message has the fields that Ozone requires, and the offsets of the parts are
    contiguous.
    """
    with archive_peer() as peer, led_agent(tmp_path, scm.address, more=more) as host:
        fill(host)
        assert EXECUTED == answered(scm, 71, target=at(peer.port)).status

        position = 0
        for part in peer.parts:
            assert all(part.HasField(name) for name in ("containerID", "offset", "data"))
            assert (1, position, compression) == (part.containerID, part.offset, part.compression)
            position += len(part.data)
        assert store_of(host).replica(ONE).used_bytes == peer.parts[0].size
        assert 1 == peer.ended
        data = peer.sent()
    if compression == ZSTD:
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        block = archive.extractfile("chunks/11.block").read()  # type: ignore[union-attr]
    assert ["container.yaml", "1.tree", "db"] == names[:3]
    assert content((11, 0), CHUNK_BYTES) + content((11, 1), CHUNK_BYTES) == block


def test_damage_in_the_middle_cancels_the_stream(scm: StandInScm, agent: AgentProcess) -> None:
    """The target never gets the end of the stream, and the local replica is scanned."""
    path = store_of(agent).paths(ONE).chunks / f"{LARGE}.block"
    with path.open("r+b") as file:
        file.seek((LARGE_CHUNKS - 1) * LARGE_BYTES)
        file.write(b"damage")
    with archive_peer() as peer, http2_tap(peer.port) as tap:
        status = answered(scm, 71, target=at(tap.port))

        assert FAILED == status.status
        assert f"block {LARGE} is damaged here" in status.msg
        wait_until(lambda: bool(tap.endings))
        assert ["reset"] == tap.endings
        assert peer.parts
    wait_until(lambda: scm.replicas()[1].state == 5)


def test_a_target_that_is_full_says_so(
    scm: StandInScm, agent: AgentProcess, tmp_path: Path
) -> None:
    """In its own words, and nothing is left there."""
    del agent
    with served(tmp_path / "full", algorithm=Algorithm.CRC32C, reserve_bytes=2**60) as (full, _):
        status = answered(scm, 71, target=at(port_of(full)))

        assert FAILED == status.status
        assert "the volume with the most space has 0" in status.msg
        assert full.address in status.msg
        assert [] == full.replica.store.replica_ids()


def test_a_replica_that_is_there_is_left_alone(
    scm: StandInScm, agent: AgentProcess, target: OzoneAgent
) -> None:
    """An order that is given twice makes no second copy."""
    del agent
    assert EXECUTED == answered(scm, 71, target=at(port_of(target))).status

    again = answered(scm, 72, target=at(port_of(target)))

    assert FAILED == again.status
    assert "container 1" in again.msg
    assert ReplicaState.CLOSED is target.replica.store.replica(ONE).state


@pytest.mark.parametrize(
    ("container_id", "words"), [(2, "INVALID_CONTAINER_STATE"), (77, "CONTAINER_NOT_FOUND")]
)
def test_container_that_is_not_closed_here_is_not_pushed(
    scm: StandInScm, agent: AgentProcess, target: OzoneAgent, container_id: int, words: str
) -> None:
    """The manager's view of the container is out of date."""
    del agent
    status = answered(scm, 71, containerID=container_id, target=at(port_of(target)))

    assert FAILED == status.status
    assert words in status.msg
    assert [] == target.replica.store.replica_ids()


def test_a_target_that_does_not_answer_costs_the_deadline(
    scm: StandInScm, agent: AgentProcess
) -> None:
    """A target that does not answer costs the deadline and no more."""
    del agent
    with archive_peer(answers=False) as peer:
        deadline_ms = int(time.time() * 1000) + 1_500
        status = answered(scm, 71, target=at(peer.port), deadline_ms=deadline_ms)

    assert FAILED == status.status
    assert "deadline" in status.msg.lower()


@pytest.mark.parametrize("is_pull", [False, True])
def test_a_copy_under_way_holds_up_no_stop(scm: StandInScm, tmp_path: Path, is_pull: bool) -> None:
    """`led_agent` asserts that the agent ends in time."""
    with archive_peer(answers=False) as peer:
        with led_agent(tmp_path, scm.address) as host:
            fill(host)
            named = {"sources": [at(peer.port)]} if is_pull else {"target": at(peer.port)}
            said = {"containerID": 5 if is_pull else 1, "sources": [], "cmdId": 71, **named}
            scm.commands.append(command("replicateContainer", said, term=5))
            wait_until(lambda: bool(peer.wishes) if is_pull else peer.ended == 1)
        assert WHOLE not in store_of(host).replica_ids()


@pytest.mark.parametrize(("more", "compression"), [("", NONE), ("compress_copies = true", ZSTD)])
def test_container_is_fetched_from_the_source_that_has_it(
    scm: StandInScm, tmp_path: Path, more: str, compression: int
) -> None:
    """The archive is from a real datanode. One of three sources has it."""
    archive = packed("whole") if compression == ZSTD else plain("whole")
    with (
        archive_peer(archive=archive) as good,
        archive_peer(archive=archive, spoil=lambda parts: parts[:2]) as short,
        led_agent(tmp_path, scm.address, more=more) as host,
    ):
        status = answered(
            scm, 71, containerID=5, sources=[at(NOWHERE), at(short.port), at(good.port)]
        )

        assert (EXECUTED, "") == (status.status, status.msg)
        (wish,) = good.wishes
        assert wish.HasField("readOffset")  # Ozone requires it
        assert (5, 0, compression) == (wish.containerID, wish.readOffset, wish.compression)
        store = store_of(host)
        assert ROOT == store.view(WHOLE).tree().root
        assert GONE == set(store.view(WHOLE).tombstones())
        for number, (seed, length_bytes) in BLOCKS.items():
            data = store.view(WHOLE).read(BlockId(number), 0, length_bytes)
            assert java_random(seed, length_bytes) == data
        wait_until(lambda: 5 in scm.replicas() and scm.replicas()[5].dataChecksum == ROOT)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda parts: parts[: len(parts) // 2], id="short"),
        pytest.param(lambda parts: parts[:1] + parts[2:], id="gap"),
        pytest.param(lambda parts: [parts[1], parts[0], *parts[2:]], id="out of order"),
        pytest.param(lambda parts: parts[:0], id="nothing"),
    ],
)
def test_failed_fetch_names_every_source_and_leaves_nothing(
    scm: StandInScm, agent: AgentProcess, spoil: Any
) -> None:
    """The answer names every source, and no part of the container stays."""
    with archive_peer(archive=plain("whole"), spoil=spoil) as peer:
        status = answered(scm, 71, containerID=5, sources=[at(NOWHERE), at(peer.port)])

        assert FAILED == status.status
        assert f"127.0.0.1:{NOWHERE}" in status.msg
        assert 1 == len(peer.wishes)
    assert WHOLE not in store_of(agent).replica_ids()
    volume = store_of(agent).paths(ONE).chunks
    importing = next(one for one in volume.parents if one.name == "volume")
    assert [] == list(importing.glob("hdds/*/tmp/importing/*"))


def test_another_shard_than_was_ordered_is_not_taken(scm: StandInScm, agent: AgentProcess) -> None:
    """The answer names the shard of the source, and nothing of it stays. The ordered shard, or
    any shard if none was named, is imported.
    """
    store = store_of(agent)
    with archive_peer(archive=plain("shard")) as peer:
        sources = [at(peer.port)]
        other = answered(scm, 71, containerID=6, sources=sources, replicaIndex=1)

        assert FAILED == other.status
        assert "container 6: the source has shard 2, the command is for 1" in other.msg
        assert CODED not in store.replica_ids()

        meant = answered(scm, 72, containerID=6, sources=sources, replicaIndex=2)
    assert (EXECUTED, 2) == (meant.status, store.replica(CODED).replica_index)


def test_existing_container_is_not_fetched(scm: StandInScm, agent: AgentProcess) -> None:
    """No source is asked."""
    del agent
    with archive_peer(archive=plain("whole")) as peer:
        status = answered(scm, 71, sources=[at(peer.port)])

        assert FAILED == status.status
        assert "already exists here" in status.msg
        assert [] == peer.wishes


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({}, "no target, and 0 sources"),
        ({"containerID": -1, "target": at(NOWHERE)}, "no container -1"),
        ({"target": {**at(NOWHERE), "ports": []}}, "no port REPLICATION"),
        ({"target": at(NOWHERE)}, "UNAVAILABLE"),
    ],
)
def test_invalid_copy_command_is_answered_with_the_reason(
    scm: StandInScm, agent: AgentProcess, payload: dict[str, Any], words: str
) -> None:
    """The command comes from outside and is validated."""
    del agent
    status = answered(scm, 71, **payload)

    assert FAILED == status.status
    assert words in status.msg


@pytest.fixture
def copies(target: OzoneAgent) -> Iterator[ContainerReplicator]:
    """Copies of an agent that has closed container 1, and loses patience soon."""
    target.replica.create()
    inside = target.inside(Algorithm.CRC32C)
    with ThreadPoolExecutor(1) as executor:
        yield ContainerReplicator(
            store=inside.store,
            leases=inside.leases,
            importer=importer(inside),
            executor=executor,
            security=LOOPBACK_ONLY,
            compression=Compression.NO_COMPRESSION,
            monotonic_s=time.monotonic,
            request_scan=inside.request_scan,
            stall_s=PATIENCE_S,
            finish_s=PATIENCE_S,
        )


@pytest.mark.parametrize("is_pull", [False, True])
def test_stalled_copy_times_out_and_releases_the_container(
    copies: ContainerReplicator, is_pull: bool
) -> None:
    """The error states the timeout, and the container can be leased again."""
    with archive_peer(answers=False) as peer:
        order = ReplicateCommand(container_id=5 if is_pull else 1)
        (order.sources.add() if is_pull else order.target).address = f"127.0.0.1:{peer.port}"

        with pytest.raises(UnavailableError, match=f"no data for {PATIENCE_S:g} s"):
            copies.copy(order, lambda: False, 60.0)

    with copies.leases.hold(ONE, 0.0):
        assert [ONE] == copies.importer.store.replica_ids()  # type: ignore[attr-defined]


def test_a_push_without_room_for_its_tables_says_so(
    copies: ContainerReplicator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In place of words of gRPC's that blame the target."""
    monkeypatch.setattr("ozone.transfer.scratch.MEMORY_FREE_BYTES_MIN", 2**62)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with archive_peer() as peer:
        order = ReplicateCommand(container_id=1)
        order.target.address = f"127.0.0.1:{peer.port}"

        with pytest.raises(UnavailableError, match=r"tables of an archive: .*absent"):
            copies.copy(order, lambda: False, 60.0)
