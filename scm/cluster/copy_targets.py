"""Chooses targets for copies of a replica. No I/O: nodes in, choice out.

`health.racks` decides whether replicas are on enough racks.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from scm.cluster.allocate import TargetCandidate, tie


def choose_targets(
    candidates: Sequence[TargetCandidate],
    *,
    count: int,
    needed_bytes: int,
    used_racks: Sequence[str],
    excluded: Collection[str],
    failed_at_s: Mapping[str, float],
    container_id: int,
) -> list[str]:
    """Choose up to `count` nodes for copies, best first; fewer if there are not enough nodes.

    `used_racks` are the racks of the replicas that remain or are being made. Nodes in `excluded`
    are never chosen. `failed_at_s` maps nodes to the time of a recent failed copy of this
    container. These nodes come last, those with the oldest failure first.

    The order is that of `allocate.choose_nodes`: the rack with the fewest replicas comes first.
    This satisfies each rack policy as far as the cluster can.
    """
    racks = Counter(used_racks)
    able = [c for c in candidates if c.datanode_id not in excluded and c.has_room(needed_bytes)]
    chosen: list[str] = []
    while able and len(chosen) < count:
        best = min(
            able,
            key=lambda c: (
                c.has_failed_lately or c.datanode_id in failed_at_s,
                failed_at_s.get(c.datanode_id, 0.0),
                racks[c.rack],
                c.load,
                tie(container_id, c.datanode_id),
            ),
        )
        able.remove(best)
        racks[best.rack] += 1
        chosen.append(best.datanode_id)
    return chosen
