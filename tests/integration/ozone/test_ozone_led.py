"""An agent that is led by a storage container manager of Ozone: who it is, and what it reports."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from agent.config.loading import load
from agent.host.host import AgentProcess
from agent.main import check_leaders, ozone_of, who_am_i
from agent.store import volume_set
from agent.store.recovery import startup_recovery
from merkle.replica import BlockData, ContainerId, ReplicaState
from suture.errors import Code, RefusedError
from suture.runtime.stop_request import StopRequest
from tests.support.ozone.led_agent import (
    DATANODE_ID,
    HALVES,
    WHO,
    built,
    led_agent,
    store_of,
    written,
)
from tests.support.ozone.standin_scm import CLUSTER_ID, StandInScm, standin_scm
from tests.support.storage.stores import CHUNK_BYTES, write_block
from tests.support.waiting import wait_until

CLOSED, OPEN, DELETED, UNHEALTHY = 4, 1, 7, 5
NOWHERE = "127.0.0.1:1"  # nobody listens there
ONE, TWO, SHARD = ContainerId(1), ContainerId(2), ContainerId(3)


@pytest.fixture
def scm() -> Iterator[StandInScm]:
    """A manager that leads."""
    with standin_scm() as server:
        yield server


@pytest.fixture
def agent(scm: StandInScm, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that it leads, registered."""
    with led_agent(tmp_path, scm.address) as host:
        wait_until(lambda: bool(scm.beats))
        yield host


def test_led_agent_registers_with_its_id_addresses_and_layout(
    scm: StandInScm, agent: AgentProcess
) -> None:
    """The agent registers its id, its ports, and the layout that the manager expects."""
    (register,) = scm.registers
    details = register.extendedDatanodeDetails.datanodeDetails

    assert DATANODE_ID == details.uuid
    assert HALVES == (details.uuid128.mostSigBits % 2**64, details.uuid128.leastSigBits % 2**64)
    assert details.uuid128 == details.id.uuid
    assert "127.0.0.1" == details.ipAddress
    (address,) = agent.protocol_addresses
    port = int(address.rpartition(":")[2])
    assert {"STANDALONE": port, "REPLICATION": port} == {p.name: p.value for p in details.ports}
    layout = register.dataNodeLayoutVersion
    assert (10, 10) == (layout.metadataLayoutVersion, layout.softwareLayoutVersion)


def test_led_agent_reports_room_for_containers_but_not_for_pipelines(
    scm: StandInScm, agent: AgentProcess
) -> None:
    """The manager places Ratis pipelines by the free room of the metadata storage, which is
    reported as 0.
    """
    (volume,) = store_of(agent).volumes()
    for report in (scm.registers[0].nodeReport, scm.beats[0].nodeReport):
        (storage,) = report.storageReport
        (metadata,) = report.metadataStorageReport

        assert volume.volume_id == storage.storageUuid
        assert volume.capacity_bytes == storage.capacity
        assert 0 < storage.remaining <= storage.capacity
        assert 1_000_000 == storage.freeSpaceToSpare
        assert not storage.failed
        assert 0 == metadata.remaining
    assert not scm.registers[0].pipelineReports.pipelineReport
    assert not scm.beats[0].pipelineReports.pipelineReport


def test_led_agent_rebuilds_a_lost_index_before_it_registers(
    scm: StandInScm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registration includes a full report, and the manager considers replicas that are not in
    it as lost."""
    for module in (startup_recovery, volume_set):
        monkeypatch.setattr(module, "ADOPTED_MAX", 1)
    host = built(load(written(tmp_path, scm.address)))
    for container_id in (ONE, TWO):
        store_of(host).create_container(container_id)
        write_block(store_of(host), container_id, 1)
    assert [] == host.stop()
    shutil.rmtree(tmp_path / "volume" / "hdds" / CLUSTER_ID / "db")

    with led_agent(tmp_path, scm.address):
        wait_until(lambda: bool(scm.registers))

    told = scm.registers[0].containerReport.reports
    assert [(ONE, UNHEALTHY), (TWO, UNHEALTHY)] == [(one.containerID, one.state) for one in told]


def test_led_agent_registers_all_existing_replicas(scm: StandInScm, tmp_path: Path) -> None:
    """Each replica is registered with the fields that the manager needs to judge it."""
    host = built(load(written(tmp_path, scm.address)))
    store = store_of(host)
    for container_id, index in ((ONE, 0), (TWO, 0), (SHARD, 2)):
        store.create_container(container_id, replica_index=index)
    block = write_block(store, ONE, 11)
    write_block(store, SHARD, 12)
    for container_id in (ONE, SHARD):
        store.close_container(container_id)
    host.start()
    try:
        wait_until(lambda: bool(scm.registers))
    finally:
        assert [] == host.stop()

    told = {one.containerID: one for one in scm.registers[0].containerReport.reports}
    assert {1: CLOSED, 2: OPEN, 3: CLOSED} == {key: one.state for key, one in told.items()}
    assert (2 * CHUNK_BYTES, 1, False, 0) == (
        told[1].used,
        told[1].keyCount,
        told[1].isEmpty,
        told[1].replicaIndex,
    )
    assert root_by_hand(block) == told[1].dataChecksum
    assert (2, DATANODE_ID) == (told[3].replicaIndex, told[3].originNodeId)
    assert 0 == told[2].dataChecksum
    assert not told[2].isEmpty  # it is open: something may come yet


def root_by_hand(block: BlockData) -> int:
    """Fold a container of one block as Ozone does: chunks, block, container, each a CRC-32C."""
    leaves = b"".join(crc32c(chunk.window_checksums).to_bytes(8) for chunk in block.chunks)
    return crc32c(crc32c(block.block_id.to_bytes(8) + leaves).to_bytes(8))


def test_changes_are_told_at_once(tmp_path: Path) -> None:
    """A replica that is made, closed and deleted, long before the next heartbeat would be due."""
    with standin_scm() as scm, led_agent(tmp_path, scm.address, interval_s=300) as agent:
        store = store_of(agent)
        wait_until(lambda: bool(scm.beats))

        store.create_container(ONE)
        wait_until(lambda: 1 in scm.replicas() and scm.replicas()[1].state == OPEN)
        store.close_container(ONE)
        wait_until(lambda: scm.replicas()[1].state == CLOSED)
        assert scm.replicas()[1].isEmpty
        store.delete_container(ONE)
        wait_until(lambda: scm.replicas()[1].state == DELETED)

    assert 1 == len(scm.registers)


def test_a_container_that_is_nearly_full_is_to_be_closed(tmp_path: Path) -> None:
    """The manager allocates blocks in it until a datanode reports that it is full. No action is
    sent for a container with room.
    """
    config = load(written(tmp_path, NOWHERE))
    room = {"container_bytes_max": 100_000}
    config = config.model_copy(update={"storage": config.storage.model_copy(update=room)})
    with standin_scm() as scm:
        at = config.node.model_copy(update={"scm": (f"ozone://{scm.address}",)})
        host = built(config.model_copy(update={"node": at}))
        store = store_of(host)
        for container_id in (ONE, TWO):
            store.create_container(container_id)
        write_block(store, ONE, 11, chunk_count=9)
        write_block(store, TWO, 12, chunk_count=8)
        host.start()
        try:
            wait_until(lambda: any(beat.HasField("containerActions") for beat in scm.beats))
        finally:
            assert [] == host.stop()

    wishes = [one for beat in scm.beats for one in beat.containerActions.containerActions]
    assert {(1, 1, 1)} == {(one.containerID, one.action, one.reason) for one in wishes}


def test_a_shard_that_is_being_made_is_not_told(scm: StandInScm, agent: AgentProcess) -> None:
    """Ozone has no word for it, and another would have the manager count or delete it."""
    store = store_of(agent)
    store.create_container(SHARD, replica_index=2, state=ReplicaState.RECOVERING)
    store.create_container(ONE)

    wait_until(lambda: 1 in scm.replicas())

    assert 3 not in scm.replicas()


def test_a_replica_that_cannot_be_read_is_told_as_unhealthy(
    scm: StandInScm, tmp_path: Path
) -> None:
    """A replica without a descriptor is not gone, but does not count."""
    host = built(load(written(tmp_path, scm.address)))
    store_of(host).create_container(ONE)
    chunks = store_of(host).paths(ONE).root.parent / "2" / "chunks"
    assert [] == host.stop()
    chunks.mkdir(parents=True)
    (chunks / "7.block").write_bytes(b"bytes of a replica without a descriptor")

    with led_agent(tmp_path, scm.address):
        wait_until(lambda: bool(scm.registers))

    assert (UNHEALTHY, False) == (scm.replicas()[2].state, scm.replicas()[2].isEmpty)
    assert OPEN == scm.replicas()[1].state


def test_a_manager_that_restarts_hears_all_again(scm: StandInScm, agent: AgentProcess) -> None:
    """The manager has lost its state of the datanode, and says so."""
    store_of(agent).create_container(ONE)
    wait_until(lambda: 1 in scm.replicas())

    scm.known.clear()
    scm.hang_up()
    wait_until(lambda: len(scm.registers) == 2)

    assert [1] == [one.containerID for one in scm.registers[1].containerReport.reports]


def test_a_first_start_takes_the_cluster_from_the_manager(scm: StandInScm, tmp_path: Path) -> None:
    """A first start takes the cluster id from the manager and creates an id of its own."""
    config = load(written(tmp_path, scm.address))
    _, found = ozone_of(config)

    who = who_am_i(config, found, StopRequest())

    for leader in found:
        leader.close()
    assert who is not None
    assert CLUSTER_ID == who.cluster_id


def test_the_manager_of_another_cluster_is_refused_at_start(
    scm: StandInScm, tmp_path: Path
) -> None:
    """The error names both clusters, and nothing is reported to the manager."""
    _, found = ozone_of(load(written(tmp_path, scm.address)))

    with pytest.raises(
        RefusedError, match=r"cannot join cluster CID-1.* the volumes belong to cluster CID-other"
    ) as caught:
        check_leaders(found, replace(WHO, cluster_id="CID-other"))

    found[0].close()
    assert Code.WRONG_CLUSTER is caught.value.code
    assert [] == scm.registers


def test_a_manager_of_another_cluster_is_never_joined(scm: StandInScm, tmp_path: Path) -> None:
    """A manager of another cluster is refused at the start, and also if it replaces the right
    one while the agent runs.
    """
    host = built(load(written(tmp_path, scm.address)), replace(WHO, cluster_id="CID-other"))
    host.start()
    try:
        wait_until(lambda: Code.WRONG_CLUSTER.value in host.outboxes.state)
    finally:
        assert [] == host.stop()

    assert [] == scm.registers


def test_a_secure_cluster_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """Its manager rejects callers without a Kerberos identity."""
    with standin_scm(lets_in=False) as scm:
        config = load(written(tmp_path, scm.address))
        _, found = ozone_of(config)

        with pytest.raises(RefusedError, match="SIMPLE authentication is not enabled") as caught:
            who_am_i(config, found, StopRequest())
        found[0].close()

    assert Code.UNAUTHENTICATED is caught.value.code
    assert "an agent: ozone.conf" in caught.value.hint


def test_another_layout_is_refused_with_the_option(scm: StandInScm, tmp_path: Path) -> None:
    """The manager lets in its own only, and does not say which that is. The agent's state names
    the versions instead of "error 2".
    """
    with led_agent(tmp_path, scm.address, more='layout_version = "2.1"') as host:
        wait_until(lambda: "layout version 9 (Ozone 2.1)" in host.outboxes.state)
        state = host.outboxes.state
    assert "7, 8, 9, 10 are 1.4, 2.0, 2.1, 2.2" in state
    assert "error 2" not in state

    assert [] == scm.beats


def test_a_datanode_that_ozone_could_not_name_is_refused(scm: StandInScm, tmp_path: Path) -> None:
    """Ozone knows datanodes by UUIDs."""
    with pytest.raises(RefusedError, match="the datanode id dn1 is not a UUID"):
        built(load(written(tmp_path, scm.address)), replace(WHO, datanode_id="dn1"))
