"""Whether the replicas stand on enough racks: Ozone's rack-aware and rack-scatter policies.

All replicas enter, also unhealthy ones and those on leaving nodes. Replicas beyond the factor widen
what a rack may hold, so neither over-replication nor a leaving node looks mis-replicated.
"""

import numpy as np

from health.batch import View
from health.rules import Rules
from health.segments import Bools, Groups, Ints
from health.words import Op

RACKS_AWARE = 2
"""Racks on which a Ratis container is placed well enough."""


def racks_required(view: View, rules: Rules) -> Ints:
    """Return on how many racks the replicas of each container should stand at least."""
    wanted = np.where(view.is_ec, view.batch.containers.factor, RACKS_AWARE)
    return np.minimum(max(rules.rack_count, 1), wanted)


def is_misplaced(view: View, rules: Rules) -> tuple[Bools, Bools]:
    """Return which containers stand on too few racks: now, and once all pending ops are done."""
    replicas, ops, nodes = view.batch.replicas, view.batch.ops, view.batch.nodes
    here = np.flatnonzero(view.is_present)
    now = _misplaced(view, rules, replicas.container[here], view.rack[here])
    arriving = np.flatnonzero((ops.kind == Op.ADD) & (ops.node >= 0))
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


def _misplaced(view: View, rules: Rules, container: Ints, rack: Ints) -> Bools:
    factor = view.batch.containers.factor
    required = racks_required(view, rules)
    is_bound = (factor > 1) & (required > 1)
    if not is_bound.any():
        return is_bound
    total = np.bincount(container, minlength=len(factor))
    groups = Groups.of(container, rack)
    owner = container[groups.first]
    used = np.bincount(owner, minlength=len(factor))
    # Only shards can crowd a rack: of copies on two racks each rack has few enough.
    most = -(-factor // required) + np.maximum(0, total - factor)
    is_crowded = np.zeros(len(factor), dtype=np.bool_)
    is_crowded[owner[groups.tally() > most[owner]]] = True
    return is_bound & ((used < required) | (view.is_ec & is_crowded))
