"""Builds the reports of an agent to Ozone's SCM: identity, volumes, replicas, command results.

No I/O. For a registration or a heartbeat, the agent's suture.v1 messages are converted to Ozone's
messages.

The SCM must not choose an agent for Ratis pipelines. Therefore, an agent reports one metadata
volume with 0 bytes free, because the SCM requires metadata space only for Ratis pipelines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from agent.store.volumes.op_state_file import NodeState
from ozone.scm_link.messages import (
    ACTIONS,
    CLOSE,
    COMMAND_STATUS,
    COMMAND_STATUSES,
    DETAILS,
    DISK,
    EXECUTED,
    EXTENDED_DETAILS,
    FAILED,
    FULL,
    LAYOUT,
    NODE_REPORT,
    QUEUE_REPORT,
    REPLICA,
    NodeOperationalState,
    ScmCommandType,
    State,
)
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

CURRENT_VERSION: Final = 0  # DatanodeVersion: announces no feature after the first version
FULL_SHARE: Final = 0.9  # hdds.container.close.threshold
MESSAGE_CHARS_MAX: Final = 500
IN_SERVICE: Final = frozenset({"", "IN_SERVICE"})
CONVERGED: Final = frozenset({"converged", "nothing_to_do"})
PARTIAL: Final = "partial"
NAMES: Final[Mapping[str, ScmCommandType]] = {
    "close": ScmCommandType.CLOSE,
    "delete": ScmCommandType.DELETE,
    "delete_blocks": ScmCommandType.DELETE_BLOCKS,
    "reconcile": ScmCommandType.RECONCILE,
    "reconstruct": ScmCommandType.RECONSTRUCT,
    "refresh_volume_usage": ScmCommandType.REFRESH_VOLUME_USAGE,
    "replicate": ScmCommandType.REPLICATE,
    "reregister": ScmCommandType.REREGISTER,
    "set_operational_state": ScmCommandType.SET_OPERATIONAL_STATE,
    "create_pipeline": ScmCommandType.CREATE_PIPELINE,
    "close_pipeline": ScmCommandType.CLOSE_PIPELINE,
    "finalize_layout": ScmCommandType.FINALIZE_LAYOUT,
}
"""Ozone's command types, by the names that the agent uses in answers, logs and metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatanodeInfo:
    """The identity of the reporting datanode."""

    datanode_id: str
    host: str
    port: int
    replication_port: int
    rack: str
    version: str
    started_at_ms: int
    layout_version: int
    reserve_bytes: int


def details(me: DatanodeInfo, ip_address: str, state: NodeState) -> Any:
    """Return the message with the identity of the datanode and its stored operational state."""
    number = UUID(me.datanode_id).int
    uuid = {"most": _signed(number >> 64), "least": _signed(number & 2**64 - 1)}
    message = DETAILS(
        uuid=me.datanode_id,
        ip_address=ip_address,
        host_name=me.host,
        ports=[
            {"name": "STANDALONE", "value": me.port},
            {"name": "REPLICATION", "value": me.replication_port},
        ],
        network_location=me.rack,
        current_version=CURRENT_VERSION,
        uuid128=uuid,
        id={"uuid": uuid},
    )
    if state.op_state:
        message.op_state = NodeOperationalState[state.op_state]
        message.op_state_expiry_s = state.op_expiry_ms // 1000
    return message


def extended_details(me: DatanodeInfo, told: Any) -> Any:
    """Return the message with which a datanode registers. `told` is the result of `details`."""
    return EXTENDED_DETAILS(details=told, version=me.version, setup_time_ms=me.started_at_ms)


def layout(me: DatanodeInfo) -> Any:
    """Return the metadata layout version and the software layout version.

    They are equal, because an agent has no Ozone layout to finalise.
    """
    return LAYOUT(metadata=me.layout_version, software=me.layout_version)


def node_report(me: DatanodeInfo, volumes: Iterable[datanode_pb2.VolumeStatus]) -> Any:
    """Return the report of the volumes.

    A volume that accepts no new replicas is reported with 0 bytes free, so that the SCM places
    nothing on it.
    """
    report = NODE_REPORT()
    for volume in volumes:
        takes_new = volume.service in IN_SERVICE and not volume.failed
        room_bytes = volume.available_bytes if takes_new else 0
        report.storages.add(
            uuid=volume.volume_id,
            location=volume.path,
            capacity=volume.capacity_bytes,
            used=volume.used_bytes,
            remaining=room_bytes,
            type=DISK,
            failed=volume.failed,
            committed=0,
            spare=min(me.reserve_bytes, room_bytes),
            reserved=0,
            fs_capacity=volume.capacity_bytes,
            fs_available=volume.available_bytes,
        )
    first = next(iter(report.storages), None)
    location = first.location if first is not None else "/"
    report.metadata_storages.add(
        location=location, type=DISK, capacity=0, used=0, remaining=0, failed=False
    )
    return report


def replica(me: DatanodeInfo, report: container_pb2.ReplicaReport, root: int) -> Any | None:
    """Return the report of one replica.

    `root` is the root of its CRC-32C tree, or 0 if there is none. Return None while the replica is
    being reconstructed, because Ozone has no state for this.
    """
    state = container_pb2.ReplicaState.Name(report.state)
    if state not in State.__members__:
        return None
    return REPLICA(
        container_id=report.container_id,
        state=State[state],
        used=report.used_bytes,
        key_count=report.block_count,
        bcsid=report.bcsid,
        origin=_uuid_or(report.origin_datanode_id, me.datanode_id),
        replica_index=report.replica_index,
        is_empty=report.is_empty and not report.load_error,
        checksum=root,
    )


def actions(told: Iterable[Any], container_bytes_max: int) -> Any | None:
    """Return the request to close nearly full containers, or None if there are none.

    Without this request, the SCM would continue to allocate blocks in a full container.
    """
    full_bytes = container_bytes_max * FULL_SHARE
    full = [one for one in told if one.state == State.OPEN and one.used >= full_bytes]
    if not full:
        return None
    wishes = [{"container_id": one.container_id, "action": CLOSE, "reason": FULL} for one in full]
    return ACTIONS(actions=wishes)


def queue_report(queues: Iterable[scm_pb2.QueueCount]) -> Any:
    """Return the report of the number of waiting and running commands by type."""
    counts = {NAMES[queue.type]: queue.count for queue in queues if queue.type in NAMES}
    return QUEUE_REPORT(commands=counts.keys(), counts=counts.values())


def status_reports(me: DatanodeInfo, statuses: Sequence[scm_pb2.CommandStatus]) -> Any:
    """Return the report of the results of commands."""
    return COMMAND_STATUSES(statuses=_statuses(me, statuses))


def _statuses(me: DatanodeInfo, statuses: Sequence[scm_pb2.CommandStatus]) -> Iterator[Any]:
    for status in statuses:
        if status.type not in NAMES:
            continue
        words = _words(status)
        message = COMMAND_STATUS(
            command_id=_signed(status.command_id),
            status=EXECUTED if _is_done(status) else FAILED,
            type=NAMES[status.type],
        )
        if words:
            message.message = words[:MESSAGE_CHARS_MAX]
        if status.HasField("delete_blocks"):
            message.delete_ack.datanode_id = me.datanode_id
            for result in status.delete_blocks.transactions:
                message.delete_ack.results.add(
                    transaction_id=result.transaction_id,
                    container_id=result.container_id,
                    success=result.done,
                )
        yield message


def _is_done(status: scm_pb2.CommandStatus) -> bool:
    """Return whether a command succeeded.

    A reconcile succeeded if the replica now equals its peers. It also succeeded if only a part was
    done and the replica is not UNHEALTHY. A delete of blocks counts as successful even if one of
    its transactions failed, because Ozone's SCM reads the results of transactions only in an
    EXECUTED status (`DeletedBlockLogImpl.onMessage`).
    """
    if status.HasField("delete_blocks") and status.delete_blocks.transactions:
        return True
    if status.state != scm_pb2.CommandStatus.EXECUTED:
        return False
    if not status.HasField("reconcile"):
        return True
    outcome = status.reconcile
    is_whole = outcome.state_after != container_pb2.UNHEALTHY
    return outcome.result in CONVERGED or (outcome.result == PARTIAL and is_whole)


def _words(status: scm_pb2.CommandStatus) -> str:
    """Return the text for the status of a command.

    This is the error of a failed command, or the list of the peers that a reconcile could not use.
    """
    if status.state != scm_pb2.CommandStatus.EXECUTED:
        return f"{status.code}: {status.message}"
    if not status.HasField("reconcile") or status.reconcile.result in CONVERGED:
        return ""
    peers = [f"{one.datanode_id}: {one.state}: {one.message}" for one in status.reconcile.peers]
    return "; ".join([status.reconcile.result, *peers])


def _uuid_or(text: str, other: str) -> str:
    """Return `text` if it is a valid id of an Ozone datanode, and otherwise `other`."""
    with suppress(ValueError):
        return str(UUID(text))
    return other


def _signed(number: int) -> int:
    """Return an unsigned 64-bit number as the signed number with the same bits, as Java uses it."""
    return number - 2**64 if number >= 2**63 else number
