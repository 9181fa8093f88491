"""Checks the spread of a container's replicas over racks.

The module implements two policies of Ozone. Rack aware (`SCMContainerPlacementRackAware`) is for
replicated containers: the replicas are on at least two racks, or on one if the cluster has only
one. Rack scatter (`SCMContainerPlacementRackScatter`) is for shards: they are on as many racks as
there are shards, or evenly on all racks, so that the loss of a rack costs as few shards as
possible.

All replicas count, including unhealthy replicas and replicas on leaving nodes. Surplus replicas
increase the allowed number on a rack. Therefore over-replication or a leaving node does not count
as mis-replication.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from health.batch import BatchView
from health.rules import Rules
from health.segmented_rows import Bools, Groups, Ints
from health.words import PendingOpKind

RACKS_AWARE = 2
"""Number of racks that is sufficient for a replicated container."""


def racks_required(factor: Ints, rack_count: int, *, is_scattered: Bools) -> Ints:
    """Return, for each container, the minimum number of racks that its replicas must be on."""
    wanted = np.where(is_scattered, factor, np.minimum(factor, RACKS_AWARE))
    return np.maximum(np.minimum(wanted, rack_count), 1)


def rack_most(factor: Ints, rack_count: int, *, is_scattered: Bools) -> Ints:
    """Return, for each container, the maximum number of its required replicas on one rack."""
    required = racks_required(factor, rack_count, is_scattered=is_scattered)
    return np.where(is_scattered, -(-factor // required), np.maximum(factor - 1, 1))


def misplaced_count(
    racks: Sequence[str], *, cluster_rack_count: int, required_count: int, is_scattered: bool
) -> int:
    """Return the number of replicas of one container that must move to another rack. `racks` has
    the rack of each replica."""
    if not racks or cluster_rack_count <= 1:
        return 0
    required, most = _of_one(required_count, cluster_rack_count, is_scattered=is_scattered)
    most += max(0, len(racks) - required_count)
    counts = Counter(racks)
    crowded = sum(max(0, count - most) for count in counts.values())
    return max(0, required - len(counts), crowded)


@lru_cache(maxsize=1024)
def _of_one(factor: int, rack_count: int, *, is_scattered: bool) -> tuple[int, int]:
    factors, scattered = np.array([factor]), np.array([is_scattered])
    required, most = (
        int(rule(factors, rack_count, is_scattered=scattered)[0])
        for rule in (racks_required, rack_most)
    )
    return required, most


def is_misplaced(view: BatchView, rules: Rules) -> tuple[Bools, Bools]:
    """Return, for each container, True if its replicas are badly spread over the racks now. Also
    return the same array for the time after all pending operations."""
    replicas, ops, nodes = view.batch.replicas, view.batch.ops, view.batch.nodes
    here = np.flatnonzero(view.is_present)
    now = _misplaced(view, rules, replicas.container[here], view.rack[here])
    arriving = np.flatnonzero((ops.kind == PendingOpKind.ADD) & (ops.node >= 0))
    is_changing = view.rows.some(view.is_leaving)
    is_changing[ops.container[arriving]] = True
    staying = here[~view.is_leaving[here] & is_changing[replicas.container[here]]]
    after = _misplaced(
        view,
        rules,
        np.concatenate((replicas.container[staying], ops.container[arriving])),
        np.concatenate((view.rack[staying], nodes.rack[ops.node[arriving]])),
    )
    return now, np.where(is_changing, after, now)


def _misplaced(view: BatchView, rules: Rules, container: Ints, rack: Ints) -> Bools:
    factor = view.batch.containers.factor
    required = racks_required(factor, rules.rack_count, is_scattered=view.is_ec)
    is_bound = required > 1
    if not is_bound.any():
        return is_bound
    total = np.bincount(container, minlength=len(factor))
    groups = Groups.of(container, rack)
    owner = container[groups.first]
    used = np.bincount(owner, minlength=len(factor))
    most = rack_most(factor, rules.rack_count, is_scattered=view.is_ec)
    most = most + np.maximum(0, total - factor)
    is_crowded = np.zeros(len(factor), dtype=np.bool_)
    is_crowded[owner[groups.tally() > most[owner]]] = True
    return is_bound & ((used < required) | is_crowded)
