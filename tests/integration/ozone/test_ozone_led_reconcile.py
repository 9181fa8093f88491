"""An agent that an Ozone SCM orders to reconcile: with datanodes of Ozone, as they answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.host.host import AgentProcess
from merkle.replica import BlockId, ContainerId, ReplicaState
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.disk.blockrow import decode_stored
from ozone.disk.messages import CHECKSUM_INFO
from suture.wire.clients.peer import Peer
from tests.support.ozone.led_agent import led_agent, state_of, store_of
from tests.support.ozone.ozone_datanode import FIRST, OzoneDatanode, Served, golden_peers
from tests.support.ozone.ozone_volumes import golden
from tests.support.ozone.standin_scm import StandInScm, command, standin_scm
from tests.support.waiting import wait_until

EXECUTED, FAILED = 2, 3
ONE = ContainerId(1)
LARGE, SMALL = BlockId(FIRST + 4), BlockId(FIRST + 10)
SYNCED = FIRST + 29  # never closed: Ozone's tree lacks its last chunk
PEERS = ("a1111111-2222-3333-8444-555555555555", "b1111111-2222-3333-8444-555555555555")


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden set, which nobody changes."""
    return golden(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def peers(volumes: Path) -> Iterator[list[OzoneDatanode]]:
    """Two datanodes with what Ozone wrote: rows, trees and bytes."""
    first, second = golden_peers(volumes)
    with OzoneDatanode(first) as one, OzoneDatanode(second) as other:
        yield [one, other]


@pytest.fixture
def scm() -> Iterator[StandInScm]:
    """A manager that leads."""
    with standin_scm() as server:
        yield server


@pytest.fixture
def agent(scm: StandInScm, tmp_path: Path, peers: list[OzoneDatanode]) -> Iterator[AgentProcess]:
    """An agent that it leads, with the same container."""
    with led_agent(tmp_path, scm.address, more="[scan]\nenabled = false") as host:
        take(host, peers[0].containers[1])
        yield host


def take(host: AgentProcess, served: Served, *, without: int = 0) -> None:
    """Store the container as Ozone's clients wrote it, but for a block, and close it."""
    store = store_of(host)
    store.create_container(ONE)
    for block_id, row in sorted(served.rows.items()):
        if block_id == without:
            continue
        block = decode_stored(ONE, BlockId(block_id), row, None).block
        for chunk in block.chunks:
            data = served.data[block_id][chunk.offset : chunk.end]
            store.writer(ONE).write_chunk(block.block_id, chunk, data)
        store.writer(ONE).put_block(block)
    store.close_container(ONE, force=True)


def reconcile(scm: StandInScm, peers: list[OzoneDatanode], command_id: int = 1) -> Any:
    """Order it, as the manager does; return the answer. The command has no number of its own."""
    before = len([one for one in scm.statuses() if one.cmdId == command_id])
    details = [
        {
            "uuid": uuid,
            "ipAddress": "127.0.0.1",
            "hostName": "dn",
            "ports": [{"name": "RATIS", "value": 1}, {"name": "STANDALONE", "value": peer.port}],
        }
        for uuid, peer in zip(PEERS, peers, strict=True)
    ]
    scm.commands.append(command("reconcileContainer", {"containerID": 1, "peers": details}))
    wait_until(lambda: len([s for s in scm.statuses() if s.cmdId == command_id]) > before)
    return [one for one in scm.statuses() if one.cmdId == command_id][-1]


def file_of(host: AgentProcess, block_id: BlockId) -> Path:
    """Return where a block lies."""
    return store_of(host).paths(ONE).chunks / f"{block_id}.block"


def damage(host: AgentProcess, block_id: BlockId, at: int) -> None:
    """Flip a bit on the medium, and let a scan find it."""
    path = file_of(host, block_id)
    with path.open("r+b") as file:
        file.seek(at)
        (octet,) = file.read(1)
        file.seek(at)
        file.write(bytes([octet ^ 4]))
    with Peer(host.address) as peer:
        list(peer.scan(ONE, full_speed=True))
    assert ReplicaState.UNHEALTHY is state_of(host, ONE)


def checksums(host: AgentProcess) -> dict[int, int]:
    """Return the checksum of each block and tombstone, as our tree has it."""
    tree = store_of(host).view(ONE).tree()
    return dict(zip(tree.block_ids.tolist(), tree.block_checksums.tolist(), strict=True))


def test_damage_is_healed_from_datanodes_of_ozone(
    scm: StandInScm, agent: AgentProcess, peers: list[OzoneDatanode]
) -> None:
    """Bytes are fetched from any peer that has them, and each block has Ozone's checksum."""
    served = peers[0].containers[1]
    damage(agent, LARGE, 1_050_000)
    damage(agent, SMALL, 3)
    peers[0].containers[1].flip(LARGE, 1_050_000)  # of two, one has it no more

    status = reconcile(scm, peers)

    assert EXECUTED == status.status
    assert f"{PEERS[0]}: bad_data" in status.msg
    assert ReplicaState.CLOSED is state_of(agent, ONE)
    assert peers[1].containers[1].data[LARGE] == file_of(agent, LARGE).read_bytes()
    assert served.data[SMALL] == file_of(agent, SMALL).read_bytes()
    theirs = {
        block.block_id: block.checksum
        for block in CHECKSUM_INFO.FromString(served.tree).tree.blocks
    }
    ours = checksums(agent)
    assert {key: ours[key] for key in theirs if key != SYNCED} == {
        key: checksum for key, checksum in theirs.items() if key != SYNCED
    }
    wait_until(
        lambda: (
            (scm.replicas()[1].state, scm.replicas()[1].dataChecksum)
            == (4, store_of(agent).view(ONE).tree().root)
        )
    )


@pytest.mark.parametrize("table", ["closed", "scanned"])
def test_trees_that_differ_for_no_harm_are_no_reason_to_act(
    scm: StandInScm, agent: AgentProcess, volumes: Path, table: str
) -> None:
    """
    Ozone's tree lacks the end of a file that was synced and never closed: nothing of it is
    fetched, written or taken away here.
    """
    before = checksums(agent)
    first, second = golden_peers(volumes, table=table)
    with OzoneDatanode(first) as one, OzoneDatanode(second) as other:
        status = reconcile(scm, [one, other])
        asked = {*one.commands(), *other.commands()}

    assert (EXECUTED, "") == (status.status, status.msg)
    assert ReplicaState.CLOSED is state_of(agent, ONE)
    assert DatanodeCommand.READ_CHUNK not in asked
    after = checksums(agent)
    assert before == {key: after[key] for key in before}


def test_a_block_that_was_never_here_is_fetched(
    scm: StandInScm, tmp_path: Path, peers: list[OzoneDatanode]
) -> None:
    """With its row, as Ozone has it."""
    with led_agent(tmp_path, scm.address, more="[scan]\nenabled = false") as agent:
        take(agent, peers[0].containers[1], without=LARGE)

        status = reconcile(scm, peers)

        assert (EXECUTED, "") == (status.status, status.msg)
        assert peers[0].containers[1].data[LARGE] == file_of(agent, LARGE).read_bytes()
        row = store_of(agent).view(ONE).block(LARGE)
        wanted = decode_stored(ONE, LARGE, peers[0].containers[1].rows[LARGE], None).block
        assert wanted.chunks == row.chunks


def test_peers_that_do_not_help_are_named(
    scm: StandInScm, agent: AgentProcess, peers: list[OzoneDatanode]
) -> None:
    """One peer is unreachable. The other has a tree that does not fold, so none of its data is
    used.
    """
    damage(agent, SMALL, 3)
    peers[0].stop()
    tree = CHECKSUM_INFO.FromString(peers[1].containers[1].tree)
    tree.tree.blocks[2].checksum ^= 1
    peers[1].containers[1].tree = tree.SerializeToString()

    status = reconcile(scm, peers)

    assert FAILED == status.status
    assert f"{PEERS[0]}: unreachable" in status.msg
    assert f"{PEERS[1]}: refused" in status.msg
    assert "is not the fold" in status.msg
    assert ReplicaState.UNHEALTHY is state_of(agent, ONE)


def test_a_peer_without_a_tree_takes_no_part(
    scm: StandInScm, agent: AgentProcess, peers: list[OzoneDatanode]
) -> None:
    """Ozone leaves the root out while it knows of deletes only."""
    damage(agent, SMALL, 3)
    for peer in peers:
        tree = CHECKSUM_INFO.FromString(peer.containers[1].tree)
        tree.tree.ClearField("checksum")
        peer.containers[1].tree = tree.SerializeToString()

    status = reconcile(scm, peers)

    assert FAILED == status.status
    assert f"{PEERS[0]}: no_tree" in status.msg


def test_a_chunk_that_is_damaged_there_is_not_asked_for(
    scm: StandInScm, agent: AgentProcess, peers: list[OzoneDatanode]
) -> None:
    """A chunk that Ozone's scan found damaged at a peer is fetched from the other one."""
    damage(agent, SMALL, 3)
    peers[0].containers[1].mark(1, SMALL, 0)

    status = reconcile(scm, peers)

    assert EXECUTED == status.status
    assert ReplicaState.CLOSED is state_of(agent, ONE)
    assert DatanodeCommand.READ_CHUNK not in peers[0].commands()
    assert DatanodeCommand.READ_CHUNK in peers[1].commands()


def test_bytes_that_are_not_the_rows_are_not_written(
    scm: StandInScm, agent: AgentProcess, peers: list[OzoneDatanode]
) -> None:
    """If all peers serve other bytes, the damage stays and is reported."""
    damage(agent, SMALL, 3)
    damaged = file_of(agent, SMALL).read_bytes()
    for peer in peers:
        peer.containers[1].flip(SMALL, 3)

    status = reconcile(scm, peers)

    assert FAILED == status.status
    assert all(f"{peer_id}: bad_data" in status.msg for peer_id in PEERS)
    assert damaged == file_of(agent, SMALL).read_bytes()
    assert ReplicaState.UNHEALTHY is state_of(agent, ONE)


def test_reconcile_of_a_missing_or_coded_container_fails_with_the_reason(
    scm: StandInScm, tmp_path: Path, peers: list[OzoneDatanode]
) -> None:
    """The container has no replica here, or it is erasure-coded."""
    with led_agent(tmp_path, scm.address) as agent:
        missing = reconcile(scm, peers)
        store_of(agent).create_container(ONE, replica_index=2)
        store_of(agent).close_container(ONE, force=True)
        coded = reconcile(scm, peers)

    assert FAILED == missing.status == coded.status
    assert "CONTAINER_NOT_FOUND" in missing.msg
    assert "it is erasure-coded" in coded.msg
