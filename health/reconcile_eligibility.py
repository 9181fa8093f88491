"""Decides whether the replicas of a container should be compared and repaired, and estimates the
cost."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from health.batch import NO_BCSID, BatchView
from health.health_state import Counts
from health.root_comparison import RootComparison
from health.segmented_rows import Bools, Groups, Ints, first_that_holds
from health.words import (
    ELIGIBILITY,
    UNHEALTHY,
    ChecksumClass,
    PendingOpKind,
    ReplicationType,
    ServiceState,
    SharedState,
)

CHUNK_BYTES: Final = 4 * 1024**2
"""Estimated bytes that the repair of one finding reads: a chunk of the default size."""

COMMIT_ID_BEHIND: Final = "commit id behind"
REASONS: Final = (
    "replicas contradict each other",
    "roots differ, no majority",
    "roots differ, minority",
    "replica UNHEALTHY",
    "scan findings",
    "tombstones differ",
    COMMIT_ID_BEHIND,
)
"""Reasons to reconcile a container, the worst first. In a set of reasons, bit i stands for the
reason with index i."""

REDUNDANCY_UNKNOWN: Final = -(1 << 31)
"""Redundancy of a container that is not closed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileEligibility:
    """For each container, the decision whether it may and should be reconciled."""

    eligibility: Ints
    """Code of `words.ELIGIBILITY`."""
    reasons: Ints
    """Set of reasons to reconcile: bit i stands for `REASONS[i]`."""
    is_mendable: Bools
    """True if the container is erasure-coded and has a damaged shard whose chunks can be computed
    from the other shards."""
    is_wanted: Bools
    """True if the container may be reconciled, and there is a reason to do so."""
    redundancy: Ints
    """Number of intact and equal replicas, or of indexes, that may be lost without losing data; -1
    if no intact replica exists."""
    bytes_estimated: Ints


def is_good(view: BatchView) -> Bools:
    """Return, for each replica, True if it can be compared now and has no known problem."""
    replicas = view.batch.replicas
    return view.is_countable & (replicas.state != UNHEALTHY) & (replicas.findings == 0)


def judge_reconcile(
    view: BatchView, counts: Counts, compared: RootComparison, good: Bools
) -> ReconcileEligibility:
    """Return, for every container, whether it may and should be reconciled. `good` is the result of
    `is_good`."""
    eligibility = _eligibility(view)
    reasons = _reasons(view, compared)
    is_mendable = _is_mendable(view, compared, eligibility, good)
    is_wanted = ((eligibility == 0) & (reasons != 0)) | is_mendable
    is_wanted &= view.is_judged & (compared.checksum_class != ChecksumClass.EMPTY)
    return ReconcileEligibility(
        eligibility=eligibility,
        reasons=reasons,
        is_mendable=is_mendable,
        is_wanted=is_wanted,
        redundancy=_redundancy(view, counts, compared, good),
        bytes_estimated=_bytes(view, compared),
    )


def _is_pending(view: BatchView) -> Bools:
    return view.ops.some(view.batch.ops.kind == PendingOpKind.RECONCILE)


def _is_closed(view: BatchView) -> Bools:
    state = view.batch.containers.state
    return (state == SharedState.CLOSED) | (state == SharedState.QUASI_CLOSED)


def _eligibility(view: BatchView) -> Ints:
    """Return a code of `words.ELIGIBILITY` for each container.

    Replicas on dead nodes do not prevent a reconcile, as in Ozone's SCM. Other replicas that cannot
    take part do not prevent it either, although Ozone rejects a container with such a replica.
    """
    containers, rows = view.batch.containers, view.rows
    rules = {
        "CONTAINER_NOT_FOUND": ~containers.is_known,
        "INELIGIBLE_CONTAINER_STATE": ~_is_closed(view),
        "NO_REPLICAS_FOUND": ~rows.some(view.is_alive),
        "INELIGIBLE_REPLICA_STATES": ~rows.some(view.is_alive & view.is_tree),
        "INELIGIBLE_REPLICATION_TYPE": containers.kind != ReplicationType.RATIS,
        "NOT_ENOUGH_REQUIRED_NODES": containers.factor <= 1,
        "NOT_ENOUGH_REACHABLE_REPLICAS": view.countable <= 1,
        "RECONCILE_PENDING": _is_pending(view),
    }
    return first_that_holds(
        [(mask, ELIGIBILITY.index(word)) for word, mask in rules.items()], ELIGIBILITY.index("OK")
    )


def _reasons(view: BatchView, compared: RootComparison) -> Ints:
    replicas, rows = view.batch.replicas, view.rows
    conditions = (
        compared.checksum_class == ChecksumClass.CONTRADICTORY,
        compared.checksum_class == ChecksumClass.MISMATCH_SPLIT,
        compared.checksum_class == ChecksumClass.MISMATCH_MINORITY,
        rows.some(view.is_countable & (replicas.state == UNHEALTHY)),
        rows.some(view.is_countable & (replicas.findings > 0)),
        compared.tombstones_differ,
        _is_behind(view, compared),
    )
    total = np.zeros(rows.count, dtype=np.int64)
    for place, condition in enumerate(conditions):
        total |= condition.astype(np.int64) << place
    return total


def _is_late(view: BatchView) -> Bools:
    """Return, for each replica, True if it is undamaged and QUASI_CLOSED, and has a lower commit id
    than its CLOSED container."""
    replicas = view.batch.replicas
    last = view.of_container(view.batch.containers.sequence_id)
    is_earlier = (replicas.bcsid != NO_BCSID) & (replicas.bcsid < last)
    return is_good(view) & replicas.has_root & view.is_bad & is_earlier


def _is_behind(view: BatchView, compared: RootComparison) -> Bools:
    """Return, for each CLOSED container, True if a reconcile would bring a late replica to the last
    commit.

    A late replica is undamaged and QUASI_CLOSED, and has a lower commit id than its container. All
    replicas at the last commit must have the same data. A reconcile sets the commit id of the late
    replica, and adds missing blocks to a late shard. Then the replica can be closed.

    A close command alone does not help, because the replica does not have the commit id that the
    command requires. To replace the replica by a copy, another datanode with enough space would be
    needed.
    """
    replicas, rows = view.batch.replicas, view.rows
    last = view.of_container(view.batch.containers.sequence_id)
    is_ahead = is_good(view) & replicas.has_root & (replicas.state == SharedState.CLOSED)
    is_ahead &= replicas.bcsid >= last
    agree = compared.checksum_class > ChecksumClass.MISMATCH_MINORITY
    return agree & ~compared.tombstones_differ & rows.some(_is_late(view)) & rows.some(is_ahead)


def _is_mendable(
    view: BatchView, compared: RootComparison, eligibility: Ints, good: Bools
) -> Bools:
    """Return, for each erasure-coded container, True if Suture's datanodes can repair a shard of
    it.

    The datanodes compute a damaged chunk from its stripe. Ozone rejects such reconciles. The
    computation needs as many other shards as the code has data shards. A damaged shard is also a
    source, because its damage is seldom in the same stripe. A late shard (QUASI_CLOSED, with a
    lower commit id) receives its missing blocks.

    If shards of one index have different roots, it is unknown which root is correct. If one of
    these shards is intact and in service, the damaged shard is deleted instead of repaired, unless
    its node is in maintenance. Otherwise, the damaged shard is repaired. A computed chunk must
    match the checksums that the damaged shard has stored, so the repair restores the shard's own
    data, and the roots still differ.
    """
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    damaged = view.is_countable & ((replicas.state == UNHEALTHY) | (replicas.findings > 0))
    damaged |= _is_late(view) & view.of_container(_is_behind(view, compared))
    shards = np.flatnonzero(view.is_countable & view.is_shard)
    indexes = Groups.of(replicas.container[shards], replicas.index[shards])
    owner = replicas.container[shards][indexes.first]
    others = np.bincount(owner, minlength=rows.count)[replicas.container]
    others[shards] -= indexes.tally()[indexes.of_row] == 1  # no shard is computed from itself
    has_others = others >= view.of_container(containers.data)
    is_only = np.zeros(len(others), dtype=np.bool_)
    stays = good[shards] & (view.service[shards] == ServiceState.IN_SERVICE)
    is_only[shards] = (indexes.tally(stays) == 0)[indexes.of_row]
    is_only |= view.service == ServiceState.MAINTENANCE
    agree = compared.checksum_class > ChecksumClass.MISMATCH_MINORITY
    return (
        view.is_ec
        & (eligibility == ELIGIBILITY.index("INELIGIBLE_REPLICATION_TYPE"))
        & rows.some(damaged & has_others & (view.of_container(agree) | is_only))
        & ~_is_pending(view)
        & (compared.checksum_class != ChecksumClass.CONTRADICTORY)
    )


def _redundancy(view: BatchView, counts: Counts, compared: RootComparison, good: Bools) -> Ints:
    """Return, for each container, the number of replicas or indexes that may be lost.

    If the roots differ, only the replicas with the most frequent root count, because it is unknown
    which root is correct.
    """
    is_disputed = compared.checksum_class <= ChecksumClass.MISMATCH_MINORITY
    ratis = np.where(is_disputed, compared.agreeing_max, view.rows.tally(good)) - 1
    found = np.where(view.is_ec, counts.erasure.redundancy, ratis)
    return np.where(_is_closed(view), found, REDUNDANCY_UNKNOWN)


def _bytes(view: BatchView, compared: RootComparison) -> Ints:
    """Return, for each container, the approximate number of bytes that a repair moves: missing data
    and damaged chunks.

    A replica whose root differs has at least one damaged chunk, even if no scan has found the
    damage.
    """
    replicas, rows = view.batch.replicas, view.rows
    used = replicas.used_bytes
    longest = rows.highest(used, 0, view.is_countable)[rows.owner]
    is_split = compared.checksum_class == ChecksumClass.MISMATCH_SPLIT
    differs = view.of_container(is_split) | compared.is_minority
    chunks = np.maximum(replicas.findings, differs)
    cost = longest - used + np.minimum(chunks * CHUNK_BYTES, used)
    return rows.total(np.where(view.is_countable, cost, 0))
