"""Declaration that a source sends before its replica: a tree that matches the rows, and the damage.

During a repair, the rows of a replica are newer than its tree. Every target would refuse this tree,
because the rows do not match it. Therefore, the source builds a tree from the current rows, without
the chunks that findings report as damaged. The target verifies every byte against the rows.
Contradictions with peers are declared, too. Otherwise, the copy would not have them until its next
reconcile.

Blocks whose rows are lost are sent with their bytes, because the copy may soon have the only bytes.
Each of these blocks is declared. If no scan has determined which blocks have lost their rows, the
export is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.store.index.facts import ReplicaFacts
from agent.store.replica.lost_rows import is_unread_loss
from agent.store.replica.trees import whole_rows
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from scanner.finding import DamageFault, ScanFinding, replica_damage
from suture.errors import Code, RefusedError


@dataclass(frozen=True, slots=True)
class ReplicaCondition:
    """The tree and the findings that a source declares before it sends a replica.

    `findings` has the damage, and `contradictions` the findings that say that other replicas
    contradict this replica. `without_row` has the file sizes in bytes of the blocks without an
    index row.
    """

    tree: Tree
    findings: Sequence[ScanFinding]
    contradictions: Sequence[ScanFinding]
    damaged_block_ids: frozenset[int]
    without_row: Mapping[BlockId, int]


def statement_of(store: ReplicaStore, facts: ReplicaFacts) -> ReplicaCondition:
    """Return the declaration for a replica: its tree, its damage, and its blocks without a row.

    The caller must share the container's lease (`ContainerLeases.share`), so that no chunk is
    written. Raise RefusedError(CHECKSUM_MISMATCH) if rows are lost and a scan must first determine
    their blocks.
    """
    container_id = facts.container_id
    tree = store.view(container_id).tree()
    buried = store.view(container_id).tombstones()
    known = [item for item in store.findings(container_id) if item.block_id not in buried]
    findings = [item for item in known if item.is_damage]
    contradictions = [item for item in known if item.is_contradiction]
    if any(map(is_unread_loss, findings)):
        raise undeclared_damage_error("the index lost rows, and no scan has said of which blocks")
    without_row = store.view(container_id).blocks_without_row()
    findings += _unnamed(facts, findings, without_row)
    damaged = frozenset(tree.unhealthy_block_ids().tolist()) - frozenset(buried)
    if tree.generation != store.generation(container_id):
        tree = build_from_rows(
            whole_rows(store.view(container_id).block_rows(), findings),
            buried,
            algorithm=tree.algorithm,
            generation=store.generation(container_id),
        )
    damaged |= {item.block_id for item in findings}
    return ReplicaCondition(tree, findings, contradictions, damaged, without_row)


def _unnamed(
    facts: ReplicaFacts, findings: Sequence[ScanFinding], without_row: Mapping[BlockId, int]
) -> list[ScanFinding]:
    """Return a new finding for each block without a row for which no finding is stored."""
    named = {item.block_id for item in findings}
    return [
        replica_damage(
            facts.container_id,
            DamageFault.BLOCK_ROW_MISSING,
            facts.data_scan_at_ms,
            "no row that can be read; its file is there",
            block_id,
        )
        for block_id in without_row
        if block_id not in named
    ]


def undeclared_damage_error(what: str) -> RefusedError:
    """Return the error for damage that the source of a copy has not declared."""
    return RefusedError(
        Code.CHECKSUM_MISMATCH, what, hint="a scan of the replica finds and declares it"
    )


def lost_rows(
    store: ReplicaStore, container_id: ContainerId, without_row: Mapping[BlockId, int]
) -> list[tuple[BlockId, bytes]]:
    """Return the blocks without a row, each with an empty row.

    A later repair may restore the row from a peer.
    """
    rows = ((block_id, store.view(container_id).block_row(block_id)) for block_id in without_row)
    return [(block_id, b"") for block_id, row in rows if row is None]
