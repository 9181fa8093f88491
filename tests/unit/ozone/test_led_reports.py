"""What Ozone's SCM is told, as Ozone's own classes read it."""

from typing import Any

import pytest

from agent.store.volumes.op_state_file import NodeState
from ozone.scm_link import reports
from ozone.scm_link.reports import DatanodeInfo
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.ozone.standin_scm import ozone

ME = DatanodeInfo(
    datanode_id="f1111111-2222-3333-8444-555555555555",
    host="host7",
    port=9859,
    replication_port=9886,
    rack="/rack",
    version="1",
    started_at_ms=5,
    layout_version=10,
    reserve_bytes=100,
)
OTHER = "a1111111-2222-3333-8444-555555555555"
PB = container_pb2


def read(name: str, message: Any) -> Any:
    """Return a message of ours as Ozone's class of that name: what it needs must be there."""
    return ozone(name).FromString(message.SerializeToString())


def test_datanode_details_have_the_id_and_the_operational_state() -> None:
    """The halves of the id have Java's signs, and the expiry is in seconds. Without a decision,
    no state is reported.
    """
    fresh = read("DatanodeDetailsProto", reports.details(ME, "10.0.0.7", NodeState()))
    told = read(
        "DatanodeDetailsProto",
        reports.details(ME, "10.0.0.7", NodeState("IN_MAINTENANCE", 1_900_000_000_999)),
    )

    assert -(2**63) <= fresh.uuid128.mostSigBits < 0
    assert fresh.id.uuid == fresh.uuid128
    assert ("10.0.0.7", "host7", "/rack") == (
        fresh.ipAddress,
        fresh.hostName,
        fresh.networkLocation,
    )
    assert not fresh.HasField("persistedOpState")
    assert (3, 1_900_000_000) == (told.persistedOpState, told.persistedOpStateExpiry)


@pytest.mark.parametrize(
    ("change", "remaining", "failed"),
    [
        ({}, 700, False),
        ({"service": "READ_ONLY"}, 0, False),
        ({"service": "RETIRING"}, 0, False),
        ({"failed": True}, 0, True),
    ],
)
def test_a_volume_that_takes_nothing_new_has_no_room(
    change: dict[str, Any], remaining: int, failed: bool
) -> None:
    """
    The manager chooses targets by it.
    """
    volume = datanode_pb2.VolumeStatus(
        volume_id="DS-1", path="/data/1", capacity_bytes=1000, available_bytes=700, used_bytes=200
    )
    volume.MergeFrom(datanode_pb2.VolumeStatus(**change))

    (storage,) = read("NodeReportProto", reports.node_report(ME, [volume])).storageReport

    assert (remaining, failed) == (storage.remaining, storage.failed)
    assert ("DS-1", "/data/1", 1000, 200) == (
        storage.storageUuid,
        storage.storageLocation,
        storage.capacity,
        storage.scmUsed,
    )
    assert storage.freeSpaceToSpare <= storage.remaining


def test_without_a_volume_there_is_a_report() -> None:
    """
    A datanode whose volumes are all gone is not silent.
    """
    report = read("NodeReportProto", reports.node_report(ME, []))

    assert not report.storageReport
    assert [0] == [one.remaining for one in report.metadataStorageReport]


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (PB.OPEN, "OPEN"),
        (PB.CLOSING, "CLOSING"),
        (PB.QUASI_CLOSED, "QUASI_CLOSED"),
        (PB.CLOSED, "CLOSED"),
        (PB.UNHEALTHY, "UNHEALTHY"),
        (PB.DELETED, "DELETED"),
    ],
)
def test_a_replica_has_ozones_state(state: PB.ReplicaState.ValueType, word: str) -> None:
    """Its origin is an id that Java can read, whoever created the replica."""
    ours = PB.ReplicaReport(container_id=7, state=state, replica_index=2, bcsid=9)
    ours.origin_datanode_id = OTHER if state == PB.CLOSED else "dn-without-uuid"

    told = read("ContainerReplicaProto", reports.replica(ME, ours, 2**32 - 1))

    descriptor = told.DESCRIPTOR.fields_by_name["state"].enum_type
    assert word == descriptor.values_by_number[told.state].name
    assert (7, 2, 9, 2**32 - 1) == (
        told.containerID,
        told.replicaIndex,
        told.blockCommitSequenceId,
        told.dataChecksum,
    )
    assert (OTHER if state == PB.CLOSED else ME.datanode_id) == told.originNodeId


@pytest.mark.parametrize("state", [PB.RECOVERING, PB.REPLICA_STATE_UNSPECIFIED])
def test_replica_state_unknown_to_ozone_is_left_out(state: PB.ReplicaState.ValueType) -> None:
    """Any other state would be wrong."""
    assert reports.replica(ME, PB.ReplicaReport(container_id=7, state=state), 0) is None


def test_queues_are_told_by_ozones_types() -> None:
    """Queues without an Ozone command type are left out."""
    queues = [
        scm_pb2.QueueCount(type="reconcile", count=3),
        scm_pb2.QueueCount(type="delete_blocks", count=0),
        scm_pb2.QueueCount(type="unknown", count=9),
    ]

    told = read("CommandQueueReportProto", reports.queue_report(queues))

    assert {12: 3, 2: 0} == dict(zip(told.command, told.count, strict=True))


@pytest.mark.parametrize(
    ("result", "after", "state"),
    [
        ("converged", PB.CLOSED, 2),
        ("nothing_to_do", PB.CLOSED, 2),
        ("partial", PB.CLOSED, 2),
        ("partial", PB.UNHEALTHY, 3),
        ("no_peer", PB.CLOSED, 3),
        ("interrupted", PB.CLOSED, 3),
    ],
)
def test_a_reconcile_is_done_when_the_replica_is_whole(
    result: str, after: PB.ReplicaState.ValueType, state: int
) -> None:
    """The reconcile is done when the replica is whole, and not when it ran."""
    status = scm_pb2.CommandStatus(
        command_id=2**64 - 1, type="reconcile", state=scm_pb2.CommandStatus.EXECUTED
    )
    status.reconcile.result, status.reconcile.state_after = result, after

    (told,) = read("CommandStatusReportsProto", reports.status_reports(ME, [status])).cmdStatus

    assert (-1, state, 12) == (told.cmdId, told.status, told.type)
    assert (result in told.msg) == (result not in {"converged", "nothing_to_do"})
