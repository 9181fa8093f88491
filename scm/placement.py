"""Where a copy goes, and whether replicas are spread well enough. Pure.

Rack aware as in Ozone (`SCMContainerPlacementRackAware`): replicas are on two racks, or on one
if the cluster has no more, and never all but a few on one of them.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from scm.allocate import Candidate, tie

RACKS_REQUIRED: Final = 2


def required_racks(cluster_rack_count: int, required_count: int) -> int:
    """Return on how many racks a container must be."""
    return 1 if required_count == 1 else max(1, min(RACKS_REQUIRED, cluster_rack_count))


def misplaced_count(racks: Sequence[str], *, cluster_rack_count: int, required_count: int) -> int:
    """Return how many replicas would have to be elsewhere; `racks` has one entry per replica.

    More replicas than required, while nodes leave or copies are not cleared away yet, never make
    a container look misplaced.
    """
    if not racks or required_count == 1 or cluster_rack_count <= 1:
        return 0
    surplus = max(0, len(racks) - required_count)
    per_rack_max = max(required_count - 1, 1) + surplus
    counts = Counter(racks)
    lacking = required_racks(cluster_rack_count, required_count) - len(counts)
    crowded = sum(max(0, count - per_rack_max) for count in counts.values())
    return max(0, lacking, crowded)


def is_removable(
    racks: Sequence[str], rack: str, *, cluster_rack_count: int, required_count: int
) -> bool:
    """Whether a replica on `rack` may go without the placement getting worse."""
    after = list(racks)
    after.remove(rack)
    misplaced = [
        misplaced_count(some, cluster_rack_count=cluster_rack_count, required_count=required_count)
        for some in (racks, after)
    ]
    if misplaced[0] == 0:
        return misplaced[1] == 0
    return misplaced[1] <= misplaced[0] and len(set(after)) == len(set(racks))


def choose_targets(
    candidates: Sequence[Candidate],
    *,
    count: int,
    needed_bytes: int,
    used_racks: Sequence[str],
    excluded: Collection[str],
    container_id: int,
    seed: int,
) -> list[str]:
    """Choose up to `count` nodes for copies, best first; fewer if there are not that many.

    `used_racks` are the racks of the replicas that stay or come, `excluded` the nodes that must
    not be chosen. The order is that of `allocate.choose_nodes`.
    """
    racks = list(used_racks)
    able = [c for c in candidates if c.datanode_id not in excluded and c.has_room(needed_bytes)]
    chosen: list[str] = []
    while able and len(chosen) < count:
        best = min(
            able,
            key=lambda c: (
                c.has_failed_lately,
                racks.count(c.rack),
                c.load,
                tie(seed, container_id, c.datanode_id),
            ),
        )
        able.remove(best)
        racks.append(best.rack)
        chosen.append(best.datanode_id)
    return chosen
