"""What a source says of its replica before it sends it: a tree that fits its rows, and its damage.

A replica that is being repaired has rows that are newer than its tree: what was sent under the old
tree would contradict it, and nobody would take it. So the tree of such a one is folded from its
rows as they are now, without what findings call damaged. It claims no more than the rows do, and
whoever receives it checks every byte against them. Where peers contradict the replica, that is
said, too: nobody would know it of the copy until the next reconcile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.store.index.facts import ReplicaFacts
from agent.store.ports import SentReplicas
from agent.store.replica.trees import whole_rows
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from scanner.finding import Finding


@dataclass(frozen=True, slots=True)
class Statement:
    """The tree, and of blocks that are not deleted the damage and the contradictions."""

    tree: Tree
    findings: Sequence[Finding]
    contradictions: Sequence[Finding]
    damaged_block_ids: frozenset[int]


def statement_of(store: SentReplicas, facts: ReplicaFacts) -> Statement:
    """Return what is to be said of a replica. Whoever asks holds a share of its lease."""
    container_id = facts.container_id
    tree = store.tree(container_id)
    buried = store.tombstones(container_id)
    known = [item for item in store.findings(container_id) if item.block_id not in buried]
    findings = [item for item in known if item.is_damage]
    contradictions = [item for item in known if item.is_contradiction]
    damaged = frozenset(tree.unhealthy_block_ids().tolist()) - frozenset(buried)
    if tree.generation != store.generation(container_id):
        tree = build_from_rows(
            whole_rows(store.block_rows(container_id), findings),
            buried,
            algorithm=tree.algorithm,
            generation=store.generation(container_id),
        )
    damaged |= {item.block_id for item in findings}
    return Statement(tree, findings, contradictions, damaged)


def lost_rows(
    store: SentReplicas, container_id: ContainerId, findings: Sequence[Finding]
) -> list[tuple[BlockId, bytes]]:
    """Return blocks that have a file and no row: another peer's row may make them whole again."""
    named = sorted({item.block_id for item in findings if item.block_id > 0})
    return [
        (block_id, b"") for block_id in named if store.block_row(container_id, block_id) is None
    ]
