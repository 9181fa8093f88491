"""Entries of the verification log for scan results, repairs and deletes.

Their length is bounded.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

from agent.store.index.facts import ScanBase
from agent.store.index.rows import ReplicaRow
from agent.store.verification_log.chain import EntryKind
from agent.store.verification_log.log_files import VerificationLog
from merkle.replica import BlockId, ChunkInfo, ContainerId
from merkle.tree_summary import TreeSummary
from scanner.scan_outcome import ScanOutcome

HEALTHY = "healthy"
DAMAGED = "damaged"
UNDECIDED = "undecided"  # no damage was found, but some parts could not be verified
HELD = "held"  # the read was interrupted, or its result is not committed; `why` has the reason


def log_verdict(
    log: VerificationLog, base: ScanBase, outcome: ScanOutcome, *, why: str, is_whole: bool
) -> None:
    """Log the result of a read of a replica.

    `why` is the reason if the result is held back (not committed), and otherwise "". `is_whole` is
    False if the scan read only the ranges that a repair changed.
    """
    facts = base.facts
    told: dict[str, object] = {
        "container_id": facts.container_id,
        "index": facts.replica_index,
        "state": facts.state,
        "generation": base.generation,
        "bcsid": facts.bcsid,
        "root": _hex(outcome.tree.root),
        "algorithm": outcome.tree.algorithm,
        "verdict": verdict_of(outcome, why=why),
        "whole": is_whole and outcome.complete,
        "bytes_read": outcome.bytes_read,
        "block_count": outcome.block_count,
        "chunk_count": outcome.chunk_count,
        "finding_count": outcome.finding_count,
    }
    if outcome.findings:
        told["faults"] = Counter(finding.fault.value for finding in outcome.findings)
    if why:
        told["why"] = why[:200]
    log.append(EntryKind.VERDICT, told)


def verdict_of(outcome: ScanOutcome, *, why: str) -> str:
    """Return the result of a read as one word, for example HEALTHY.

    `why` is as in `log_verdict`.
    """
    if why:
        return HELD
    if outcome.is_damaged:
        return DAMAGED
    return HEALTHY if outcome.complete and not outcome.wavering_count else UNDECIDED


def log_repair(
    log: VerificationLog,
    action: str,
    container_id: ContainerId,
    row: ReplicaRow,
    block_id: BlockId | None,
    chunk: ChunkInfo | None,
    proof: str = "",
) -> None:
    """Log one step of a repair before it begins."""
    told = {**entry_facts(container_id, row), "action": action}
    if block_id is not None:
        told["block_id"] = block_id
    if chunk is not None:
        told |= {"offset": chunk.offset, "bytes": chunk.length_bytes}
    if proof:
        told["proof"] = proof
    log.append(EntryKind.REPAIR, told)


def log_batch(
    log: VerificationLog,
    container_id: ContainerId,
    row: ReplicaRow,
    chunks: Sequence[tuple[BlockId, ChunkInfo]],
    proofs: Sequence[str] = (),
) -> None:
    """Log the install of a batch of chunks before it begins."""
    block_ids = sorted({block_id for block_id, _ in chunks})
    told = {
        **entry_facts(container_id, row),
        "action": "install_batch",
        "first_block_id": block_ids[0],
        "last_block_id": block_ids[-1],
        "block_count": len(block_ids),
        "chunk_count": len(chunks),
        "bytes": sum(chunk.length_bytes for _, chunk in chunks),
    }
    if any(proofs):
        told["proven_count"] = sum(map(bool, proofs))
        told["proofs"] = hashlib.sha256("\n".join(proofs).encode()).hexdigest()
    log.append(EntryKind.REPAIR, told)


def log_delete(
    log: VerificationLog, container_id: ContainerId, row: ReplicaRow, *, forced: bool, proof: str
) -> None:
    """Log a delete before it begins.

    The entry has the size of the replica. `proof` shows that a peer has the same data, or is "".
    """
    held: dict[str, object] = {
        "block_count": row.block_count,
        "bytes": row.used_bytes,
        "forced": forced,
    }
    if proof:
        held["proof"] = proof
    log.append(EntryKind.DELETE, {**entry_facts(container_id, row), **held})


def entry_facts(container_id: ContainerId, row: ReplicaRow) -> dict[str, object]:
    """Return the facts about a replica that every entry about a replica has."""
    return {
        "container_id": container_id,
        "index": row.replica_index,
        "state": row.state,
        "generation": row.generation,
        "bcsid": row.bcsid,
        "root": _root(row.tree),
    }


def _root(tree: TreeSummary | None) -> str | None:
    """Return the root of a tree in hexadecimal, or None for a replica without a tree."""
    return None if tree is None else _hex(tree.root)


def _hex(root: int) -> str:
    return f"{root:016x}"
