"""What a source says of its replica before it sends it: a tree that fits its rows, and its damage.

A replica that is being repaired has rows that are newer than its tree: what was sent under the old
tree would contradict it, and nobody would take it. So the tree of such a one is folded from its
rows as they are now, without what findings call damaged. It claims no more than the rows do, and
whoever receives it checks every byte against them. Where peers contradict the replica, that is
said, too: nobody would know it of the copy until the next reconcile.

Blocks whose rows are lost are sent with their bytes, each of them declared: the copy may be all
that is left of them soon. Where no scan has said yet which they are, nothing is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.errors import Code, Refused
from agent.store.index.facts import ReplicaFacts
from agent.store.ports import SentReplicas
from agent.store.replica.lost_rows import is_unread_loss
from agent.store.replica.trees import whole_rows
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from scanner.finding import Fault, Finding, Verdict


@dataclass(frozen=True, slots=True)
class Statement:
    """The tree, and of blocks that are not deleted the damage and the contradictions; the sizes of
    the files that no row describes."""

    tree: Tree
    findings: Sequence[Finding]
    contradictions: Sequence[Finding]
    damaged_block_ids: frozenset[int]
    without_row: Mapping[BlockId, int]


def statement_of(store: SentReplicas, facts: ReplicaFacts) -> Statement:
    """Return what is to be said of a replica. Whoever asks holds a share of its lease.

    Raises Refused(CHECKSUM_MISMATCH) where a scan has to find out first which rows are lost.
    """
    container_id = facts.container_id
    tree = store.tree(container_id)
    buried = store.tombstones(container_id)
    known = [item for item in store.findings(container_id) if item.block_id not in buried]
    findings = [item for item in known if item.is_damage]
    contradictions = [item for item in known if item.is_contradiction]
    if any(map(is_unread_loss, findings)):
        raise undeclared("the index lost rows, and no scan has said of which blocks")
    without_row = store.blocks_without_row(container_id)
    findings += _unnamed(facts, findings, without_row)
    damaged = frozenset(tree.unhealthy_block_ids().tolist()) - frozenset(buried)
    if tree.generation != store.generation(container_id):
        tree = build_from_rows(
            whole_rows(store.block_rows(container_id), findings),
            buried,
            algorithm=tree.algorithm,
            generation=store.generation(container_id),
        )
    damaged |= {item.block_id for item in findings}
    return Statement(tree, findings, contradictions, damaged, without_row)


def _unnamed(
    facts: ReplicaFacts, findings: Sequence[Finding], without_row: Mapping[BlockId, int]
) -> list[Finding]:
    """Return findings of those blocks without a row that were too many for the scan to keep."""
    named = {item.block_id for item in findings}
    return [
        Finding(
            container_id=facts.container_id,
            verdict=Verdict.CORRUPT,
            fault=Fault.BLOCK_ROW_MISSING,
            block_id=block_id,
            offset=-1,
            length_bytes=-1,
            found_at_ms=facts.data_scan_at_ms,
            evidence="no row that can be read; its file is there",
        )
        for block_id in without_row
        if block_id not in named
    ]


def undeclared(what: str) -> Refused:
    """Return the refusal of damage that nobody had found before."""
    return Refused(Code.CHECKSUM_MISMATCH, what, hint="a scan of the replica finds and declares it")


def lost_rows(
    store: SentReplicas, container_id: ContainerId, without_row: Mapping[BlockId, int]
) -> list[tuple[BlockId, bytes]]:
    """Return blocks that have no row: another peer's row may make them whole again."""
    rows = ((block_id, store.block_row(container_id, block_id)) for block_id in without_row)
    return [(block_id, b"") for block_id, row in rows if row is None]
