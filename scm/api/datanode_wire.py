"""Converts datanodes' protobuf messages to the control plane's values, and checks them.

Each field is checked, and RefusedError(MALFORMED_REQUEST) names an invalid field. A call is
rejected if its datanode id is invalid, or if a registration contains an invalid operational state.
If a single volume, outcome or replica is invalid, only this item is left out and reported in
`refused`, because the rest of the report is valid.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np

from merkle.replica import ID_MAX
from scm.api.call_values import Heartbeat
from scm.api.wire import (
    IDS_MAX,
    NAME_CHARS_MAX,
    PEERS_KEPT_MAX,
    TEXT_CHARS_MAX,
    cut,
    op_state_from,
    parse_address,
    parse_command_id,
    parse_count,
    parse_each,
    parse_id,
    parse_name,
    parse_number,
)
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import NodeReplicaReport
from scm.state.entities import CommandOutcome, OpState, OutcomeState, ReportedVolume
from scm.state.replicas.reported_replicas import ReportedReplicas
from scm.state.starts import ReportedStart
from suture.errors import RefusedError
from suture.wire.mapping.codec import malformed, parse_block_id, parse_container_id, parse_int
from suture.wire.mapping.replica_columns import Columns, columns_from, columns_of
from suture.wire.v1 import datanode_pb2, scm_pb2

VOLUMES_MAX: Final = 256
SHA256_BYTES: Final = 32
QUEUES_MAX: Final = 64
SEEN_STARTS_MAX: Final = 64
TERM_SEEN_MAX: Final = ID_MAX // 2  # a new start needs a higher term than any term that was seen
LOCAL_IDS_MAX: Final = 65_536  # blocks per ConfirmDeletes
TRANSACTIONS_MAX: Final = 1_000  # results of deleted blocks kept per command
ORPHANS_MAX: Final = 1_000  # blocks named per reconstruction; the total count is kept, too
RACK_DEFAULT: Final = "/default-rack"
RECONCILE_BYTES_MAX: Final = 256 * 1024  # of one outcome's detail; beyond it the chunk rows are cut

CUT_SHORT: Final = frozenset({"interrupted", "no_peer"})  # results of reconciles that tried nothing
UNREACHABLE: Final = "unreachable"  # state of a peer

T = TypeVar("T")
V = TypeVar("V")

_OUTCOME_STATES: Final = {scm_pb2.CommandStatus.State.Value(name): name for name in OutcomeState}


def registration_from(message: scm_pb2.RegisterRequest) -> Registration:
    """Convert a registration of a datanode from protobuf.

    Invalid volumes and starts are left out and reported in `refused`.
    """
    refused: list[str] = []
    return Registration(
        datanode_id=parse_id(message.datanode_id, "datanode_id"),
        address=parse_address(message.address, "address"),
        rack=parse_name(message.rack or RACK_DEFAULT, "rack"),
        version=cut(message.version, NAME_CHARS_MAX),
        cluster_id=message.cluster_id and parse_name(message.cluster_id, "cluster_id"),
        boot_id=parse_int(message.boot_id, "boot_id", low=1, high=2**64 - 1),
        volumes=_each(message.volumes, _volume, "volumes", refused, count_max=VOLUMES_MAX),
        op_state=op_state_from(message.op_state, "op_state") if message.op_state else None,
        op_expiry_ms=parse_number(message.op_expiry_ms, "op_expiry_ms"),
        layout_version=parse_int(message.layout_version, "layout_version", low=1, high=2**31 - 1),
        seen_starts=_each(
            message.seen_starts, _seen_start, "seen_starts", refused, count_max=SEEN_STARTS_MAX
        ),
        refused=tuple(refused),
    )


def heartbeat_from(message: scm_pb2.HeartbeatRequest, *, now_ms: int) -> Heartbeat:
    """Convert a heartbeat of a datanode from protobuf, with all its reports.

    Invalid parts are left out and reported in `refused`.
    """
    datanode_id = sys.intern(parse_id(message.datanode_id, "datanode_id"))
    refused: list[str] = []

    def report(message: scm_pb2.ContainerReport, where: str) -> NodeReplicaReport:
        columns = columns_of(message.replicas, f"{where}.replicas")
        return _report(message, columns, datanode_id, where, now_ms)

    def column_report(message: scm_pb2.ColumnReport, where: str) -> NodeReplicaReport:
        columns = columns_from(message.replicas, f"{where}.replicas")
        return _report(message, columns, datanode_id, where, now_ms)

    def outcome(message: scm_pb2.CommandStatus, where: str) -> CommandOutcome:
        return _outcome(message, datanode_id, where, now_ms)

    reports = (
        *_each(message.reports, report, "reports", refused, count_max=IDS_MAX),
        *_each(message.column_reports, column_report, "column_reports", refused, count_max=IDS_MAX),
    )
    refused += [report.refused for report in reports if report.refused]
    statuses, states = message.command_statuses, _each([message], _op_state, "", refused)
    op_state, op_expiry_ms = states[0] if states else (None, 0)
    return Heartbeat(
        datanode_id=datanode_id,
        boot_id=message.boot_id,
        volumes=_each(message.volumes, _volume, "volumes", refused, count_max=VOLUMES_MAX),
        reports=reports,
        outcomes=_each(statuses, outcome, "command_statuses", refused, count_max=IDS_MAX),
        queues=_each(message.queues, _queue, "queues", refused, count_max=QUEUES_MAX),
        op_state=op_state,
        op_expiry_ms=op_expiry_ms,
        seen_starts=_each(
            message.seen_starts, _seen_start, "seen_starts", refused, count_max=SEEN_STARTS_MAX
        ),
        refused=tuple(refused),
    )


def _each(
    items: Sequence[T],
    parse: Callable[[T, str], V],
    where: str,
    refused: list[str],
    *,
    count_max: int = 1,
) -> tuple[V, ...]:
    """Return the valid items among the first `count_max` items, converted with `parse`.

    For each item that is left out, append the reason to `refused`.
    """
    found = []
    if len(items) > count_max:
        refused.append(f"{where}: {len(items)} are more than {count_max} in one call")
    for i, item in enumerate(items[:count_max]):
        try:
            found.append(parse(item, f"{where}[{i}]"))
        except RefusedError as error:
            refused.append(str(error))
    return tuple(found)


def _seen_start(message: scm_pb2.SeenStart, where: str) -> ReportedStart:
    return ReportedStart(
        parse_name(message.start_id, f"{where}.start_id"),
        parse_int(message.term, f"{where}.term", low=1, high=TERM_SEEN_MAX),
        parse_number(message.state_number, f"{where}.state_number"),
    )


def _queue(message: scm_pb2.QueueCount, where: str) -> tuple[str, int]:
    return parse_name(message.type, f"{where}.type"), message.count


def _op_state(message: scm_pb2.HeartbeatRequest, _where: str) -> tuple[OpState | None, int]:
    """Return the operational state that a datanode has stored, and its expiry in ms since 1970.

    Raise RefusedError(MALFORMED_REQUEST) if one of them is invalid. The caller then treats the
    state as not stored, and the control plane sends its own state to the datanode.
    """
    op_state = op_state_from(message.op_state, "op_state") if message.op_state else None
    return op_state, parse_number(message.op_expiry_ms, "op_expiry_ms")


def claimed_deletes_from(message: scm_pb2.ConfirmDeletesRequest) -> tuple[int, list[int]]:
    """Return the container id and the ids of the blocks that a datanode asks about.

    A peer of this datanode reports these blocks as deleted.
    """
    ids = parse_each(message.local_ids, "local_ids", parse_block_id, count_max=LOCAL_IDS_MAX)
    return parse_container_id(message.container_id, "container_id"), list(ids)


def _volume(message: datanode_pb2.VolumeStatus, where: str) -> ReportedVolume:
    def number(name: str) -> int:
        return parse_number(getattr(message, name), f"{where}.{name}")

    return ReportedVolume(
        volume_id=_volume_id(message, f"{where}.volume_id"),
        path=cut(message.path),
        capacity_bytes=number("capacity_bytes"),
        available_bytes=number("available_bytes"),
        used_bytes=number("used_bytes"),
        container_count=message.container_count,
        failed=message.failed,
        oldest_scan_at_ms=message.oldest_scan_at_ms,
        error=cut(message.error),
        data_bytes=message.data_bytes,
        in_time_bytes=message.in_time_bytes,
        service=cut(message.service),
        log_count=number("log_count"),
        log_checksum=_log_checksum(message, f"{where}.log_checksum"),
    )


def _log_checksum(message: datanode_pb2.VolumeStatus, where: str) -> str:
    """Return the checksum of the last entry of a volume's verification log, in hexadecimal.

    Return an empty string if the log has no entries.
    """
    if message.log_count and len(message.log_checksum) != SHA256_BYTES:
        raise malformed(where, f"{len(message.log_checksum)} bytes are not {SHA256_BYTES}")
    return message.log_checksum.hex()


def _volume_id(message: datanode_pb2.VolumeStatus, where: str) -> str:
    """Return the id of a volume.

    Return an empty string for a failed volume whose VERSION file cannot be read.
    """
    if message.failed and not message.volume_id:
        return ""
    return parse_id(message.volume_id, where)


def _report(
    message: scm_pb2.ContainerReport | scm_pb2.ColumnReport,
    columns: Columns,
    datanode_id: str,
    where: str,
    now_ms: int,
) -> NodeReplicaReport:
    told = _believed(columns, f"{where}.replicas")
    return NodeReplicaReport(
        is_full=isinstance(message, scm_pb2.ColumnReport) or message.full,
        report_id=message.report_id,
        page=message.page,
        is_last=message.last,
        replicas=_reported(told, datanode_id, now_ms),
        refused_ids=told.refused_ids,
        refused=told.refused,
    )


def _believed(columns: Columns, where: str) -> Columns:
    """Return the columns of a report without replicas that have an invalid origin.

    The origin of a replica must be a valid datanode id.
    """
    refused, why = [], ""
    named = np.flatnonzero(np.bincount(columns.numbers["origin"]))  # distinct words are few
    for place in named[named > 0].tolist():
        try:
            parse_name(columns.words[place], f"{where}.origin_datanode_id")
        except RefusedError as error:
            refused.append(place)
            why = why or str(error)
    return columns.without(np.isin(columns.numbers["origin"], refused), why)


def _reported(columns: Columns, datanode_id: str, now_ms: int) -> ReportedReplicas:
    """Convert the columns of a report to replicas of this datanode.

    Texts are cut to their maximum length. An empty origin is replaced by the id of the datanode.
    """
    volumes = set(np.flatnonzero(np.bincount(columns.numbers["volume"])).tolist())
    words = [
        cut(word, NAME_CHARS_MAX if place in volumes else TEXT_CHARS_MAX)
        for place, word in enumerate(columns.words)
    ]
    origin = columns.numbers["origin"]
    own = {"origin": np.where(origin == 0, len(words), origin)}
    whole = Columns({**columns.numbers, **own}, words)
    return ReportedReplicas.from_columns(datanode_id, whole, [*words, datanode_id], now_ms)


def _outcome(
    message: scm_pb2.CommandStatus, datanode_id: str, where: str, now_ms: int
) -> CommandOutcome:
    state = _OUTCOME_STATES.get(message.state)
    if state is None:
        raise malformed(f"{where}.state", f"command state {message.state} is unknown")
    results = message.delete_blocks.transactions
    parse_count(results, f"{where}.delete_blocks.transactions", IDS_MAX)
    return CommandOutcome(
        command_id=parse_command_id(message.command_id, f"{where}.command_id"),
        datanode_id=datanode_id,
        reported_at_ms=now_ms,
        state=state,
        kind=cut(message.type, NAME_CHARS_MAX),
        container_id=message.container_id,
        code=cut(message.code, NAME_CHARS_MAX),
        message=cut(message.message),
        detail=_detail(message),
        acknowledged=tuple(
            (result.container_id, result.transaction_id) for result in results if result.done
        ),
        moved_bytes=message.replicate.bytes_sent,
        duration_ms=message.replicate.duration_ms,
        is_complete=message.reconcile.result not in CUT_SHORT
        and all(peer.state != UNREACHABLE for peer in message.reconcile.peers),
    )


def _detail(message: scm_pb2.CommandStatus) -> bytes:
    """Serialize the details of a command's outcome, cut to their maximum size."""
    if message.HasField("reconcile"):
        return _reconcile_bytes(message)
    if message.HasField("replicate"):
        return message.replicate.SerializeToString()
    if message.HasField("delete_blocks"):
        del message.delete_blocks.transactions[TRANSACTIONS_MAX:]
        return message.delete_blocks.SerializeToString()
    if message.HasField("reconstruct"):
        del message.reconstruct.orphan_local_ids[ORPHANS_MAX:]
        return message.reconstruct.SerializeToString()
    return b""


def _reconcile_bytes(message: scm_pb2.CommandStatus) -> bytes:
    """Serialize the result of a reconcile.

    If the result is too large, remove its rows about chunks. The counts are always kept.
    """
    if message.reconcile.ByteSize() <= RECONCILE_BYTES_MAX:
        return message.reconcile.SerializeToString()
    short = scm_pb2.ReconcileOutcome()
    short.CopyFrom(message.reconcile)
    del short.chunks[:]
    del short.peers[PEERS_KEPT_MAX:]
    return short.SerializeToString()
