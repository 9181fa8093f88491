"""What the verification log tells of verdicts, repairs and deletes, in words and bounded."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from agent.store.index.facts import ScanBase
from agent.store.index.rows import ReplicaRow
from agent.store.verification_log.chain import Kind
from agent.store.verification_log.log_files import VerificationLog
from merkle.replica import BlockId, ChunkInfo, ContainerId
from merkle.tree import Summary
from scanner.scan_outcome import ScanOutcome

HEALTHY = "healthy"
DAMAGED = "damaged"
UNDECIDED = "undecided"  # not all of it could be judged; what was, is well
HELD = "held"  # the read was cut off, or its verdict is not acted on; `why` says why


def tell_verdict(
    log: VerificationLog, base: ScanBase, outcome: ScanOutcome, *, why: str, is_whole: bool
) -> None:
    """Tell what a read of a replica came to. `why` it is held back, "" if it is not; `is_whole`:
    all of it was read, and not only what a repair had changed."""
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
    log.append(Kind.VERDICT, told)


def verdict_of(outcome: ScanOutcome, *, why: str) -> str:
    """Return what a read came to, in a word."""
    if why:
        return HELD
    if outcome.is_damaged:
        return DAMAGED
    return HEALTHY if outcome.complete and not outcome.wavering_count else UNDECIDED


def tell_of_repair(
    log: VerificationLog,
    action: str,
    container_id: ContainerId,
    row: ReplicaRow,
    block_id: BlockId | None,
    chunk: ChunkInfo | None,
    proof: str = "",
) -> None:
    """Tell of one step of a repair before anything of it is done."""
    told = {**told_of(container_id, row), "action": action}
    if block_id is not None:
        told["block_id"] = block_id
    if chunk is not None:
        told |= {"offset": chunk.offset, "bytes": chunk.length_bytes}
    if proof:
        told["proof"] = proof
    log.append(Kind.REPAIR, told)


def tell_of_batch(
    log: VerificationLog,
    container_id: ContainerId,
    row: ReplicaRow,
    chunks: Sequence[tuple[BlockId, ChunkInfo]],
    proofs: Sequence[str] = (),
) -> None:
    """Tell of many chunks that are installed together, before it is done."""
    block_ids = sorted({block_id for block_id, _ in chunks})
    told = {
        **told_of(container_id, row),
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
    log.append(Kind.REPAIR, told)


def tell_of_delete(
    log: VerificationLog, container_id: ContainerId, row: ReplicaRow, *, forced: bool, proof: str
) -> None:
    """Tell that a replica is about to be deleted, what it held, and who proved to hold it."""
    held: dict[str, object] = {
        "block_count": row.block_count,
        "bytes": row.bytes_used,
        "forced": forced,
    }
    if proof:
        held["proof"] = proof
    log.append(Kind.DELETE, {**told_of(container_id, row), **held})


def told_of(container_id: ContainerId, row: ReplicaRow) -> dict[str, object]:
    """Return what each entry says of the replica that it is about."""
    return {
        "container_id": container_id,
        "index": row.replica_index,
        "state": row.state,
        "generation": row.generation,
        "bcsid": row.bcsid,
        "root": _root(row.tree),
    }


def _root(tree: Summary | None) -> str | None:
    """A replica without a tree has no root: that is never 0."""
    return None if tree is None else _hex(tree.root)


def _hex(root: int) -> str:
    return f"{root:016x}"
