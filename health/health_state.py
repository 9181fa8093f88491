"""Computes the health state of a container with Ozone's list of 13 handlers and Ozone's numbers.

     1 Open  2 Closing  3 QuasiClosed  4 MismatchedReplicas  5 Empty  6 Deleting  7 QuasiClosedStuck
     8 EcReplication  9 RatisReplication  10 ClosedWithUnhealthy  11 EcMisReplication
    12 RatisUnhealthy  13 VulnerableUnhealthy

A container has one health state, even if several problems apply. For example, a container that is
both MISSING and OVER_REPLICATED shows only one of the two. The module `health.conditions` computes
all conditions of a container, and plans use these conditions.
"""

from dataclasses import dataclass

import numpy as np

from health.batch import BatchView
from health.ec_replication import ErasureCount
from health.quasi_closed import QuasiClosed
from health.ratis_replication import RatisCount
from health.segmented_rows import Bools, Ints
from health.words import ContainerOnlyState, HealthState, Queue, SharedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers of replicas and shards of a batch's containers, the input of `apply_handlers`."""

    ratis: RatisCount
    erasure: ErasureCount
    quasi: QuasiClosed
    is_misplaced: Bools
    is_misplaced_after: Bools
    racks_required: Ints
    is_empty: Bools
    """True if all blocks of the container are deleted, and every replica reports itself as
    empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The health state of each container, and the queue of the replication manager that it belongs
    to."""

    state: Ints
    queue: Ints
    is_stuck: Bools
    """True if the container is QUASI_CLOSED, and the rules do not allow a forced close."""


class _Chain:
    """Applies rules to containers in order. The first rule that applies to a container sets its
    health state."""

    def __init__(self, count: int) -> None:
        self.state = np.zeros(count, dtype=np.int64)
        self.queue = np.zeros(count, dtype=np.int64)
        self.is_open = np.ones(count, dtype=np.bool_)

    def end(self, when: Bools, state: HealthState, queue: Ints | Queue = Queue.NONE) -> None:
        """Set the state and the queue of the containers for which `when` is True and no earlier
        rule applied."""
        hit = self.is_open & when
        np.copyto(self.state, state, where=hit)
        np.copyto(self.queue, queue, where=hit)
        self.is_open &= ~hit


def is_empty(view: BatchView) -> Bools:
    """Return, for each container, True if Ozone's handler 5 treats the container as empty."""
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    is_closed = containers.state == SharedState.CLOSED
    is_quasi = containers.state == SharedState.QUASI_CLOSED
    none = view.present == 0
    emptied = ~none & ~rows.some(view.is_present & ~replicas.is_empty)
    all_closed = ~rows.some(view.is_present & (replicas.state != SharedState.CLOSED))
    never_filled = none & (containers.key_count == 0)
    return (is_closed & ((emptied & all_closed) | never_filled)) | (is_quasi & emptied)


def apply_handlers(view: BatchView, counts: Counts) -> Verdicts:
    """Return the health state and the queue of every container of a batch, computed by Ozone's
    handlers."""
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    state = containers.state
    is_stuck = view.is_judged & (state == SharedState.QUASI_CLOSED) & ~view.is_ec
    is_stuck &= ~counts.quasi.is_closable
    chain = _Chain(rows.count)
    none = view.present == 0
    chain.end(~view.is_judged, HealthState.HEALTHY)
    is_open = state == SharedState.OPEN
    is_odd = rows.some(view.is_present & (replicas.state != SharedState.OPEN))
    chain.end(is_open & ~containers.has_pipeline, HealthState.OPEN_WITHOUT_PIPELINE)
    chain.end(is_open & is_odd, HealthState.OPEN_UNHEALTHY)
    chain.end(is_open, HealthState.HEALTHY)
    chain.end((state == SharedState.CLOSING) & none, HealthState.MISSING)
    chain.end(state == SharedState.CLOSING, HealthState.HEALTHY)
    chain.end(counts.is_empty, HealthState.EMPTY)
    chain.end(state >= ContainerOnlyState.DELETING, HealthState.HEALTHY)
    _erasure(chain, view, counts)
    _stuck(chain, view, counts.quasi)
    _ratis(chain, view, counts)
    is_vulnerable = (state == SharedState.QUASI_CLOSED) & counts.quasi.has_vulnerable
    chain.end(is_vulnerable, HealthState.UNHEALTHY_UNDER_REPLICATED, Queue.UNDER)
    chain.end(is_stuck, HealthState.QUASI_CLOSED_STUCK)
    return Verdicts(state=chain.state, queue=chain.queue, is_stuck=is_stuck)


def _queued(when: Bools, queue: Queue) -> Ints:
    return np.where(when, int(queue), int(Queue.NONE))


def _erasure(chain: _Chain, view: BatchView, counts: Counts) -> None:
    """Apply the handlers for erasure-coded containers: replication (8), unhealthy replicas (10)
    and spread over racks (11)."""
    ec, is_ec = counts.erasure, view.is_ec
    is_wanted = ~ec.is_sufficient_after & (~ec.is_unrecoverable | ec.has_offline_to_move)
    under = _queued(is_wanted, Queue.UNDER)
    is_short = is_ec & ~ec.is_sufficient
    is_lost = is_short & ec.is_unrecoverable
    is_gone, is_offline = is_lost & ec.is_missing, ec.has_offline_only
    chain.end(is_gone & is_offline, HealthState.MISSING_UNDER_REPLICATED, under)
    chain.end(is_gone, HealthState.MISSING)
    chain.end(is_lost & is_offline, HealthState.UNHEALTHY_UNDER_REPLICATED, under)
    chain.end(is_lost, HealthState.UNHEALTHY)
    chain.end(is_short, HealthState.UNDER_REPLICATED, under)
    chain.end(
        is_ec & ec.is_over, HealthState.OVER_REPLICATED, _queued(ec.is_over_after, Queue.OVER)
    )
    is_closed = view.batch.containers.state == SharedState.CLOSED
    chain.end(is_ec & is_closed & ec.is_unhealthy_doubled, HealthState.UNHEALTHY_OVER_REPLICATED)
    misplaced = _queued(counts.is_misplaced_after, Queue.UNDER)
    chain.end(is_ec & counts.is_misplaced, HealthState.MIS_REPLICATED, misplaced)
    chain.end(is_ec, HealthState.HEALTHY)


def _stuck(chain: _Chain, view: BatchView, quasi: QuasiClosed) -> None:
    """Apply handler 7, for stuck quasi-closed containers. Containers with only unhealthy replicas
    are left to later handlers."""
    under = _queued(view.adds == 0, Queue.UNDER)
    over = _queued(view.deletes == 0, Queue.OVER)
    has_healthy = view.rows.some(view.is_present & ~view.is_sick)
    counted = quasi.is_stuck & has_healthy
    chain.end(quasi.is_stuck & (view.present == 0), HealthState.QUASI_CLOSED_STUCK_MISSING)
    chain.end(counted & quasi.is_under, HealthState.QUASI_CLOSED_STUCK_UNDER_REPLICATED, under)
    chain.end(counted & quasi.is_over, HealthState.QUASI_CLOSED_STUCK_OVER_REPLICATED, over)
    is_vulnerable = counted & quasi.has_vulnerable
    chain.end(is_vulnerable, HealthState.UNHEALTHY_UNDER_REPLICATED, Queue.UNDER)
    chain.end(counted, HealthState.QUASI_CLOSED_STUCK)


def _ratis(chain: _Chain, view: BatchView, counts: Counts) -> None:
    """Apply the handlers 9 and 12, for replicated containers. Handler 12 applies to containers
    without a healthy replica, and counts their unhealthy replicas."""
    n = counts.ratis
    # Delete only if enough replicas have the container's state; otherwise close the others first.
    is_safe = (n.mismatch == 0) & (n.match >= view.batch.containers.factor)
    is_quasi = view.batch.containers.state == SharedState.QUASI_CLOSED
    is_short, none = n.need > 0, view.present == 0
    has_healthy = n.healthy > 0
    chain.end(is_short & none, HealthState.MISSING)
    chain.end(
        is_short & has_healthy, HealthState.UNDER_REPLICATED, _queued(n.need_after > 0, Queue.UNDER)
    )
    over = _queued((n.need < 0) & is_safe, Queue.OVER)
    chain.end(~is_short & (n.excess > 0), HealthState.OVER_REPLICATED, over)
    is_over = ~is_short & (n.excess_with_bad > 0) & has_healthy
    over = _queued((n.need_with_bad < 0) & is_safe, Queue.OVER)
    may_spare = ~is_quasi | counts.quasi.has_spare_unhealthy
    chain.end(is_over & may_spare, HealthState.OVER_REPLICATED, over)
    misplaced = _queued(counts.is_misplaced_after, Queue.UNDER)
    chain.end(~is_short & ~is_over & counts.is_misplaced, HealthState.MIS_REPLICATED, misplaced)
    only_bad = ~has_healthy  # a container without any replica is already MISSING
    under = _queued(n.need_with_bad_after > 0, Queue.UNDER)
    chain.end(only_bad & (n.need_with_bad > 0), HealthState.UNHEALTHY_UNDER_REPLICATED, under)
    over = _queued(n.need_with_bad < 0, Queue.OVER)
    chain.end(only_bad & (n.excess_with_bad > 0), HealthState.UNHEALTHY_OVER_REPLICATED, over)
    chain.end(only_bad, HealthState.UNHEALTHY)
