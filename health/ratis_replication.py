"""Counts the replicas of Ratis containers, and decides whether they are enough.

There are two counts: A without unhealthy replicas, B with them. Both assume that every pending add
fails and every pending delete succeeds (Ozone's RatisContainerReplicaCount). A pending delete only
subtracts a counted replica: that of a bad replica, or on a node that is dead, leaves or rests,
makes nothing missing (ADR 0045). STAND_ALONE containers are counted in the same way.
"""

from dataclasses import dataclass

import numpy as np

from health.batch import BatchView
from health.rules import Rules
from health.segmented_rows import Bools, Ints
from health.words import ServiceState


@dataclass(frozen=True, slots=True, kw_only=True)
class RatisCount:
    """Counts per container; not valid for erasure-coded ones."""

    healthy: Ints
    online: Ints
    """The healthy ones in service."""
    most: Ints
    """More than these in service are too many."""
    match: Ints
    """Good ones in service that are in the container's own state."""
    mismatch: Ints
    need: Ints
    """Replicas short of what the rules ask, pending deletes counted as done; negative: spare."""
    need_after: Ints
    """The same with pending adds counted as done."""
    need_if_healed: Ints
    """The same again, and with the replicas that a repair may heal."""
    need_with_bad: Ints
    need_with_bad_after: Ints
    excess: Ints
    """Replicas too many, as if nothing were pending."""
    excess_with_bad: Ints
    redundancy: Ints
    """Replicas that may be lost before the last one."""
    may_leave: Bools
    """As many are in service as nodes that leave for good wait for, and none rests."""
    is_due_to_service: Bools
    """Only because nodes are out of service."""


def count_ratis(view: BatchView, rules: Rules) -> RatisCount:
    """Count the replicas of every container."""
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    is_good = view.is_present & ~view.is_bad
    online, leaving, resting = rows.by_code(is_good, view.service, len(ServiceState))
    own = view.of_container(containers.state)
    is_match = is_good & (view.service == ServiceState.IN_SERVICE) & (replicas.state == own)
    match = rows.tally(is_match)
    expected = is_good | (view.is_present & replicas.is_hopeful)
    missing, going = _missing(view, rules, is_good)
    missing_with_bad, going_with_bad = _missing(view, rules, view.is_present)
    missing_if_healed, going_if_healed = _missing(view, rules, expected)
    need = missing + going
    need_with_bad = missing_with_bad + going_with_bad
    healthy = online + leaving + resting
    lost = rows.tally(is_good & view.is_leaving) + view.stray_deletes
    return RatisCount(
        healthy=healthy,
        online=online,
        most=np.maximum(view.batch.containers.factor, rules.most_copies),
        match=match,
        mismatch=online - match,
        need=need,
        need_after=need - view.adds,
        need_if_healed=missing_if_healed + going_if_healed - view.adds,
        need_with_bad=need_with_bad,
        need_with_bad_after=need_with_bad - view.adds,
        excess=-missing,
        excess_with_bad=-missing_with_bad,
        redundancy=np.maximum(0, healthy - lost - 1),
        may_leave=(rules.leaving_min > 0)
        & (resting == 0)
        & (online >= np.minimum(containers.factor, rules.leaving_min)),
        is_due_to_service=(need > 0) & (need <= leaving + resting),
    )


def _missing(view: BatchView, rules: Rules, counted: Bools) -> tuple[Ints, Ints]:
    """Return how many replicas are needed beside the counted ones, negative if they are too many,
    and how many in service are lost to pending deletes.

    A replica deleted on a node in maintenance is not expected back.
    """
    is_online = counted & (view.service == ServiceState.IN_SERVICE)
    is_resting = counted & (view.service == ServiceState.MAINTENANCE) & ~view.is_leaving
    online, resting = view.rows.tally(is_online), view.rows.tally(is_resting)
    factor = view.batch.containers.factor
    enough = np.minimum(factor, rules.enough_copies or factor)
    online_min = np.minimum(enough, rules.maintenance_min)
    short = enough - online
    owed = np.maximum(np.maximum(0, online_min - online), np.maximum(0, short - resting))
    spare = np.minimum(0, np.maximum(factor, rules.most_copies) - online)
    going = view.rows.tally(is_online & view.is_leaving) + view.stray_deletes
    return np.where(short > 0, owed, spare), going
