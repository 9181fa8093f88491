"""Counts the replicas of Ratis containers, and decides whether they are enough.

There are two counts: one without unhealthy replicas, and one that includes them (names with
`_with_bad`). Both counts assume that every pending add fails and every pending delete succeeds (as
Ozone's RatisContainerReplicaCount). A pending delete is subtracted only if its replica was counted.
The replica count does not fall if a pending delete removes a damaged replica, or a replica on a
node that is dead, leaving or in maintenance (ADR 0045). STAND_ALONE containers are counted in the
same way.
"""

from dataclasses import dataclass

import numpy as np

from health.batch import BatchView
from health.rules import Rules
from health.segmented_rows import Bools, Ints
from health.words import ServiceState


@dataclass(frozen=True, slots=True, kw_only=True)
class RatisCount:
    """The numbers of replicas of each container. The values of erasure-coded containers are
    undefined."""

    healthy: Ints
    online: Ints
    """Healthy replicas in service."""
    most: Ints
    """Maximum number of replicas in service; more are surplus."""
    match: Ints
    """Intact replicas in service whose state is the container's state."""
    mismatch: Ints
    need: Ints
    """Number of missing replicas if all pending deletes succeed. A negative number means surplus
    replicas."""
    need_after: Ints
    """As `need`, with the additional assumption that all pending adds succeed."""
    need_if_healed: Ints
    """As `need_after`, but damaged replicas that a repair in place may restore are counted as
    healthy."""
    need_with_bad: Ints
    need_with_bad_after: Ints
    excess: Ints
    """Number of surplus replicas, ignoring pending operations."""
    excess_with_bad: Ints
    redundancy: Ints
    """Number of replicas that may be lost while at least one healthy replica remains."""
    may_leave: Bools
    """True if at least `Rules.leaving_min` replicas are in service, and none is on a node in
    maintenance."""
    is_due_to_service: Bools
    """True if replicas are missing only because nodes are out of service."""


def count_ratis(view: BatchView, rules: Rules) -> RatisCount:
    """Return the numbers of replicas of every container of a batch."""
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
    """Return two numbers for each container, which count only the replicas in `counted`.

    The first is the number of missing replicas; a negative number means surplus replicas. The
    second is the number of replicas in service that pending deletes will remove. A replica on a
    node in maintenance with a pending delete is not counted.
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
