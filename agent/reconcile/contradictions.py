"""Contradictions between replicas, stored as findings together with the versions of the peers.

A contradiction means that two replicas have different rows, and each replica matches its own rows.
No repair resolves it, because only an operator can decide which rows are right. Until then, the
findings name each version, and the quarantine has the bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from agent.plan.actions import Skip, SkipReason, WantedChunk
from agent.reconcile.fetch import PeerSources
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from scanner.finding import DamageFault, ScanFinding, Verdict
from suture.errors import SutureError

TOLD_MAX: Final = 1_000  # contradictions recorded per reconcile
EVIDENCE_COUNT_MAX: Final = 16  # versions fetched and stored per reconcile
EVIDENCE_BYTES_MAX: Final = 64 * 1024**2


def findings_of(
    container_id: ContainerId, skips: Sequence[Skip], now_ms: int
) -> Iterator[tuple[Skip, ScanFinding]]:
    """Yield (skip, finding) for each difference in `skips` that is a contradiction.

    The finding reports the contradiction.
    """
    for skip in skips:
        if not skip.is_contradiction:
            continue
        is_delete = skip.reason is SkipReason.UNCONFIRMED_DELETE
        deleted = f"deleted at {', '.join(skip.peers)}, and nobody confirms it"
        yield (
            skip,
            ScanFinding(
                container_id=container_id,
                verdict=Verdict.CONTRADICTORY,
                fault=DamageFault.UNCONFIRMED_DELETE if is_delete else DamageFault.PEER_CONTRADICTS,
                block_id=skip.block_id,
                offset=skip.offset,
                length_bytes=max(
                    (leaf.length_bytes for _, leaf in skip.versions),
                    default=-1,
                ),
                found_at_ms=now_ms,
                evidence=f"{deleted} {skip.detail}".strip() if is_delete else skip.detail,
            ),
        )


def keep_versions(
    store: ReplicaStore, container_id: ContainerId, fresh: Sequence[Skip], sources: PeerSources
) -> None:
    """Store the versions of the peers that contradict each other in quarantine.

    At most EVIDENCE_COUNT_MAX versions with EVIDENCE_BYTES_MAX bytes are stored. Omit versions that
    cannot be fetched. If a version cannot be stored, stop without an error.
    """
    left_count, left_bytes = EVIDENCE_COUNT_MAX, EVIDENCE_BYTES_MAX
    for skip in fresh:
        for peer_id, leaf in skip.versions:
            if not left_count or leaf.length_bytes > left_bytes:
                return
            wanted = WantedChunk(leaf, skip.reason.value, (peer_id,))
            answer = sources.fetch(skip.block_id, wanted)
            if answer.chunk is None:
                continue
            left_count, left_bytes = left_count - 1, left_bytes - leaf.length_bytes
            why = f"version of {peer_id}, contradicts this replica or another"
            try:
                store.repair(container_id).keep_version(
                    skip.block_id, leaf.offset, answer.data, why
                )
            except SutureError:
                return
