"""Chooses the target datanodes for copies of a replica. No I/O.

`health.racks` decides whether the replicas of a container are on enough racks.
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
    """Choose up to `count` datanodes for copies of a container. Return them in order of preference.

    `used_racks` are the racks of the replicas that remain or are being copied. Datanodes in
    `excluded` are never chosen. `failed_at_s` maps a datanode to the time when a copy of this
    container to it last failed. Such datanodes come last, the oldest failure first.

    As in `allocate.choose_nodes`, datanodes on the racks with the fewest replicas are preferred.
    This order satisfies every rack policy as far as the cluster can. The result has fewer than
    `count` datanodes if there are not enough.
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
