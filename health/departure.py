"""Decides whether a node may leave service, and which containers become unreadable without a node.

A node may leave service if every container on the node is closed, has an intact replica in service,
and has enough replicas on other nodes. Ozone checks this rule with one counter, which omits
containers that are unhealthy, missing or stuck. In this module, each such container prevents the
departure.
"""

from typing import Final

import numpy as np

from health.batch import BatchView
from health.health_state import Counts
from health.remaining import answering, is_readable
from health.segmented_rows import Bools, Ints, first_that_holds, popcount
from health.words import ContainerOnlyState, ServiceState, SharedState, flag_bit

HELD_BY: Final = ("unclosed", "no_good_replica", "too_few")
"""Reasons that prevent a departure, in the order of the checks."""

FREE: Final = -1
"""Code for a container that does not prevent the departure."""


def obstacles(view: BatchView, counts: Counts, flags: Ints) -> Ints:
    """Return, for each container, the reason why nodes with its replicas must not leave service: an
    index in HELD_BY, or FREE if there is none.

    A container that the control plane does not know is FREE. The control plane sends no commands
    for such a container, so the node would wait for it forever.
    """
    replicas, rows, state = view.batch.replicas, view.rows, view.batch.containers.state
    n, is_ec = counts.ratis, view.is_ec
    online = view.is_present & ~view.is_bad & (view.service == ServiceState.IN_SERVICE)
    is_closed = (state == SharedState.CLOSED) | (state == SharedState.QUASI_CLOSED)
    is_closed &= ~rows.some(online & (replicas.state <= SharedState.CLOSING))
    only_bad = n.healthy == 0  # enough bad replicas suffice, because waiting heals none
    at_risk = np.where(only_bad, n.need_with_bad > 0, n.online == 0) & ~is_ec
    at_risk |= is_ec & counts.erasure.is_unrecoverable
    at_risk |= flags & flag_bit("VULNERABLE") != 0
    too_few = (flags & flag_bit("UNDER_REPLICATED") != 0) & ~n.may_leave
    is_short = np.where(is_ec, ~counts.erasure.is_sufficient, too_few)
    is_free = (state == ContainerOnlyState.DELETING) | (state == ContainerOnlyState.DELETED)
    is_free |= counts.is_empty | ~view.batch.containers.is_known
    rules = [(is_free, FREE), (~is_closed, 0), (at_risk, 1), (is_short, 2)]
    return first_that_holds(rules, FREE)


def missing_replicas(view: BatchView, counts: Counts) -> Ints:
    """Return, for each container, the number of replicas to create in addition to the copies in
    flight.

    For an erasure-coded container, this includes the indexes on leaving nodes. Replicas of an index
    on nodes in maintenance are created only if too few other indexes are in service.
    """
    ec = counts.erasure
    shards = popcount(ec.unavailable) + popcount(ec.decommission_only) + ec.maintenance_copies
    shards = np.where(ec.is_sufficient_after, 0, shards)
    found = np.where(view.is_ec, shards, counts.ratis.need_with_bad_after)
    return np.where(view.is_judged, np.maximum(0, found), 0)


def locked_out(view: BatchView, is_off: Bools) -> Bools:
    """Return, for each container, True if it is readable now, but not without the nodes in
    `is_off`."""
    serves = answering(view)
    left = serves & ~is_off[view.batch.replicas.node]
    return is_readable(view, serves) & ~is_readable(view, left)
