"""Functions that create messages about a datanode's replicas: reports, findings, outcomes.

Agents only send these messages. Messages that an agent receives from other hosts are parsed by
`suture.wire.mapping.codec`.
"""

from typing import Final

from agent.plan.reconcile_outcome import ChunkOutcome, PeerOutcome, ReconcileResult
from agent.store.index.facts import ReplicaFacts, Unloadable
from agent.store.index.replica_history import HistoryEntry
from scanner.finding import ScanFinding
from suture.wire.mapping.codec import summary_message
from suture.wire.mapping.message_map import Field, MessageMap, each
from suture.wire.mapping.replica_columns import report_of
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

CHUNK_OUTCOMES_MAX: Final = 1_000  # maximum outcomes per message, which also has their number
TEXT_CHARS_MAX: Final = 512


def _cut(text: str) -> str:
    """Truncate a text to TEXT_CHARS_MAX, and replace characters that protobuf cannot encode."""
    return text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def _unsigned(number: int) -> int:
    """Return the number, or 0 if it is negative.

    If a finding concerns no block or chunk, its numbers are -1. Messages have 0 in place of -1.
    """
    return max(number, 0)


TEXT: Final = Field(encode=_cut)
FINDING: Final = MessageMap(
    datanode_pb2.Finding,
    ScanFinding,
    local_id="block_id",
    length="length_bytes",
    evidence=TEXT,
)
HISTORY_ENTRY: Final = MessageMap(datanode_pb2.HistoryEntry, HistoryEntry, reason=TEXT)
"""Conversion of an entry of a replica's history to a message.

If the replica had no tree, the message has no root.
"""
PEER_OUTCOME: Final = MessageMap(
    scm_pb2.PeerOutcome, PeerOutcome, datanode_id="peer_id", message=TEXT, chunks="chunk_count"
)
CHUNK_OUTCOME: Final = MessageMap(
    scm_pb2.ChunkOutcome,
    ChunkOutcome,
    local_id=Field("block_id", _unsigned),
    offset=Field(encode=_unsigned),
    length=Field("length_bytes", _unsigned),
    message=TEXT,
)
SUMMARY: Final = Field(encode=lambda tree: None if tree is None else summary_message(tree))
RECONCILE_OUTCOME: Final = MessageMap(
    scm_pb2.ReconcileOutcome,
    ReconcileResult,
    peers=each(PEER_OUTCOME),
    chunks=Field(encode=lambda chunks: CHUNK_OUTCOME.messages(chunks[:CHUNK_OUTCOMES_MAX])),
    bytes_fetched="fetched_bytes",
    tree_bytes_fetched="tree_fetched_bytes",
    tree_before=SUMMARY,
    tree_after=SUMMARY,
)


def replica_report(facts: ReplicaFacts) -> container_pb2.ReplicaReport:
    """Return the report of one replica. The field `tree` is unset if the replica has no tree."""
    return report_of(facts, contradiction_count=facts.contradiction_count)


def unloadable_report(unloadable: Unloadable) -> container_pb2.ReplicaReport:
    """Return the report of a replica whose files exist, but which this datanode cannot load."""
    return container_pb2.ReplicaReport(
        container_id=unloadable.container_id,
        state=container_pb2.UNHEALTHY,
        volume_id=unloadable.volume_id,
        load_error=_cut(unloadable.reason) or "cannot be loaded",
    )
