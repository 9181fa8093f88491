"""Messages about a datanode's replicas: reports, findings, outcomes.

These conversions are one way: no agent reads the results. Outside data enters through
`agent.rpc.wire.codec`.
"""

from collections.abc import Iterable
from typing import Final

from agent.plan.reconcile_outcome import ReconcileResult
from agent.rpc.v1 import container_pb2, datanode_pb2, scm_pb2
from agent.rpc.wire.codec import state_number, summary_message
from agent.rpc.wire.replica_columns import report_of
from agent.store.index.facts import ReplicaFacts, Unloadable
from agent.store.index.replica_history import HistoryEntry
from scanner.finding import ScanFinding

CHUNK_OUTCOMES_MAX: Final = 1_000  # in one heartbeat, beside the full count
TEXT_CHARS_MAX: Final = 512


def replica_report(facts: ReplicaFacts) -> container_pb2.ReplicaReport:
    """Return the report of one replica; without a tree the field is absent."""
    return report_of(facts, contradiction_count=facts.contradiction_count)


def unloadable_report(unloadable: Unloadable) -> container_pb2.ReplicaReport:
    """Return the report of a replica whose files exist and cannot be loaded."""
    return container_pb2.ReplicaReport(
        container_id=unloadable.container_id,
        state=container_pb2.UNHEALTHY,
        volume_id=unloadable.volume_id,
        load_error=_cut(unloadable.reason) or "cannot be loaded",
    )


def finding_message(finding: ScanFinding) -> datanode_pb2.Finding:
    """Return the wire form of a finding."""
    return datanode_pb2.Finding(
        container_id=finding.container_id,
        verdict=finding.verdict.value,
        fault=finding.fault.value,
        local_id=finding.block_id,
        offset=finding.offset,
        length=finding.length_bytes,
        found_at_ms=finding.found_at_ms,
        evidence=_cut(finding.evidence),
        forensic=finding.forensic.value,
    )


def finding_messages(findings: Iterable[ScanFinding]) -> list[datanode_pb2.Finding]:
    """Return the wire form of findings."""
    return [finding_message(finding) for finding in findings]


def history_message(entry: HistoryEntry) -> datanode_pb2.HistoryEntry:
    """Return the wire form of one entry of a replica's history; without a tree it has no root."""
    return datanode_pb2.HistoryEntry(
        at_ms=entry.at_ms,
        state=state_number(entry.state),
        generation=entry.generation,
        algorithm=entry.algorithm,
        root=entry.root,
        block_count=entry.block_count,
        tombstone_count=entry.tombstone_count,
        finding_count=entry.finding_count,
        why=_cut(entry.why),
    )


def outcome_message(result: ReconcileResult) -> scm_pb2.ReconcileOutcome:
    """Return the wire form of a reconcile's result."""
    return scm_pb2.ReconcileOutcome(
        container_id=result.container_id,
        result=result.result.value,
        peers=_peer_messages(result),
        chunks=_chunk_messages(result),
        chunk_count=result.chunk_count,
        bytes_fetched=result.fetched_bytes,
        tree_bytes_fetched=result.tree_fetched_bytes,
        tree_before=None if result.tree_before is None else summary_message(result.tree_before),
        tree_after=None if result.tree_after is None else summary_message(result.tree_after),
        state_before=None if result.state_before is None else state_number(result.state_before),
        state_after=None if result.state_after is None else state_number(result.state_after),
        duration_ms=result.duration_ms,
        differences=result.differences,
        proof=result.proof.value,
    )


def _peer_messages(result: ReconcileResult) -> list[scm_pb2.PeerOutcome]:
    return [
        scm_pb2.PeerOutcome(
            datanode_id=peer.peer_id,
            state=peer.state.value,
            message=_cut(peer.message),
            tree_bytes=peer.tree_bytes,
            data_bytes=peer.data_bytes,
            chunks=peer.chunk_count,
        )
        for peer in result.peers
    ]


def _chunk_messages(result: ReconcileResult) -> list[scm_pb2.ChunkOutcome]:
    """Return the wire form of the chunks' outcomes; 0 stands for no block or chunk, as the fields
    are unsigned."""
    return [
        scm_pb2.ChunkOutcome(
            local_id=max(chunk.block_id, 0),
            offset=max(chunk.offset, 0),
            length=max(chunk.length_bytes, 0),
            difference=chunk.difference,
            result=chunk.result.value,
            source=chunk.source,
            message=_cut(chunk.message),
        )
        for chunk in result.chunks[:CHUNK_OUTCOMES_MAX]
    ]


def _cut(text: str) -> str:
    """Cut a text to a bounded length that protobuf can carry."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
