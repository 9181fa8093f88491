"""What datanodes say, as the control plane's values: registrations, heartbeats, reports, outcomes.

As in `scm.edge.wire`, each field is checked here, and Refused(MALFORMED_REQUEST) names it.
"""

import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from agent.rpc.v1 import datanode_pb2, scm_pb2
from agent.rpc.wire.codec import malformed, parse_block_id, parse_container_id, parse_int
from agent.rpc.wire.replica_columns import Columns, columns_from, columns_of
from merkle.replica import ID_MAX
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import Report
from scm.edge.call_values import Heartbeat
from scm.edge.wire import (
    IDS_MAX,
    NAME_CHARS_MAX,
    PEERS_KEPT_MAX,
    TEXT_CHARS_MAX,
    cut,
    op_state_from,
    parse_address,
    parse_count,
    parse_id,
    parse_name,
)
from scm.state.facts import Outcome, OutcomeState, Volume
from scm.state.replicas.reported_replicas import Reported

LAYOUT_BEFORE_SAID: Final = 1  # of agents so old that they do not say
VOLUMES_MAX: Final = 256
SHA256_BYTES: Final = 32
QUEUES_MAX: Final = 64
LOCAL_IDS_MAX: Final = 65_536  # blocks per ConfirmDeletes
TRANSACTIONS_MAX: Final = 1_000  # results of deleted blocks that are kept of one command
ORPHANS_MAX: Final = 1_000  # of one reconstruction, by name; it says how many there were
RACK_DEFAULT: Final = "/default-rack"
RECONCILE_BYTES_MAX: Final = 256 * 1024  # one outcome's detail; beyond it the chunk rows are cut

_OUTCOME_STATES: Final[dict[int, OutcomeState]] = {
    scm_pb2.CommandStatus.EXECUTED: OutcomeState.EXECUTED,
    scm_pb2.CommandStatus.FAILED: OutcomeState.FAILED,
    scm_pb2.CommandStatus.SKIPPED: OutcomeState.SKIPPED,
}


def registration_from(message: scm_pb2.RegisterRequest) -> Registration:
    """Check a datanode's registration."""
    return Registration(
        datanode_id=parse_id(message.datanode_id, "datanode_id"),
        address=parse_address(message.address, "address"),
        rack=parse_name(message.rack or RACK_DEFAULT, "rack"),
        version=cut(message.version, NAME_CHARS_MAX),
        cluster_id=message.cluster_id and parse_name(message.cluster_id, "cluster_id"),
        boot_id=parse_int(message.boot_id, "boot_id", low=1, high=2**64 - 1),
        volumes=_volumes(message.volumes),
        op_state=op_state_from(message.op_state, "op_state") if message.op_state else None,
        op_expiry_ms=parse_int(message.op_expiry_ms, "op_expiry_ms", low=0, high=ID_MAX),
        layout_version=message.layout_version or LAYOUT_BEFORE_SAID,
    )


def heartbeat_from(message: scm_pb2.HeartbeatRequest, *, now_ms: int) -> Heartbeat:
    """Check a heartbeat with all its reports."""
    datanode_id = sys.intern(parse_id(message.datanode_id, "datanode_id"))
    parse_count(message.queues, "queues", QUEUES_MAX)
    parse_count(message.command_statuses, "command_statuses", IDS_MAX)
    for i, status in enumerate(message.command_statuses):
        where = f"command_statuses[{i}].delete_blocks.transactions"
        parse_count(status.delete_blocks.transactions, where, IDS_MAX)
    return Heartbeat(
        datanode_id=datanode_id,
        boot_id=message.boot_id,
        volumes=_volumes(message.volumes),
        reports=(
            *(
                _report(report, datanode_id, f"reports[{i}]", now_ms)
                for i, report in enumerate(message.reports)
            ),
            *(
                _column_report(report, datanode_id, f"column_reports[{i}]", now_ms)
                for i, report in enumerate(message.column_reports)
            ),
        ),
        outcomes=tuple(
            _outcome(status, datanode_id, f"command_statuses[{i}]", now_ms)
            for i, status in enumerate(message.command_statuses)
        ),
        queues=tuple((parse_name(q.type, "queues.type"), q.count) for q in message.queues),
        op_state=op_state_from(message.op_state, "op_state") if message.op_state else None,
        op_expiry_ms=parse_int(message.op_expiry_ms, "op_expiry_ms", low=0, high=ID_MAX),
    )


def claimed_deletes_from(message: scm_pb2.ConfirmDeletesRequest) -> tuple[int, list[int]]:
    """Check the container and the blocks that a peer claims were deleted."""
    parse_count(message.local_ids, "local_ids", LOCAL_IDS_MAX)
    ids = [parse_block_id(v, f"local_ids[{i}]") for i, v in enumerate(message.local_ids)]
    return parse_container_id(message.container_id, "container_id"), list(ids)


def _volumes(messages: Sequence[datanode_pb2.VolumeStatus]) -> tuple[Volume, ...]:
    parse_count(messages, "volumes", VOLUMES_MAX)
    return tuple(
        Volume(
            volume_id=_volume_id(message, f"volumes[{i}].volume_id"),
            path=cut(message.path),
            capacity_bytes=parse_int(
                message.capacity_bytes, f"volumes[{i}].capacity_bytes", low=0, high=ID_MAX
            ),
            available_bytes=parse_int(
                message.available_bytes, f"volumes[{i}].available_bytes", low=0, high=ID_MAX
            ),
            used_bytes=parse_int(
                message.used_bytes, f"volumes[{i}].used_bytes", low=0, high=ID_MAX
            ),
            container_count=message.container_count,
            failed=message.failed,
            scanned_bytes=message.scanned_bytes,
            oldest_scan_at_ms=message.oldest_scan_at_ms,
            error=cut(message.error),
            data_bytes=message.data_bytes,
            in_time_bytes=message.in_time_bytes,
            service=cut(message.service),
            log_count=parse_int(message.log_count, f"volumes[{i}].log_count", low=0, high=ID_MAX),
            log_checksum=_log_checksum(message, f"volumes[{i}].log_checksum"),
        )
        for i, message in enumerate(messages)
    )


def _log_checksum(message: datanode_pb2.VolumeStatus, where: str) -> str:
    """Return the hash of a log's last entry, in hexadecimal; one without entries has none."""
    if message.log_count and len(message.log_checksum) != SHA256_BYTES:
        raise malformed(where, f"{len(message.log_checksum)} bytes are not {SHA256_BYTES}")
    return message.log_checksum.hex()


def _volume_id(message: datanode_pb2.VolumeStatus, where: str) -> str:
    """Return the id of a volume; one that failed may have none: its VERSION cannot be read."""
    if message.failed and not message.volume_id:
        return ""
    return parse_id(message.volume_id, where)


def _report(message: scm_pb2.ContainerReport, datanode_id: str, where: str, now_ms: int) -> Report:
    replicas = columns_of(message.replicas, f"{where}.replicas")
    return Report(
        is_full=message.full,
        report_id=message.report_id,
        page=message.page,
        is_last=message.last,
        replicas=_reported(replicas, datanode_id, f"{where}.replicas", now_ms),
    )


def _column_report(
    message: scm_pb2.ColumnReport, datanode_id: str, where: str, now_ms: int
) -> Report:
    replicas = columns_from(message.replicas, f"{where}.replicas")
    return Report(
        is_full=True,
        report_id=message.report_id,
        page=message.page,
        is_last=message.last,
        replicas=_reported(replicas, datanode_id, f"{where}.replicas", now_ms),
    )


def _reported(columns: Columns, datanode_id: str, where: str, now_ms: int) -> Reported:
    """Check the words of replicas; no origin is the datanode itself."""
    origins = set(columns.numbers["origin"].tolist()) - {0}
    volumes = set(columns.numbers["volume"].tolist())
    words = [""]
    for place, word in enumerate(columns.words[1:], 1):
        if place in origins:
            parse_name(word, f"{where}.origin_datanode_id")
        words.append(cut(word, NAME_CHARS_MAX if place in volumes else TEXT_CHARS_MAX))
    origin = columns.numbers["origin"]
    own = {"origin": np.where(origin == 0, len(words), origin)}
    whole = Columns({**columns.numbers, **own}, words)
    return Reported.from_columns(datanode_id, whole, [*words, datanode_id], now_ms)


def _outcome(message: scm_pb2.CommandStatus, datanode_id: str, where: str, now_ms: int) -> Outcome:
    state = _OUTCOME_STATES.get(message.state)
    if state is None:
        raise malformed(f"{where}.state", f"command state {message.state} is unknown")
    return Outcome(
        command_id=parse_int(message.command_id, f"{where}.command_id", low=1, high=ID_MAX),
        datanode_id=datanode_id,
        reported_at_ms=now_ms,
        state=state,
        kind=cut(message.type, NAME_CHARS_MAX),
        container_id=message.container_id,
        code=cut(message.code, NAME_CHARS_MAX),
        message=cut(message.message),
        detail=_detail(message),
        acknowledged=tuple(
            (result.container_id, result.transaction_id)
            for result in message.delete_blocks.transactions
            if result.done
        ),
        moved_bytes=message.replicate.bytes_sent,
        duration_ms=message.replicate.duration_ms,
    )


def _detail(message: scm_pb2.CommandStatus) -> bytes:
    """Serialise the detail of an outcome, bounded."""
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
    """Serialise what a reconcile did; a huge one loses its chunk rows, never its counts."""
    if message.reconcile.ByteSize() <= RECONCILE_BYTES_MAX:
        return message.reconcile.SerializeToString()
    short = scm_pb2.ReconcileOutcome()
    short.CopyFrom(message.reconcile)
    del short.chunks[:]
    del short.peers[PEERS_KEPT_MAX:]
    return short.SerializeToString()
