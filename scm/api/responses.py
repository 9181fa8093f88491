"""Converts the control plane's values to protobuf responses."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from operator import not_
from typing import Final, assert_never

from health.cluster_verdict import Judgement
from scm.administration.affected_keys import AffectedKey, KeyPage
from scm.administration.decommission import SHOWN_MAX, DepartureStatus
from scm.administration.mark_containers_lost import ForgetResult
from scm.administration.replica_orders import DatanodeQueue, NodeDecision
from scm.api import wire
from scm.api.call_values import (
    AllocatedBlockInfo,
    ContainerLocation,
    DatanodeAddress,
    HeartbeatAnswer,
    QueueTotals,
)
from scm.api.health_totals import HealthCounts
from scm.api.replication_report import RmReport
from scm.api.views import ContainerView, NodeView, ReplicaView, comparison
from scm.cluster.run_time_settings import text_of
from scm.containers.block_deletion import KeyDeletion
from scm.replication.balancer.balance_moves import Move
from scm.replication.balancer.balancer import BalanceStatus
from scm.replication.container_waits import ContainerWait
from scm.replication.reconcile.plan_check import (
    ASKED_FOR,
    ContainerDecision,
    LostCommit,
    PlannedCommand,
)
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    DeleteTransaction,
    Hold,
    Holder,
    Key,
    PendingCommand,
    Replica,
    ReportedVolume,
    WorkControl,
)
from scm.state.history.anchors import Anchor, VolumeAnchors
from scm.state.options import ScmOptions, rows_of
from scm.state.starts import ReportedStart
from suture.ec.scheme import parse_scheme
from suture.wire.mapping.codec import summary_message
from suture.wire.mapping.erasure_codec import SCHEME
from suture.wire.mapping.message_map import Field, MessageMap, each
from suture.wire.mapping.replica_columns import report_of
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

_SHOWS_VERDICT: Final = ("", "suture status", "suture scm report")
"""Commands that show the verdict. A reason of the verdict does not recommend to run them."""


def _counts(counts: Iterable[tuple[str, int]]) -> list[scm_pb2.QueueCount]:
    return [scm_pb2.QueueCount(type=kind, count=count) for kind, count in counts]


COUNTS: Final = Field(encode=_counts)
ORDER: Final = MessageMap(
    scm_pb2.Order,
    PlannedCommand,
    type="kind",
    target_datanode_id="target_id",
    bytes="size_bytes",
)
CONTAINER_DECISION: Final = MessageMap(
    scm_pb2.ContainerDecision,
    ContainerDecision,
    orders=each(ORDER, "commands"),
    given_up=each(MessageMap(scm_pb2.GivenUpCommit, LostCommit)),
)
FORGOTTEN: Final = MessageMap(scm_pb2.ForgottenContainer, ForgetResult)
KEY_DELETION: Final = MessageMap(scm_pb2.KeyDeletion, KeyDeletion, key="name", size="size_bytes")
NODE_DECISION: Final = MessageMap(scm_pb2.NodeDecision, NodeDecision)
MOVE: Final = MessageMap(
    scm_pb2.BalanceMove,
    Move,
    source_datanode_id="source_id",
    target_datanode_id="target_id",
    bytes="size_bytes",
)
BALANCE: Final = MessageMap(
    scm_pb2.BalanceResponse,
    BalanceStatus,
    running="is_running",
    threshold_permille=Field("threshold_percent", lambda percent: round(percent * 10)),
    moves=each(MOVE),
    shares=Field(encode=lambda shares: [_share(*share) for share in shares]),
)
DEPARTURE: Final = MessageMap(
    scm_pb2.Departure,
    DepartureStatus,
    within=["node"],
    required_count=Field("required", len),
    container_ids=Field("required", lambda required: required[:SHOWN_MAX]),
    safe_to_stop="is_safe_to_stop",
    persisted="is_persisted",
)
QUEUE: Final = MessageMap(
    scm_pb2.QueueInfo,
    DatanodeQueue,
    within=["node"],
    excluded="is_excluded",
    reported=COUNTS,
    sent=COUNTS,
    waiting=COUNTS,
)
QUEUES: Final = MessageMap(
    scm_pb2.GetQueuesResponse,
    QueueTotals,
    nodes=each(QUEUE),
    under_replicated_count="under_count",
    over_replicated_count="over_count",
    delete_transaction_count="transaction_count",
    pending_delete_count="delete_count",
)
NODE: Final = MessageMap(
    scm_pb2.NodeInfo,
    NodeView,
    within=["node"],
    omits=["volumes", "queues"],
    last_heartbeat_at_ms="heartbeat_at_ms",
    read_only="node.is_read_only",
    unmanaged=Field("is_managed", not_),
)
STATUS: Final = MessageMap(
    scm_pb2.CommandStatus,
    CommandOutcome,
    omits=wire.DETAILED_KINDS,
    type="kind",
)
TRANSACTION: Final = MessageMap(scm_pb2.DeleteTransaction, DeleteTransaction, keep="is_unproven")
HOLD: Final = MessageMap(scm_pb2.Hold, Hold)
WAIT: Final = MessageMap(scm_pb2.ContainerWait, ContainerWait)
SETTING: Final = MessageMap(scm_pb2.WorkControl, WorkControl, omits=["text"])
ANCHOR: Final = MessageMap(scm_pb2.Anchor, Anchor, checksum=Field(encode=bytes.fromhex))
ANCHORS: Final = MessageMap(scm_pb2.LogAnchors, VolumeAnchors, anchors=each(ANCHOR))
AFFECTED_KEY: Final = MessageMap(
    scm_pb2.ContainerKey,
    AffectedKey,
    key="name",
    size="size_bytes",
    container_ids=Field(encode=sorted),
)
KEY_PAGE: Final = MessageMap(scm_pb2.ListContainerKeysResponse, KeyPage, keys=each(AFFECTED_KEY))


def _share(datanode_id: str, share: float) -> scm_pb2.NodeShare:
    return scm_pb2.NodeShare(datanode_id=datanode_id, used_permille=round(share * 1000))


def heartbeat_response(
    answer: HeartbeatAnswer, shown: ReportedStart, *, now_ms: int
) -> scm_pb2.HeartbeatResponse:
    """Build the response to a heartbeat.

    It has the commands for the datanode, and the start and state number of the control plane, which
    the datanode stores.
    """
    return scm_pb2.HeartbeatResponse(
        term=shown.term,
        start_id=shown.start_id,
        state_number=shown.state_number,
        commands=[_command(command, named, shown.term) for command, named in answer.commands],
        reregister=not answer.is_known,
        sole_healthy_container_ids=answer.last_copies,
        copy_bytes_per_s=answer.rates[0],
        reconcile_bytes_per_s=answer.rates[1],
        answered_at_ms=now_ms,
    )


def allocation_response(
    blocks: Iterable[AllocatedBlockInfo], *, renew_ms: int
) -> scm_pb2.AllocateBlocksResponse:
    """Build the response with the blocks that were allocated to a writer.

    `renew_ms` is the interval at which the writer must renew its session.
    """
    return scm_pb2.AllocateBlocksResponse(
        blocks=[
            scm_pb2.BlockAllocation(
                block_id=container_pb2.BlockId(
                    container_id=block.container_id, local_id=block.local_id, bcsid=block.bcsid
                ),
                replicas=_endpoints(block.replicas),
            )
            for block in blocks
        ],
        renew_ms=renew_ms,
    )


def key_message(key: Key, lost: Iterable[int] = ()) -> scm_pb2.KeyInfo:
    """Build the message about a key.

    `lost` are the containers of the key that an operator has marked as lost.
    """
    return scm_pb2.KeyInfo(
        key=key.name,
        size=key.size_bytes,
        created_at_ms=key.created_at_ms,
        blocks=[
            scm_pb2.BlockLocation(
                block_id=container_pb2.BlockId(
                    container_id=block.container_id, local_id=block.local_id, bcsid=block.bcsid
                ),
                length=block.length_bytes,
            )
            for block in key.blocks
        ],
        lost_container_ids=lost,
    )


def lookup_response(key: Key, containers: Sequence[ContainerLocation]) -> scm_pb2.LookupKeyResponse:
    """Build the response with a key and the locations of its containers."""
    answer = scm_pb2.LookupKeyResponse(key=key_message(key))
    for one in containers:
        found = answer.containers.add(
            container_id=one.container_id, scheme=one.scheme, equal_count=one.equal_count
        )
        for datanode_id, address in one.endpoints:
            found.replicas.add(datanode_id=datanode_id, address=address)
    return answer


def node_message(view: NodeView) -> scm_pb2.NodeInfo:
    """Build the message about a datanode."""
    if view.live is None:
        return NODE.message(view)
    volumes = [_volume(volume) for volume in view.live.volumes]
    return NODE.message(view, volumes=volumes, queues=_counts(view.live.queues))


def container_message(view: ContainerView) -> scm_pb2.ContainerInfo:
    """Build the message about a container and its replicas."""
    container = view.container
    return scm_pb2.ContainerInfo(
        container_id=view.container_id,
        state=view.state,
        replication_factor=0 if container is None else container.replication_factor,
        sequence_id=0 if container is None else container.sequence_id,
        used_bytes=view.used_bytes,
        replicas=[_replica_info(replica) for replica in view.replicas],
        checksums=comparison(container, [replica.replica for replica in view.replicas]),
        scheme="" if container is None else container.scheme,
        wait=None if view.wait is None else WAIT.message(view.wait),
    )


def settings_message(
    settings: Iterable[WorkControl], options: ScmOptions | None = None
) -> scm_pb2.SettingsResponse:
    """Build the response with the current run-time settings.

    If `options` is given, also list the options with their current and default values.
    """
    return scm_pb2.SettingsResponse(
        settings=[SETTING.message(setting, text=text_of(setting)) for setting in settings],
        options=() if options is None else [scm_pb2.ScmOption(**row) for row in rows_of(options)],
    )


def counts_message(
    counts: HealthCounts, judgement: Judgement, settings: Iterable[WorkControl] = ()
) -> scm_pb2.CountContainersResponse:
    """Build the response with the container counts, the verdict, and the current settings."""
    known = asdict(counts)
    known.pop("stray")
    return scm_pb2.CountContainersResponse(
        verdict=judgement.verdict,
        reasons=[
            f"{r.text} ({r.command})" if r.command not in _SHOWS_VERDICT else r.text
            for r in judgement.reasons
        ],
        settings=map(text_of, settings),
        **known,
    )


def decisions_message(decisions: Iterable[ContainerDecision]) -> scm_pb2.ContainerDecisions:
    """Build the response with one decision per requested container."""
    return scm_pb2.ContainerDecisions(decisions=CONTAINER_DECISION.messages(decisions))


def forgotten_message(fates: Iterable[ForgetResult]) -> scm_pb2.MarkContainersLostResponse:
    """Build the response with the outcomes of marking containers as lost."""
    return scm_pb2.MarkContainersLostResponse(containers=FORGOTTEN.messages(fates))


def deletions_message(deletions: Iterable[KeyDeletion]) -> scm_pb2.DeleteKeysResponse:
    """Build the response with the outcomes of deleting keys."""
    return scm_pb2.DeleteKeysResponse(deletions=KEY_DELETION.messages(deletions))


def node_decisions_message(decisions: Iterable[NodeDecision]) -> scm_pb2.NodeDecisions:
    """Build the response with one decision per datanode."""
    return scm_pb2.NodeDecisions(decisions=NODE_DECISION.messages(decisions))


def report_message(report: RmReport) -> scm_pb2.GetReportResponse:
    """Build the response with the replication manager's report."""
    return scm_pb2.GetReportResponse(
        generated_at_ms=report.generated_at_ms,
        states={str(state): count for state, count in report.states.items()},
        conditions=[
            scm_pb2.ConditionSample(condition=condition, count=count, container_ids=ids)
            for condition, (count, ids) in report.conditions.items()
        ],
        verified_at_ms=report.verified.at_ms,
        decisions=report.verified.decisions,
        verify_error=report.verified.error,
        recovering_replica_count=report.recovering_count,
        waits=WAIT.messages(report.waits),
    )


def departures_message(
    departures: Iterable[DepartureStatus], leaving_locked: int, resting_locked: int
) -> scm_pb2.ListDecommissionsResponse:
    """Build the response with the progress of the datanodes that are not in service.

    `leaving_locked` is the number of containers that would be unreadable if all decommissioning and
    decommissioned datanodes were off. `resting_locked` is the same number for the datanodes that
    are in maintenance or enter it.
    """
    return scm_pb2.ListDecommissionsResponse(
        leaving_locked_count=leaving_locked,
        resting_locked_count=resting_locked,
        departures=DEPARTURE.messages(departures),
    )


def outcome_message(outcome: CommandOutcome) -> scm_pb2.Outcome:
    """Build the message of a command's outcome."""
    status = STATUS.message(outcome)
    if outcome.detail and outcome.kind in wire.DETAILED_KINDS:
        getattr(status, outcome.kind).ParseFromString(outcome.detail)
    return scm_pb2.Outcome(
        datanode_id=outcome.datanode_id, status=status, reported_at_ms=outcome.reported_at_ms
    )


def _command(
    command: PendingCommand, named: Sequence[DatanodeAddress], term: int
) -> scm_pb2.Command:
    message = scm_pb2.Command(
        command_id=command.command_id,
        term=term,
        lifetime_ms=command.lifetime_ms,
        priority=command.priority,
    )
    match command.kind:
        case CommandKind.CLOSE:
            message.close.container_id = command.container_id
            message.close.bcsid = command.bcsid
            message.close.force = command.force
        case CommandKind.DELETE:
            message.delete.container_id = command.container_id
            message.delete.force = command.force
            message.delete.witnesses.extend(_endpoints(named))
        case CommandKind.RECONCILE:
            message.reconcile.container_id = command.container_id
            message.reconcile.peers.extend(_endpoints(named))
            message.reconcile.scheme = command.scheme
            message.reconcile.holders.extend(map(_holder, command.holders))
            message.reconcile.asked_for = command.why == ASKED_FOR
        case CommandKind.REPLICATE:
            message.replicate.container_id = command.container_id
            message.replicate.target.CopyFrom(_endpoints(named)[0])
        case CommandKind.RECONSTRUCT:
            message.reconstruct.CopyFrom(_reconstruct(command, named))
        case CommandKind.DELETE_BLOCKS:
            message.delete_blocks.transactions.extend(TRANSACTION.messages(command.transactions))
        case CommandKind.SET_OPERATIONAL_STATE:
            message.set_operational_state.op_state = command.op_state
            message.set_operational_state.op_expiry_ms = command.op_expiry_ms
        case CommandKind.REFRESH_VOLUME_USAGE:
            message.refresh_volume_usage.SetInParent()
        case CommandKind.REREGISTER:
            message.reregister.SetInParent()
        case _ as never:
            assert_never(never)
    return message


def _reconstruct(
    command: PendingCommand, named: Sequence[DatanodeAddress]
) -> scm_pb2.ReconstructCommand:
    """Build the message of a reconstruction command.

    `named` has the datanodes of the target shards, followed by the datanodes of the source shards.
    """
    places = [
        scm_pb2.EcShard(datanode=endpoint, replica_index=index)
        for endpoint, (index, _) in zip(
            _endpoints(named), (*command.shards, *command.sources), strict=True
        )
    ]
    return scm_pb2.ReconstructCommand(
        container_id=command.container_id,
        scheme=SCHEME.message(parse_scheme(command.scheme)),
        targets=places[: len(command.shards)],
        sources=places[len(command.shards) :],
    )


def _endpoints(endpoints: Iterable[DatanodeAddress]) -> list[container_pb2.DatanodeEndpoint]:
    return [
        container_pb2.DatanodeEndpoint(datanode_id=e.datanode_id, address=e.address)
        for e in endpoints
    ]


def _volume(volume: ReportedVolume) -> datanode_pb2.VolumeStatus:
    return datanode_pb2.VolumeStatus(
        volume_id=volume.volume_id,
        path=volume.path,
        capacity_bytes=volume.capacity_bytes,
        available_bytes=volume.available_bytes,
        used_bytes=volume.used_bytes,
        container_count=volume.container_count,
        failed=volume.failed,
        oldest_scan_at_ms=volume.oldest_scan_at_ms,
        error=volume.error,
        service=volume.service,
    )


def _replica_info(view: ReplicaView) -> scm_pb2.ContainerInfoReplica:
    return scm_pb2.ContainerInfoReplica(
        datanode=container_pb2.DatanodeEndpoint(
            datanode_id=view.replica.datanode_id, address=view.address
        ),
        node_health=view.node_health,
        replica=_replica_report(view.replica),
        reported_at_ms=view.replica.reported_at_ms,
    )


def _holder(holder: Holder) -> scm_pb2.KnownHolder:
    replica = holder.replica
    return scm_pb2.KnownHolder(
        datanode_id=replica.datanode_id,
        tree=None if replica.tree is None else summary_message(replica.tree),
        is_empty=replica.is_empty,
        is_dead=holder.is_dead,
    )


def _replica_report(replica: Replica) -> container_pb2.ReplicaReport:
    return report_of(
        replica,
        contradiction_count=int(replica.is_contradictory),
        load_error=replica.load_error,
    )
