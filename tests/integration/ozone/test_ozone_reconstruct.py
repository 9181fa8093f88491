"""Shards that an Ozone SCM has an agent rebuild, from datanodes of Ozone, here and elsewhere.

Sources are the shards of the golden set as Ozone's own client wrote them, and what is rebuilt is
compared with Ozone's own row and bytes of the shard that is lost.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agent.host.host import AgentProcess
from merkle.checksum import crc32c
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.ec.scheme import CodecName, Scheme
from tests.support.ozone.led_agent import DATANODE_ID, led_agent, store_of
from tests.support.ozone.ozone_agent import OzoneClient, block_id
from tests.support.ozone.ozone_datanode import Served
from tests.support.ozone.ozone_shards import (
    MADE,
    ShardDatanode,
    comparable,
    golden_shards,
    made_shards,
    row_of,
)
from tests.support.ozone.ozone_volumes import golden
from tests.support.ozone.ozone_wire import WIRE
from tests.support.ozone.standin_scm import StandInScm, command, standin_scm
from tests.support.waiting import wait_until

EXECUTED, FAILED = 2, 3
LARGE, SMALL = ContainerId(3), ContainerId(4)
"""Groups of 2 MiB and 12,345 bytes, and of 100 bytes: two cells of that are empty."""
CODING = {"data": 3, "parity": 2, "codec": "RS", "ecChunkSize": 1024**2}
INDEXES = range(1, 6)
SPARE = 9
"""Of a datanode that has nothing yet."""


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden set, which nobody changes."""
    return golden(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def shards(volumes: Path) -> dict[int, dict[int, Served]]:
    """By index what each datanode has."""
    found = {one: golden_shards(volumes, one) for one in (LARGE, SMALL)}
    return {index: {one: found[one][index] for one in found} for index in INDEXES}


@pytest.fixture
def peers(shards: dict[int, dict[int, Served]]) -> Iterator[dict[int, ShardDatanode]]:
    """A datanode for each shard by its index, and one with nothing."""
    with ExitStack() as ends:
        yield {
            index: ends.enter_context(
                ShardDatanode(dict(shards.get(index, {})), uuid=uuid_of(index), index=index)
            )
            for index in (*INDEXES, SPARE)
        }


@pytest.fixture
def scm() -> Iterator[StandInScm]:
    """A manager that leads."""
    with standin_scm() as server:
        yield server


@pytest.fixture
def agent(scm: StandInScm, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that it leads, and that has nothing."""
    with led_agent(tmp_path, scm.address, more="[scan]\nenabled = false") as host:
        yield host


def uuid_of(index: int) -> str:
    """Return the name of the datanode of a shard."""
    return str(UUID(int=0xA000 + index))


def here(host: AgentProcess) -> dict[str, Any]:
    """Return how the manager names the agent itself."""
    name, _, port = host.protocol_addresses[0].rpartition(":")
    ports = [{"name": "STANDALONE", "value": int(port)}]
    return {"uuid": DATANODE_ID, "ipAddress": name, "hostName": "agent", "ports": ports}


def reconstruct(
    scm: StandInScm,
    container_id: int,
    sources: dict[int, ShardDatanode],
    targets: dict[int, dict[str, Any]],
    **other: Any,
) -> Any:
    """Order shards to be rebuilt from others, both by index; return the answer."""
    command_id = 70 + len(scm.statuses())
    payload = {
        "containerID": container_id,
        "sources": [
            {"datanodeDetails": one.details(), "replicaIndex": index}
            for index, one in sources.items()
        ],
        "targets": list(targets.values()),
        "missingContainerIndexes": bytes(targets),
        "ecReplicationConfig": CODING,
        "cmdId": command_id,
        **other,
    }
    scm.commands.append(command("reconstructECContainers", payload))
    wait_until(lambda: any(one.cmdId == command_id for one in scm.statuses()), within_s=30)
    return next(one for one in scm.statuses() if one.cmdId == command_id)


def left(peers: dict[int, ShardDatanode], *lost: int) -> dict[int, ShardDatanode]:
    """Return the datanodes whose shards are not lost."""
    return {index: peers[index] for index in INDEXES if index not in lost}


def assert_rebuilt_here(
    host: AgentProcess, container_id: ContainerId, index: int, real: Served
) -> None:
    """The shard is Ozone's, row by row as it is served to Ozone, and byte by byte."""
    facts = store_of(host).replica(container_id)
    assert (ReplicaState.CLOSED, index) == (facts.state, facts.replica_index)
    with OzoneClient(host.protocol_addresses[0], DATANODE_ID) as client:
        for one, row in real.rows.items():
            key = block_id(one, container_id, replicaIndex=index)
            served = client.ask("getBlock", container_id, blockID=key).getBlock.blockData
            assert row_of(row) == comparable(served)
            size = len(real.data[one])
            if size:
                assert real.data[one] == store_of(host).view(container_id).read(
                    BlockId(one), 0, size
                )


@pytest.mark.parametrize("container_id", [LARGE, SMALL])
@pytest.mark.parametrize("lost", INDEXES)
def test_a_lost_shard_is_rebuilt_here(
    scm: StandInScm,
    agent: AgentProcess,
    peers: dict[int, ShardDatanode],
    shards: dict[int, dict[int, Served]],
    container_id: ContainerId,
    lost: int,
) -> None:
    """The shard is data or parity, of a full or a hardly begun stripe. It has the group's length
    and the stripe checksums where Ozone keeps them, and is reported to the manager.
    """
    status = reconstruct(scm, container_id, left(peers, lost), {lost: here(agent)})

    assert (EXECUTED, "") == (status.status, status.msg)
    assert_rebuilt_here(agent, container_id, lost, shards[lost][container_id])
    wait_until(lambda: container_id in scm.replicas())
    assert (lost, 4) == (
        scm.replicas()[container_id].replicaIndex,
        scm.replicas()[container_id].state,
    )


@pytest.mark.parametrize("lost", [(1, 5), (2, 3), (4, 1)])
def test_two_lost_shards_are_rebuilt_here_and_on_an_ozone_datanode(
    scm: StandInScm,
    agent: AgentProcess,
    peers: dict[int, ShardDatanode],
    shards: dict[int, dict[int, Served]],
    lost: tuple[int, int],
) -> None:
    """On the Ozone datanode the shard is created as RECOVERING, filled and closed by Ozone's own
    calls.
    """
    mine, theirs = lost
    targets = {mine: here(agent), theirs: peers[SPARE].details()}

    status = reconstruct(scm, LARGE, left(peers, *lost), targets)

    assert (EXECUTED, "") == (status.status, status.msg)
    assert_rebuilt_here(agent, LARGE, mine, shards[mine][LARGE])
    made, real = peers[SPARE].containers[LARGE], shards[theirs][LARGE]
    assert 4 == made.state
    assert real.data == made.data
    assert {one: row_of(row) for one, row in real.rows.items()} == {
        one: row_of(row) for one, row in made.rows.items()
    }
    told = peers[SPARE].told()
    assert ["createContainer", "writeChunk", "putBlock", "closeContainer"] == told[:4]


@pytest.mark.parametrize("lost", [(1, 5), (2, 4), (3, 1)])
def test_groups_of_many_stripes_are_rebuilt(
    scm: StandInScm, agent: AgentProcess, peers: dict[int, ShardDatanode], lost: tuple[int, int]
) -> None:
    """
    Whole ones, begun ones, a group of one byte; Ozone lists their blocks by the text of the ids:
    10, 100, 1000, 9. Each stripe keeps the checksums that its writer left.
    """
    scheme = Scheme(CodecName.RS, 3, 2, cell_bytes=4096)
    stripe = scheme.stripe_bytes
    made = made_shards(scheme, {9: 3 * stripe, 10: 12 * stripe + 5000, 100: 1, 1000: stripe + 4096})
    for index in INDEXES:
        peers[index].containers[MADE] = made[index]
    mine, theirs = lost
    targets = {mine: here(agent), theirs: peers[SPARE].details()}
    coding = CODING | {"ecChunkSize": scheme.cell_bytes}

    status = reconstruct(scm, MADE, left(peers, *lost), targets, ecReplicationConfig=coding)

    assert (EXECUTED, "") == (status.status, status.msg)
    assert_rebuilt_here(agent, ContainerId(MADE), mine, made[mine])
    found, real = peers[SPARE].containers[MADE], made[theirs]
    assert real.data == found.data
    assert {one: row_of(row) for one, row in real.rows.items()} == {
        one: row_of(row) for one, row in found.rows.items()
    }


def test_a_source_whose_bytes_are_not_its_rows_is_left_aside(
    scm: StandInScm,
    agent: AgentProcess,
    peers: dict[int, ShardDatanode],
    shards: dict[int, dict[int, Served]],
) -> None:
    """Another one takes its place."""
    (one,) = shards[1][LARGE].rows
    peers[1].containers[LARGE].flip(one, 777_777)

    status = reconstruct(scm, LARGE, left(peers, 2), {2: here(agent)})

    assert EXECUTED == status.status
    assert_rebuilt_here(agent, LARGE, 2, shards[2][LARGE])
    assert "readChunk" in peers[1].told()


def test_a_shard_that_is_wrong_though_it_verifies_is_found_by_ozones_own_record(
    scm: StandInScm,
    agent: AgentProcess,
    peers: dict[int, ShardDatanode],
    shards: dict[int, dict[int, Served]],
) -> None:
    """The checksums of the stripe, which its writer left with other shards, do not have it."""
    (one,) = shards[3][LARGE].rows
    peers[3].containers[LARGE] = forged(shards[3][LARGE], one)

    status = reconstruct(scm, LARGE, left(peers, 2), {2: here(agent)})

    assert EXECUTED == status.status
    assert_rebuilt_here(agent, LARGE, 2, shards[2][LARGE])


def forged(real: Served, one: int) -> Served:
    """Return a shard with other bytes in its only chunk, and a row that fits them."""
    data = bytes(octet ^ 0x11 for octet in real.data[one])
    row = WIRE["BlockData"].FromString(real.rows[one])
    (chunk,) = row.chunks
    chunk.checksumData.type = 3  # CRC32C
    window = chunk.checksumData.bytesPerChecksum
    cuts = range(0, len(data), window)
    del chunk.checksumData.checksums[:]
    chunk.checksumData.checksums.extend(
        crc32c(data[at : at + window]).to_bytes(4, "big") for at in cuts
    )
    return Served({one: row.SerializeToString()}, {one: data}, real.tree)


def test_failed_reconstruction_removes_the_shards_at_all_targets(
    scm: StandInScm, agent: AgentProcess, peers: dict[int, ShardDatanode]
) -> None:
    """One target has no room. Nothing stays there or here."""
    peers[SPARE].full = True
    targets = {2: here(agent), 4: peers[SPARE].details()}

    status = reconstruct(scm, LARGE, left(peers, 2, 4), targets)

    assert FAILED == status.status
    assert "DISK_OUT_OF_SPACE" in status.msg
    assert {} == peers[SPARE].containers
    assert "deleteContainer" == peers[SPARE].told()[-1]
    assert [] == store_of(agent).replica_ids()


def test_a_target_that_has_the_container_keeps_it(
    scm: StandInScm, agent: AgentProcess, peers: dict[int, ShardDatanode]
) -> None:
    """This run did not create it, so it does not remove it."""
    status = reconstruct(scm, LARGE, left(peers, 2, 4), {2: here(agent), 4: peers[4].details()})

    assert FAILED == status.status
    assert "CONTAINER_EXISTS" in status.msg
    assert LARGE in peers[4].containers
    assert "deleteContainer" not in peers[4].told()
    assert [] == store_of(agent).replica_ids()


def test_a_datanode_that_has_another_shard_than_is_said_is_not_computed_with(
    scm: StandInScm, agent: AgentProcess, peers: dict[int, ShardDatanode]
) -> None:
    """Ozone reports the index of each block, and the remaining sources are too few."""
    sources = left(peers, 2, 5)
    sources[4] = peers[5]

    status = reconstruct(scm, LARGE, sources, {2: here(agent)})

    assert FAILED == status.status
    assert "CONTAINER_NOT_FOUND" in status.msg
    assert [] == store_of(agent).replica_ids()


@pytest.mark.parametrize(
    ("lost", "other", "words"),
    [
        ((1, 2, 3), {}, "rs-3-2-1024k needs 3 sources, the command names 2"),
        ((2,), {"missingContainerIndexes": b"\x02\x03"}, "2 shards for 1 targets"),
        ((2,), {"missingContainerIndexes": b"\x07"}, "replica index 7"),
        ((2,), {"ecReplicationConfig": {**CODING, "codec": "LRC"}}, "'lrc' is unknown"),
        ((2,), {"ecReplicationConfig": {**CODING, "data": 0}}, "names no erasure code"),
        ((2,), {"containerID": 0}, "no container 0"),
    ],
)
def test_invalid_or_impossible_reconstruction_fails_with_the_reason(
    scm: StandInScm,
    agent: AgentProcess,
    peers: dict[int, ShardDatanode],
    lost: tuple[int, ...],
    other: dict[str, Any],
    words: str,
) -> None:
    """Nothing is written to any target."""
    status = reconstruct(scm, LARGE, left(peers, *lost), {lost[0]: here(agent)}, **other)

    assert FAILED == status.status
    assert words in status.msg
    assert [] == store_of(agent).replica_ids()
