"""Decides whether a container may and should be reconciled, and estimates the cost."""

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
"""Bytes assumed for the repair of one finding: a chunk of the default size."""

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
"""Reasons to reconcile, worst first; bit i of a mask stands for the i-th reason."""

REDUNDANCY_UNKNOWN: Final = -(1 << 31)
"""Redundancy of a container that is not closed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileEligibility:
    """Reconcile verdicts per container."""

    eligibility: Ints
    """Code of `words.ELIGIBILITY`."""
    reasons: Ints
    """Mask of `REASONS`."""
    is_mendable: Bools
    """The container is erasure-coded, and has a damaged shard whose chunks can be computed from
    their stripes."""
    is_wanted: Bools
    """The container may be reconciled, and there is a reason to do so."""
    redundancy: Ints
    """Number of good and equal replicas, or indexes, that may be lost; -1 if none exists."""
    bytes_estimated: Ints


def is_good(view: BatchView) -> Bools:
    """Return a mask of the countable replicas without any known problem."""
    replicas = view.batch.replicas
    return view.is_countable & (replicas.state != UNHEALTHY) & (replicas.findings == 0)


def judge_reconcile(
    view: BatchView, counts: Counts, compared: RootComparison, good: Bools
) -> ReconcileEligibility:
    """Return, for every container, whether it may and should be reconciled. `good` is the mask that
    `is_good` returns."""
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
    """Return the eligibility of each container. Replicas on dead nodes do not prevent a reconcile,
    because Ozone's SCM also ignores them. Other replicas that cannot take part are ignored, too,
    although Ozone rejects a container with such a replica.
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
    """Return a mask of the undamaged QUASI_CLOSED replicas whose commit id is lower than that of
    their CLOSED container.
    """
    replicas = view.batch.replicas
    last = view.of_container(view.batch.containers.sequence_id)
    is_earlier = (replicas.bcsid != NO_BCSID) & (replicas.bcsid < last)
    return is_good(view) & replicas.has_root & view.is_bad & is_earlier


def _is_behind(view: BatchView, compared: RootComparison) -> Bools:
    """Return a mask of the CLOSED containers that have a late replica (undamaged, QUASI_CLOSED,
    with a lower commit id), and in which all replicas at the last commit have the same data.

    A reconcile sets the commit id of the late replica, so that the replica can be closed. A late
    shard first receives its missing blocks. A close command alone does not help, because the
    replica does not have the commit id that the command requires. To replace the replica by a copy,
    another datanode with enough space would be needed.
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
    """Return a mask of the erasure-coded containers that Suture's datanodes can repair: they
    compute a damaged chunk from its stripe. Ozone rejects such reconciles. The computation needs as
    many other shards as the code has data shards. A damaged shard is also a source, because its
    damage is seldom in the same stripe.

    If shards of one index have different roots, it is unknown which root is correct. If one of
    these shards is good and in service, the damaged shard is deleted instead of repaired, unless
    its node is in maintenance. Otherwise the damaged shard is repaired: a computed chunk must match
    the row of the damaged shard, so the repair restores its own data and the roots still differ. A
    late shard (QUASI_CLOSED, with a lower commit id) receives its missing blocks.
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
    """Return the redundancy of each container. If roots differ, only the replicas of the most
    frequent root count, because it is unknown which root is correct.
    """
    is_disputed = compared.checksum_class <= ChecksumClass.MISMATCH_MINORITY
    ratis = np.where(is_disputed, compared.agreeing_max, view.rows.tally(good)) - 1
    found = np.where(view.is_ec, counts.erasure.redundancy, ratis)
    return np.where(_is_closed(view), found, REDUNDANCY_UNKNOWN)


def _bytes(view: BatchView, compared: RootComparison) -> Ints:
    """Return the approximate bytes that a repair moves: missing data and damaged chunks.

    A replica that differs has at least one damaged chunk, whether or not a scan has found it.
    """
    replicas, rows = view.batch.replicas, view.rows
    used = replicas.used_bytes
    longest = rows.highest(used, 0, view.is_countable)[rows.owner]
    is_split = compared.checksum_class == ChecksumClass.MISMATCH_SPLIT
    differs = view.of_container(is_split) | compared.is_minority
    chunks = np.maximum(replicas.findings, differs)
    cost = longest - used + np.minimum(chunks * CHUNK_BYTES, used)
    return rows.total(np.where(view.is_countable, cost, 0))
