"""Reference implementation of plans, in plain Python: the containers that must be reconciled, with
the reasons, and checks that find wrong rows about copies, shards and deletes.

Like `classifier`, it implements the rules for one container at a time, and shares no code with the
judge.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.verification.classifier import Case, bad, ec_indexes, eligibility, empty
from tests.support.verification.compared_roots import TREE, compare
from tests.support.verification.snapshots import ReplicaRow

Row = dict[str, Any]
"""A row of `plan/`: action, sources, targets, indexes, copies, is_forced."""


def reconciled(case: Case) -> str | None:
    """Return the reason why a container must be reconciled; None if it must not."""
    word, _, tombstones, _, _ = compare(case)
    if case.box.suppressed or word == "EMPTY":
        return None
    here = answering(case)
    reasons = {
        "replicas contradict each other": word == "CONTRADICTORY",
        "roots differ, no majority": word == "MISMATCH_SPLIT",
        "roots differ, minority": word == "MISMATCH_MINORITY",
        "replica UNHEALTHY": any(r.state == "UNHEALTHY" for r in here),
        "scan findings": any(r.finding_count for r in here),
        "tombstones differ": tombstones,
        "commit id behind": behind(case),
    }
    told = "; ".join(reason for reason, applies in reasons.items() if applies)
    code = eligibility(case)
    if code == "OK":
        return told or None
    is_ec = case.box.replication_type == "EC" and code == "INELIGIBLE_REPLICATION_TYPE"
    return told if is_ec and any(mendable(case, r, word) for r in here) else None


def answering(case: Case) -> list[ReplicaRow]:
    """Return the replicas that have a tree and whose datanodes answer now."""
    return [r for r in case.replicas if r.state in TREE and case.up(r)]


def behind(case: Case) -> bool:
    """Return True if a replica lacks the last commit, another replica has it, and there is no other
    difference between the replicas."""
    word, _, tombstones, _, _ = compare(case)
    here = answering(case)
    differs = tombstones or word == "CONTRADICTORY" or word.startswith("MISMATCH")
    has_both = any(late(case, r) for r in here) and any(in_time(case, r) for r in here)
    return has_both and not differs


def late(case: Case, r: ReplicaRow) -> bool:
    """Return True if a replica is undamaged, but QUASI_CLOSED without the last commit of its closed
    container."""
    is_earlier = r.bcsid is not None and r.bcsid < case.box.sequence_id
    is_whole = not damaged(r) and has_root(r)
    return case.box.state == "CLOSED" and r.state == "QUASI_CLOSED" and is_earlier and is_whole


def in_time(case: Case, r: ReplicaRow) -> bool:
    """Return True if a replica is undamaged, and CLOSED with the last commit."""
    is_last = r.bcsid is not None and r.bcsid >= case.box.sequence_id
    return r.state == "CLOSED" and is_last and not damaged(r) and has_root(r)


def has_root(r: ReplicaRow) -> bool:
    """Return True if a replica reports a root and its algorithm."""
    return r.root is not None and r.tree_algorithm is not None


def damaged(r: ReplicaRow) -> bool:
    return r.state == "UNHEALTHY" or r.finding_count > 0


def mendable(case: Case, r: ReplicaRow, word: str) -> bool:
    """Return True if a damaged shard can be repaired in place. This needs as many shards of other
    indexes as the code has data shards. Other shards of the same index must not contradict the
    damaged shard, unless no intact shard of this index remains."""
    if not (damaged(r) or (late(case, r) and behind(case))) or word == "CONTRADICTORY":
        return False
    if any(o.op == "RECONCILE" for o in case.ops):
        return False
    here = answering(case)
    alike = [other for other in here if other.replica_index == r.replica_index]
    indexes = {other.replica_index for other in here} - (
        {r.replica_index} if alike == [r] else set()
    )
    stays = any(not damaged(other) and case.op(other) == "S" for other in alike)
    may_touch = not word.startswith("MISMATCH") or not stays or case.op(r) == "M"
    return len(indexes) >= (case.box.ec_data or 0) and may_touch


def wrongs(case: Case, plan: Iterable[Row]) -> Iterator[str]:
    """Yield the faults in a plan's rows about a container."""
    rows, held = list(plan), {r.datanode_id: r for r in case.replicas}
    if case.box.suppressed and any(row["action"] != "scan" for row in rows):
        yield "something is done about what an operator suppressed"
    for row in rows:
        strange = [node for node in row["sources"] if node not in held]
        if strange:
            yield f"{row['action']} from {strange}, which has no replica"
        elif row["action"] in ("replicate", "reconstruct"):
            yield from wrong_sources(case, row, [held[node] for node in row["sources"]])
    doomed = [node for row in rows if row["action"] == "delete" for node in row["targets"]]
    if len(set(doomed)) < len(doomed) or not set(doomed) <= set(held):
        yield f"deletes {doomed} of {sorted(held)}"
    elif any(row["is_forced"] for row in rows if row["action"] == "delete"):
        yield from wrong_deletes(case, {node: held[node] for node in doomed})
    elif doomed and not all(held[node].is_empty for node in doomed):
        yield "deletes without force what holds data"


def wrong_sources(case: Case, row: Row, sources: list[ReplicaRow]) -> Iterator[str]:
    """Yield the faults in the sources of a copy or a reconstruction."""
    unread = [r for r in sources if not case.up(r) or case.going(r) or r.load_error or r.is_barred]
    if not sources or unread:
        yield f"{row['action']} from {unread or 'nowhere'}"
    if row["action"] == "replicate":
        # Each origin of a quasi-closed container is copied, even if it has only UNHEALTHY replicas.
        good = [r for r in case.present if r.state in TREE and not bad(case, r)]
        if case.box.state == "CLOSED" and good and any(r.state == "UNHEALTHY" for r in sources):
            yield "copies an UNHEALTHY replica though a good one is there"
        return
    indexes = [r.replica_index for r in sources]
    online = ec_indexes(case).online
    if len(set(indexes)) < (case.box.ec_data or 0):
        yield f"computes from shards {indexes}, which are too few"
    if set(row["indexes"]) & online or not all(1 <= i <= case.width for i in row["indexes"]):
        yield f"computes shards {row['indexes']} beside {sorted(online)}"


def wrong_deletes(case: Case, doomed: dict[str, ReplicaRow]) -> Iterator[str]:
    """Yield a text for each fault in the planned deletes `doomed`: a node that does not answer, or
    too few replicas after all planned and pending deletes."""
    if any(not case.up(r) or case.gone(r) for r in doomed.values()):
        yield "deletes on a node that does not answer"

    def stays(r: ReplicaRow) -> bool:
        is_here = case.up(r) and case.op(r) == "S" and not case.going(r)
        return is_here and r.datanode_id not in doomed

    good = [r for r in case.present if not bad(case, r)]
    left = [r for r in good if stays(r)]
    if case.box.state != "CLOSED" or empty(case):
        return  # of each origin of a quasi-closed one: `test_delete_laws`
    lost = [r for r in good if r.datanode_id in doomed]
    if case.box.replication_type == "EC":
        indexes = {r.replica_index for r in left}
        if any(r.replica_index not in indexes for r in lost):
            yield f"deletes the last whole shard of an index: {lost}"
    elif lost and len(left) < case.box.replication_factor:
        yield f"deletes {len(lost)} of {len(good)} good replicas; {len(left)} stay"
