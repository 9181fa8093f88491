"""What speaks against copying a replica although it is not called bad. Pure.

A replica with findings has chunks that are known to be damaged. Of replicas whose roots differ
nobody knows which is right; the one that agrees with fewer is the likelier to be wrong. A copy of
either would be one more witness for the wrong bytes, so it is made only where nothing better is
left, and the order says what speaks against its source.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from merkle.replica import TREE_STATES, ReplicaState
from scm.counting import Placed
from scm.facts import Health

MAJORITY_MIN: Final = 2  # one replica alone is no majority, however few the others are


def doubts(placed: Iterable[Placed]) -> dict[str, str]:
    """Return what speaks against each doubtful replica, by datanode.

    Only replicas that can answer and of which no damage is known vote, and only with those of the
    same index and algorithm.
    """
    here = list(placed)
    damage = {p.datanode_id: told for p in here for told in [_damage(p)] if told}
    votes = Counter(
        vote
        for p in here
        if p.health is Health.HEALTHY and p.datanode_id not in damage
        for vote in [_vote(p)]
        if vote is not None
    )
    found = damage
    for p in here:
        if p.datanode_id not in damage and (lost := _lost(_vote(p), votes)):
            found = found | {p.datanode_id: lost}
    return found


def _damage(p: Placed) -> str:
    if p.replica.state is ReplicaState.UNHEALTHY:
        return "UNHEALTHY"
    return "scan findings" if p.replica.finding_count else ""


def _vote(p: Placed) -> tuple[int, str, int] | None:
    tree = p.replica.tree
    if tree is None or p.replica.state not in TREE_STATES:
        return None
    return p.replica.replica_index, str(tree.algorithm), tree.root


def _lost(vote: tuple[int, str, int] | None, votes: Counter[tuple[int, str, int]]) -> str:
    """Say how a vote went for the replica that gave it; empty: nobody disagrees, or few do."""
    if vote is None:
        return ""
    rivals = [count for other, count in votes.items() if other[:2] == vote[:2] and other != vote]
    if not rivals:
        return ""
    best = max(rivals)
    if votes[vote] >= MAJORITY_MIN and votes[vote] > best:
        return ""
    has_majority = best >= MAJORITY_MIN and rivals.count(best) == 1 and best > votes[vote]
    return "outvoted" if has_majority else "roots differ"
