"""What an Ozone SCM orders an agent to do: it is done and told, or refused in words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from agent.config.loading import load
from agent.host.host import AgentProcess
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.errors import Code, RefusedError
from tests.support.ozone.led_agent import DATANODE_ID, built, led_agent, state_of, store_of, written
from tests.support.ozone.standin_scm import PIPELINE, StandInScm, command, standin_scm
from tests.support.storage.stores import write_block
from tests.support.waiting import wait_until

EXECUTED, FAILED = 2, 3
ONE, SHARD = ContainerId(1), ContainerId(3)
PAST_MS = 1_000
PEER = {
    "uuid": "a1111111-2222-3333-8444-555555555555",
    "ipAddress": "127.0.0.1",
    "hostName": "dn2",
    "ports": [{"name": "STANDALONE", "value": 1}],
}


@pytest.fixture
def scm() -> Iterator[StandInScm]:
    """A manager that leads in term 5."""
    with standin_scm(term=5) as server:
        yield server


@pytest.fixture
def agent(scm: StandInScm, tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that it leads, registered, with one open replica and a closed shard."""
    with led_agent(tmp_path, scm.address) as host:
        store = store_of(host)
        store.create_container(ONE)
        write_block(store, ONE, 11)
        write_block(store, ONE, 12)
        store.create_container(SHARD, replica_index=2)
        write_block(store, SHARD, 13)
        store.close_container(SHARD)
        wait_until(lambda: {1, 3} <= scm.replicas().keys())
        yield host


def answered(scm: StandInScm, order: Any, command_id: int) -> Any:
    """Give an order; return the first answer to it."""
    scm.commands.append(order)
    wait_until(lambda: any(status.cmdId == command_id for status in scm.statuses()))
    return next(status for status in scm.statuses() if status.cmdId == command_id)


def close(command_id: int, *, force: bool, term: int = 5) -> Any:
    """Order to close container 1."""
    payload = {
        "containerID": 1,
        "pipelineID": {"id": PIPELINE},
        "cmdId": command_id,
        "force": force,
    }
    return command("closeContainer", payload, term=term)


@pytest.mark.parametrize(
    ("force", "state"), [(True, ReplicaState.CLOSED), (False, ReplicaState.QUASI_CLOSED)]
)
def test_a_close_by_force_is_for_good(
    scm: StandInScm, agent: AgentProcess, force: bool, state: ReplicaState
) -> None:
    """Without force a datanode that is in no pipeline cannot know that it has all."""
    status = answered(scm, close(71, force=force), 71)

    assert EXECUTED == status.status
    assert state is state_of(agent, ONE)
    wait_until(lambda: scm.replicas()[1].state == {"CLOSED": 4, "QUASI_CLOSED": 3}[state.value])


def test_a_delete_without_force_spares_what_has_data(scm: StandInScm, agent: AgentProcess) -> None:
    """A forced delete removes it, and the manager is notified."""
    assert EXECUTED == answered(scm, close(71, force=True), 71).status

    spared = answered(scm, delete(72, 1, force=False), 72)
    gone = answered(scm, delete(73, 1, force=True), 73)

    assert FAILED == spared.status
    assert "DELETE_ON_NON_EMPTY_CONTAINER" in spared.msg
    assert EXECUTED == gone.status
    wait_until(lambda: scm.replicas()[1].state == 7)
    with pytest.raises(RefusedError):
        state_of(agent, ONE)


def delete(command_id: int, container_id: int, *, force: bool, index: int = 0) -> Any:
    """Order to delete a replica."""
    payload = {"containerID": container_id, "cmdId": command_id, "force": force}
    return command("deleteContainer", payload | {"replicaIndex": index}, term=5)


def test_a_delete_of_another_shard_is_refused(scm: StandInScm, agent: AgentProcess) -> None:
    """Ozone's own datanodes do not look; here would be one shard too few."""
    refused = answered(scm, delete(72, 3, force=True, index=1), 72)

    assert FAILED == refused.status
    assert "the replica here is not shard 1" in refused.msg
    assert ReplicaState.CLOSED is state_of(agent, SHARD)
    assert EXECUTED == answered(scm, delete(73, 3, force=True, index=2), 73).status


def test_a_shard_that_is_gone_is_told_with_its_index(scm: StandInScm, agent: AgentProcess) -> None:
    """
    Ozone's manager passes over a report of a coded replica that names none, and would count on the
    shard for ever.
    """
    del agent
    wait_until(lambda: scm.replicas()[SHARD].replicaIndex == 2)
    assert EXECUTED == answered(scm, delete(73, 3, force=True, index=2), 73).status

    wait_until(lambda: scm.replicas()[SHARD].state == 7)

    assert 2 == scm.replicas()[SHARD].replicaIndex


def test_blocks_are_deleted_and_each_transaction_acknowledged(
    scm: StandInScm, agent: AgentProcess
) -> None:
    """A transaction that fails is answered so, and does not delay the others."""
    answered(scm, close(71, force=True), 71)
    transactions = [
        {"txID": 501, "containerID": 1, "localID": [11], "count": 0},
        {"txID": 502, "containerID": 99, "localID": [1], "count": 0},
    ]
    payload = {"deletedBlocksTransactions": transactions, "cmdId": 74}

    status = answered(scm, command("deleteBlocks", payload, term=5), 74)

    assert EXECUTED == status.status
    ack = status.blockDeletionAck
    assert DATANODE_ID == ack.dnId
    found = [(one.txID, one.containerID, one.success) for one in ack.results]
    assert [(501, 1, True), (502, 99, False)] == found
    assert [12] == [block.block_id for block in store_of(agent).view(ONE).blocks()]
    assert [BlockId(11)] == list(store_of(agent).view(ONE).tombstones())


def test_a_root_outlives_deletes(scm: StandInScm, agent: AgentProcess) -> None:
    """A tombstone keeps its checksum, so replicas stay comparable."""
    answered(scm, close(71, force=True), 71)
    wait_until(lambda: scm.replicas()[1].dataChecksum > 0)
    before = scm.replicas()[1].dataChecksum
    transactions = [{"txID": 501, "containerID": 1, "localID": [11], "count": 0}]
    payload = {"deletedBlocksTransactions": transactions, "cmdId": 74}
    answered(scm, command("deleteBlocks", payload, term=5), 74)

    wait_until(lambda: scm.replicas()[1].keyCount == 1)

    assert before == scm.replicas()[1].dataChecksum
    assert 1 == store_of(agent).view(ONE).tree().tombstone_count


def test_operational_state_is_kept_and_reported_after_a_restart(tmp_path: Path) -> None:
    """The state is reported at once, and by the next process, too."""
    with standin_scm() as scm:
        with led_agent(tmp_path, scm.address):
            payload = {"cmdId": 75, "nodeOperationalState": "DECOMMISSIONING",
                       "stateExpiryEpochSeconds": 1_900_000_000}  # fmt: skip
            status = answered(scm, command("setNodeOperationalState", payload), 75)
            assert EXECUTED == status.status
            wait_until(lambda: state_told(scm) == (4, 1_900_000_000))
        assert not scm.registers[0].extendedDatanodeDetails.datanodeDetails.HasField(
            "persistedOpState"
        )
    with standin_scm() as scm, led_agent(tmp_path, scm.address):
        wait_until(lambda: bool(scm.beats))
        assert (4, 1_900_000_000) == state_told(scm)


def state_told(scm: StandInScm) -> tuple[int, int]:
    """Return state and expiry as the last heartbeat had them."""
    details = scm.beats[-1].datanodeDetails
    return details.persistedOpState, details.persistedOpStateExpiry


def test_to_register_again_is_obeyed(scm: StandInScm, agent: AgentProcess) -> None:
    """With all that there is."""
    del agent
    scm.commands.append(command("reregister", {}, term=5))

    wait_until(lambda: len(scm.registers) == 2)

    assert {1, 3} == {one.containerID for one in scm.registers[1].containerReport.reports}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (
            "finalizeNewLayoutVersion",
            {
                "finalizeNewLayoutVersion": True,
                "dataNodeLayoutVersion": {"metadataLayoutVersion": 10, "softwareLayoutVersion": 10},
            },
        ),
        ("refreshVolumeUsageInfo", {}),
        ("closePipeline", {"pipelineID": {"id": PIPELINE}}),
    ],
)
def test_command_with_nothing_to_do_is_answered_as_executed(
    scm: StandInScm, agent: AgentProcess, kind: str, payload: dict[str, Any]
) -> None:
    """Volumes of the agent have no layout of Ozone to finalize, and are measured for each
    heartbeat.
    """
    del agent
    status = answered(scm, command(kind, payload | {"cmdId": 76}, term=5), 76)

    assert (EXECUTED, "") == (status.status, status.msg)
    assert 10 == scm.beats[-1].dataNodeLayoutVersion.metadataLayoutVersion


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (
            "createPipeline",
            {"pipelineID": {"id": PIPELINE}, "type": "RATIS", "factor": "THREE"},
            "joins no pipeline of Ratis",
        ),
        ("replicateContainer", {"containerID": 1, "target": PEER}, "no port REPLICATION"),
        (
            "reconstructECContainers",
            {
                "containerID": 1,
                "missingContainerIndexes": b"\x01",
                "ecReplicationConfig": {"data": 3, "parity": 2, "codec": "rs", "ecChunkSize": 1024},
            },
            "1 shards for 0 targets from 0 sources",
        ),
        ("closeContainer", {"containerID": -1, "pipelineID": {"id": PIPELINE}}, "no container -1"),
    ],
)
def test_unsupported_command_fails_with_the_reason_and_is_counted(
    scm: StandInScm, agent: AgentProcess, kind: str, payload: dict[str, Any], words: str
) -> None:
    """An operator sees the count, and no pipeline is ever reported."""
    status = answered(scm, command(kind, payload | {"cmdId": 77}, term=5), 77)

    assert FAILED == status.status
    assert words in status.msg
    counted = generate_latest(agent.meters.registry).decode()
    assert 'state="failed"' in counted
    assert not any(beat.pipelineReports.pipelineReport for beat in scm.beats)


def test_a_deadline_that_has_passed_is_kept(scm: StandInScm, agent: AgentProcess) -> None:
    """The manager has ordered something else by then."""
    order = close(78, force=True)
    order.deadlineMsSinceEpoch = PAST_MS

    status = answered(scm, order, 78)

    assert FAILED == status.status
    assert Code.DEADLINE_PASSED.value in status.msg
    assert ReplicaState.OPEN is state_of(agent, ONE)


@pytest.mark.parametrize("term", [4, 0])
def test_command_of_an_earlier_term_is_rejected(
    scm: StandInScm, agent: AgentProcess, term: int
) -> None:
    """A command without any term is rejected, too."""
    status = answered(scm, close(79, force=True, term=term), 79)

    assert FAILED == status.status
    assert Code.STALE_TERM.value in status.msg
    assert ReplicaState.OPEN is state_of(agent, ONE)


def test_agent_reports_to_all_managers_and_obeys_the_leader(tmp_path: Path) -> None:
    """The manager that led before does not know yet that it leads no more."""
    with (
        standin_scm(term=7) as leader,
        standin_scm(term=None) as old,
        led_agent(tmp_path, old.address, leader.address) as agent,
    ):
        store_of(agent).create_container(ONE)
        wait_until(lambda: 1 in old.replicas() and 1 in leader.replicas())
        wait_until(lambda: len(leader.beats) > 1)

        old.commands.append(close(81, force=True, term=6))
        wait_until(lambda: any(one.cmdId == 81 for one in old.statuses()))
        assert ReplicaState.OPEN is state_of(agent, ONE)
        assert EXECUTED == answered(leader, close(82, force=True, term=7), 82).status
        wait_until(lambda: any(one.cmdId == 82 for one in old.statuses()))

        leader.term = None  # another election
        old.term = 8
        payload = {"containerID": 1, "cmdId": 83, "force": True}
        answered(old, command("deleteContainer", payload, term=8), 83)
        wait_until(lambda: leader.replicas()[1].state == 7)


def test_a_manager_that_is_away_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    """Each has a loop of its own."""
    with standin_scm() as scm:
        with standin_scm() as gone:
            away = gone.address
        with led_agent(tmp_path, away, scm.address) as agent:
            store_of(agent).create_container(ONE)
            wait_until(lambda: 1 in scm.replicas())


def test_agent_starts_and_stops_without_a_manager(tmp_path: Path) -> None:
    """Nothing waits for a manager that does not answer."""
    with standin_scm() as gone:
        away = gone.address
    host = built(load(written(tmp_path, away)))
    host.start()

    assert [] == host.stop()
