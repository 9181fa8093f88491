"""Counts the available indexes of erasure-coded containers, and decides whether they are enough.

A set of indexes is an integer in which bit i stands for index i. UNHEALTHY replicas are counted
separately: they neither satisfy the required number of replicas nor count as surplus. However, a
container with enough UNHEALTHY replicas is not MISSING (as in Ozone's ECContainerReplicaCount). A
pending delete is subtracted only if its replica was counted (ADR 0045).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from health.batch import BatchView
from health.rules import Rules
from health.segmented_rows import Bools, Ints, is_among, popcount
from health.words import PendingOpKind, ServiceState, SharedState

INDEX_MAX: Final = 32
"""Maximum replica index. RS(10,4) needs 14."""

_INDEX_BITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureCount:
    """The available and the missing indexes of each erasure-coded container. Sets of indexes are
    integers with one bit per index; they are 0 for other containers."""

    is_sufficient: Bools
    is_sufficient_after: Bools
    """As `is_sufficient`, assuming that all pending adds succeed."""
    is_unrecoverable: Bools
    is_missing: Bools
    has_offline_only: Bools
    """True if all replicas of some index are on nodes that leave service or are in maintenance."""
    has_offline_to_move: Bools
    is_over: Bools
    is_over_after: Bools
    unavailable: Ints
    """Set of the indexes to reconstruct."""
    decommission_only: Ints
    maintenance_only: Ints
    maintenance_copies: Ints
    """Number of `maintenance_only` indexes that need a second replica."""
    redundancy: Ints
    """Number of additional indexes that can be lost without losing data."""
    is_unhealthy_doubled: Bools
    """True if the container has UNHEALTHY replicas, and each index with an UNHEALTHY replica also
    has a CLOSED replica."""
    has_unhealthy_excess: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sets:
    every: Ints
    online: Ints
    """Indexes in service after all pending deletes."""
    decommission: Ints
    maintenance: Ints
    unhealthy: Ints
    closed: Ints
    adds: Ints


def count_erasure(view: BatchView, rules: Rules) -> ErasureCount:
    """Count the indexes of every EC container."""
    containers = view.batch.containers
    sets, is_over, is_over_after = _sets(view)
    every, online = sets.every, sets.online
    with_adds = every & (online | sets.adds)
    offline = sets.decommission | sets.maintenance
    kept = online | offline
    offline_only = offline & ~online
    parity, data = containers.parity, containers.data
    extra = np.minimum(parity, rules.ec_redundancy)

    def sufficient(here: Ints) -> Bools:
        whole = popcount(here | sets.maintenance) == data + parity
        return (here == every) | (whole & (popcount(here) >= data + extra)) | ~view.is_ec

    is_sufficient = sufficient(online)
    unavailable = every & ~(with_adds | offline)
    maintenance_only = sets.maintenance & ~with_adds
    spare = np.maximum(0, parity - extra)
    is_doubled = (sets.unhealthy != 0) & (sets.unhealthy & ~sets.closed == 0)
    return ErasureCount(
        is_sufficient=is_sufficient,
        is_sufficient_after=sufficient(with_adds),
        is_unrecoverable=view.is_ec & (popcount(kept) < data),
        is_missing=view.is_ec & (popcount(kept | sets.unhealthy) < data),
        has_offline_only=offline_only != 0,
        has_offline_to_move=offline_only & ~sets.adds != 0,
        is_over=is_over,
        is_over_after=is_over_after,
        unavailable=unavailable,
        decommission_only=sets.decommission & ~with_adds,
        maintenance_only=maintenance_only,
        maintenance_copies=np.maximum(0, popcount(maintenance_only) - spare),
        redundancy=parity - popcount(unavailable),
        is_unhealthy_doubled=is_doubled,
        has_unhealthy_excess=(sets.unhealthy & sets.closed) != 0,
    )


def _sets(view: BatchView) -> tuple[_Sets, Bools, Bools]:
    """Return the sets of indexes of each container, and two boolean arrays with one value per
    container.

    The first array is True if an index has several replicas in service now. The second is True if
    an index has several replicas in service after all pending deletes.
    """
    batch, rows = view.batch, view.rows
    replicas, ops = batch.replicas, batch.ops
    is_ec = view.is_shard
    alive = is_ec & view.is_present & ~view.is_bad
    in_service = np.flatnonzero(alive & (view.service == ServiceState.IN_SERVICE))
    keys, of_row, copies = np.unique(
        _key(replicas.container[in_service], replicas.index[in_service]),
        return_inverse=True,
        return_counts=True,
    )
    going = of_row[view.is_leaving[in_service]]
    left = copies - np.bincount(going, minlength=len(keys)) - _strays(view, keys)
    owner = keys >> _INDEX_BITS
    online = np.zeros(rows.count, dtype=np.int64)
    np.bitwise_or.at(online, owner[left > 0], np.int64(1) << (keys & 63)[left > 0])
    every = (np.int64(2) << batch.containers.data + batch.containers.parity) - 2

    def bits(mask: Bools) -> Ints:
        return rows.bits(replicas.index, is_ec & mask)

    adds = (ops.kind == PendingOpKind.ADD) & view.is_ec[ops.container]
    sets = _Sets(
        every=every,
        online=online & every,
        decommission=bits(alive & (view.service == ServiceState.DECOMMISSION)),
        maintenance=bits(alive & (view.service == ServiceState.MAINTENANCE)),
        unhealthy=bits(view.is_bad),
        closed=bits(view.is_present & (replicas.state == SharedState.CLOSED)),
        adds=view.ops.bits(ops.index, adds),
    )
    is_over = np.zeros(rows.count, dtype=np.bool_)
    is_over_after = is_over.copy()
    is_over[owner[copies > 1]] = True
    is_over_after[owner[left > 1]] = True
    return sets, is_over, is_over_after


def _strays(view: BatchView, keys: Ints) -> Ints:
    """Return, for each container and index in `keys`, the number of pending deletes for which no
    replica is reported."""
    ops = view.batch.ops
    rows = np.flatnonzero(view.is_stray_delete & view.is_ec[ops.container])
    found, counts = np.unique(_key(ops.container[rows], ops.index[rows]), return_counts=True)
    gone = np.zeros(len(keys), dtype=np.int64)
    hits = is_among(found, keys)
    gone[np.searchsorted(keys, found[hits])] = counts[hits]
    return gone


def _key(container: Ints, index: Ints) -> Ints:
    return (container << _INDEX_BITS) | index
