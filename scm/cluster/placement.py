"""Where a copy goes, and whether replicas are spread well enough. Pure.

Two policies, as in Ozone. Rack aware (`SCMContainerPlacementRackAware`), for whole copies: replicas
are on two racks, or on one if the cluster has no more, and never all on one of them. Rack scatter
(`SCMContainerPlacementRackScatter`), for shards: on as many racks as there are shards, or on all
racks evenly, so that the loss of a rack costs as few shards as it can.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from scm.cluster.allocate import Candidate, tie

RACKS_REQUIRED: Final = 2


def required_racks(cluster_rack_count: int, required_count: int, *, is_scattered: bool) -> int:
    """Return on how many racks a container must be."""
    wanted = required_count if is_scattered else min(RACKS_REQUIRED, required_count)
    return max(1, min(wanted, cluster_rack_count))


def per_rack_max(cluster_rack_count: int, required_count: int, *, is_scattered: bool) -> int:
    """Return how many of a container's required replicas may be on one rack."""
    if not is_scattered:
        return max(required_count - 1, 1)
    racks = required_racks(cluster_rack_count, required_count, is_scattered=True)
    return -(-required_count // racks)


def misplaced_count(
    racks: Sequence[str],
    *,
    cluster_rack_count: int,
    required_count: int,
    is_scattered: bool = False,
) -> int:
    """Return how many replicas would have to be elsewhere; `racks` has one entry per replica.

    More replicas than required, while nodes leave or copies are not cleared away yet, never make
    a container look misplaced.
    """
    if not racks or cluster_rack_count <= 1:
        return 0
    surplus = max(0, len(racks) - required_count)
    most = per_rack_max(cluster_rack_count, required_count, is_scattered=is_scattered) + surplus
    counts = Counter(racks)
    needed = required_racks(cluster_rack_count, required_count, is_scattered=is_scattered)
    crowded = sum(max(0, count - most) for count in counts.values())
    return max(0, needed - len(counts), crowded)


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
    not be chosen. The order is that of `allocate.choose_nodes`: the rack with the fewest replicas
    first, which satisfies either policy as far as the cluster can.
    """
    racks = Counter(used_racks)
    able = [
        c
        for c in candidates
        if c.datanode_id not in excluded and c.has_room(needed_bytes) and c.part_room > 0
    ]
    chosen: list[str] = []
    while able and len(chosen) < count:
        best = min(
            able,
            key=lambda c: (
                c.has_failed_lately,
                racks[c.rack],
                c.load,
                tie(seed, container_id, c.datanode_id),
            ),
        )
        able.remove(best)
        racks[best.rack] += 1
        chosen.append(best.datanode_id)
    return chosen
