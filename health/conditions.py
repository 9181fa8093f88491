"""Computes the conditions of containers, such as MISSING or ROOTS_DIFFER. A container may have
several conditions at once, but only one of Ozone's health states."""

import numpy as np

from health.batch import BatchView
from health.health_state import Counts, Verdicts
from health.root_comparison import RootComparison
from health.segmented_rows import Bools, Ints
from health.words import FLAGS, ChecksumClass, SharedState


def flags(view: BatchView, counts: Counts, verdicts: Verdicts, compared: RootComparison) -> Ints:
    """Return the conditions of each container as an integer, in which bit i stands for
    `words.FLAGS[i]`."""
    found = _replication(view, counts, verdicts) | _others(view, counts, verdicts, compared)
    assert set(found) == set(FLAGS), "every flag has its condition"
    bits = np.packbits([found[name] for name in FLAGS], axis=0, bitorder="little")
    total = np.zeros(view.rows.count, dtype=np.int64)
    for place, byte in enumerate(bits):
        total |= byte.astype(np.int64) << 8 * place
    return np.where(view.is_judged, total, 0)


def _replication(view: BatchView, counts: Counts, verdicts: Verdicts) -> dict[str, Bools]:
    """Return the conditions that follow from the number of replicas: for each name of a condition,
    a boolean array with one value per container."""
    ec, n, quasi = counts.erasure, counts.ratis, counts.quasi
    state, is_ec = view.batch.containers.state, view.is_ec
    is_quasi = state == SharedState.QUASI_CLOSED
    holds = (is_quasi | (state == SharedState.CLOSED)) & ~counts.is_empty
    none = view.present == 0
    only_bad = (n.healthy == 0) & ~none
    is_lost = np.where(is_ec, ec.is_unrecoverable, n.healthy == 0)
    is_missing = np.where(is_ec, ec.is_missing, none)
    by_origin = verdicts.is_stuck & quasi.is_stuck & ~none & ~only_bad
    under_ratis = np.where(only_bad, n.need_with_bad > 0, (n.need > 0) & ~none)
    under_ec = ~ec.is_sufficient & (~ec.is_unrecoverable | ec.has_offline_only)
    is_under = np.where(is_ec, under_ec, np.where(by_origin, quasi.is_under, under_ratis))
    may_spare = ~is_quasi | quasi.has_spare_unhealthy
    over_ratis = (n.excess > 0) | ((n.excess_with_bad > 0) & may_spare)
    is_over = np.where(is_ec, ec.is_over, np.where(by_origin, quasi.is_over, over_ratis))
    return {
        "MISSING": (holds & is_missing) | ((state == SharedState.CLOSING) & none),
        "UNDER_REPLICATED": holds & is_under,
        "OVER_REPLICATED": holds & is_over,
        # Placement is judged only if there are enough replicas, because a missing replica is on no
        # rack.
        "MIS_REPLICATED": holds & counts.is_misplaced & ~none & ~is_under & ~is_lost,
        "UNHEALTHY": holds & is_lost & ~is_missing,
        "VULNERABLE": holds & ~is_ec & quasi.has_vulnerable,
        "UNHEALTHY_EXCESS": holds & is_ec & ec.has_unhealthy_excess,
        "MISMATCHED_STATE": holds & _has_odd_state(view),
        "DATA_AT_RISK": holds & is_lost,
    }


def _others(
    view: BatchView, counts: Counts, verdicts: Verdicts, compared: RootComparison
) -> dict[str, Bools]:
    containers, replicas, rows = view.batch.containers, view.batch.replicas, view.rows
    is_open = containers.state == SharedState.OPEN
    return {
        "EMPTY": counts.is_empty,
        "OPEN_UNHEALTHY": is_open
        & rows.some(view.is_present & (replicas.state != SharedState.OPEN)),
        "OPEN_WITHOUT_PIPELINE": is_open & ~containers.has_pipeline,
        "QUASI_CLOSED_STUCK": verdicts.is_stuck & ~counts.is_empty,
        "UNHEALTHY_REPLICA": rows.some(view.is_sick),
        "ROOTS_DIFFER": compared.roots_differ,
        "CONTRADICTORY": compared.checksum_class == ChecksumClass.CONTRADICTORY,
        "TOMBSTONES_DIFFER": compared.tombstones_differ,
        "UNREACHABLE_DIFFERS": compared.is_unreachable_different,
        "SCAN_FINDINGS": rows.some(view.is_countable & (replicas.findings > 0)),
    }


def _has_odd_state(view: BatchView) -> Bools:
    state = view.batch.replicas.state
    own = view.of_container(view.batch.containers.state)
    return view.rows.some(view.is_present & ~view.is_sick & (state != own))
