"""Decides which containers prevent a node from leaving service, and which could not be read without
the node.

A node may leave when every container on it is closed, has a good replica in service, and has enough
replicas on other nodes. Ozone uses one counter for this rule, which misses containers that are
unhealthy, missing or stuck. In this module each such container prevents the departure.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from health.batch import BatchView
from health.health_state import Counts
from health.remaining import answering, is_readable, needed_to_read, remainder
from health.segmented_rows import Bools, Groups, Ints, first_that_holds, popcount
from health.words import ContainerOnlyState, ServiceState, SharedState, flag_bit

HELD_BY: Final = ("unclosed", "no_good_replica", "too_few")
"""Reasons that prevent a departure, in the order of the checks."""

FREE: Final = -1
"""No reason prevents the departure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """Replicas on nodes that are not in service."""

    row: Ints
    """The replica."""
    held: Ints
    """Index in HELD_BY, or FREE."""
    is_locked_out: Bools
    """True if the container could not be read without this replica."""
    is_in_progress: Bools


def departures(view: BatchView, counts: Counts, flags: Ints) -> Departures:
    """Return the replicas on nodes that leave service or are in maintenance, with what they
    prevent."""
    containers, rows = view.batch.containers, view.rows
    leaving = view.is_present & (view.service != ServiceState.IN_SERVICE)
    row = np.flatnonzero(leaving & view.of_container(containers.is_known))
    held = _blocking_reasons(view, counts, flags, row)
    return Departures(
        row=row,
        held=held,
        is_locked_out=_locks_out(view, counts, row),
        is_in_progress=(held != FREE) & (view.adds > 0)[rows.owner[row]],
    )


def obstacles(view: BatchView, counts: Counts, flags: Ints) -> Ints:
    """Return, for each container, the reason why nodes with its replicas must not leave service: an
    index in HELD_BY, or FREE.

    A container that the control plane does not know is FREE. No command is sent for it, so that
    waiting for it would never end.
    """
    replicas, rows, state = view.batch.replicas, view.rows, view.batch.containers.state
    n, is_ec = counts.ratis, view.is_ec
    online = view.is_present & ~view.is_bad & (view.service == ServiceState.IN_SERVICE)
    is_closed = (state == SharedState.CLOSED) | (state == SharedState.QUASI_CLOSED)
    is_closed &= ~rows.some(online & (replicas.state <= SharedState.CLOSING))
    only_bad = n.healthy == 0  # the required number elsewhere, but waiting makes none of them whole
    at_risk = np.where(only_bad, n.need_with_bad > 0, n.online == 0) & ~is_ec
    at_risk |= is_ec & counts.erasure.is_unrecoverable
    at_risk |= flags & flag_bit("VULNERABLE") != 0
    too_few = (flags & flag_bit("UNDER_REPLICATED") != 0) & ~n.may_leave
    is_short = np.where(is_ec, ~counts.erasure.is_sufficient, too_few)
    is_free = (state == ContainerOnlyState.DELETING) | (state == ContainerOnlyState.DELETED)
    is_free |= counts.is_empty | ~view.batch.containers.is_known
    rules = [(is_free, FREE), (~is_closed, 0), (at_risk, 1), (is_short, 2)]
    return first_that_holds(rules, FREE)


def _blocking_reasons(view: BatchView, counts: Counts, flags: Ints, row: Ints) -> Ints:
    """Return for each replica why its node must not leave: an index in HELD_BY, or FREE. For EC,
    only the replica's own index counts."""
    owner = view.rows.owner[row]
    held = obstacles(view, counts, flags)[owner]
    online = view.is_present & ~view.is_bad & (view.service == ServiceState.IN_SERVICE)
    by_index = view.is_ec[owner] & (view.service[row] == ServiceState.DECOMMISSION)
    by_index &= held == HELD_BY.index("too_few")
    held[by_index] = np.where(_has_twin(view, online, row[by_index]), FREE, held[by_index])
    return held


def lacking(view: BatchView, counts: Counts) -> Ints:
    """Return how many replicas of each container must be created, besides copies in flight.

    An index with replicas on both a leaving node and a node in maintenance is created only if too
    few others are in service.
    """
    ec = counts.erasure
    shards = popcount(ec.unavailable) + popcount(ec.decommission_only) + ec.maintenance_copies
    shards = np.where(ec.is_sufficient_after, 0, shards)
    found = np.where(view.is_ec, shards, counts.ratis.need_with_bad_after)
    return np.where(view.is_judged, np.maximum(0, found), 0)


def locked_out(view: BatchView, is_off: Bools) -> Bools:
    """Return which containers are readable now, but not if some nodes are switched off."""
    serves = answering(view)
    left = serves & ~is_off[view.batch.replicas.node]
    return is_readable(view, serves) & ~is_readable(view, left)


def _has_twin(view: BatchView, online: Bools, row: Ints) -> Bools:
    """Return which replicas have another online replica of their index."""
    replicas = view.batch.replicas
    is_asked = np.zeros(view.rows.count, dtype=np.bool_)
    is_asked[replicas.container[row]] = True
    here = np.flatnonzero(online & is_asked[replicas.container])
    both = np.concatenate((here, row))
    same = Groups.of(replicas.container[both], replicas.index[both])
    is_online = np.arange(len(both)) < len(here)
    return same.some(is_online)[same.of_row[len(here) :]]


def _locks_out(view: BatchView, counts: Counts, row: Ints) -> Bools:
    owner, state = view.rows.owner[row], view.batch.containers.state
    found = remainder(view, view.is_present & ~view.is_sick & view.is_reachable)
    left = found.count[owner] - found.is_single[row]
    holds = ((state == SharedState.CLOSED) | (state == SharedState.QUASI_CLOSED)) & ~counts.is_empty
    return (left < needed_to_read(view)[owner]) & holds[owner]
