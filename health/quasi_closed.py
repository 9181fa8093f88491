"""Quasi-closed containers: may one be closed by force, is it stuck, what must be kept of it.

An origin is the datanode that took the writes. Until it is certain which origin holds the last
commit, every origin's data is kept.
"""

from dataclasses import dataclass

import numpy as np

from health.batch import View
from health.rules import Rules
from health.segments import Bools, Groups, Ints, Segments
from health.words import UNHEALTHY, Service, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The origins of stuck containers, ascending by container: what each lacks or has too much."""

    container: Ints
    origin: Ints
    target: Ints
    """Replicas in service that it should have."""
    under: Ints
    over: Ints
    of_row: Ints
    """Per replica: its place among the origins; -1 where its container is not quasi-closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuasiClosed:
    """What holds for quasi-closed containers; nothing does for others."""

    is_closable: Bools
    """All origins were seen, none of them knows a later commit, and no client was told of one."""
    is_stuck: Bools
    """Counted per origin, because it cannot be closed."""
    is_under: Bools
    is_over: Bools
    origins: Origins
    is_vulnerable: Bools
    """Per replica: UNHEALTHY, with the last commit of an origin that nobody else has in service."""
    has_vulnerable: Bools
    has_spare_unhealthy: Bools
    """An UNHEALTHY replica may go without its origin going with it."""


def judge_quasi_closed(view: View, rules: Rules) -> QuasiClosed:
    """Judge the quasi-closed containers of a batch."""
    containers, replicas = view.batch.containers, view.batch.replicas
    is_quasi = containers.state == State.QUASI_CLOSED
    chosen = np.flatnonzero(is_quasi[replicas.container] & view.is_present)
    rows = Segments.of(replicas.container[chosen], len(is_quasi))
    state, bcsid = replicas.state[chosen], replicas.bcsid[chosen]
    is_sick, is_here = state == UNHEALTHY, np.ones(len(chosen), dtype=np.bool_)
    closing = state == State.QUASI_CLOSED
    groups = Groups.of(rows.owner, replicas.origin[chosen])
    owner = rows.owner[groups.first]

    def origin_count(mask: Bools) -> Ints:
        return np.bincount(owner[groups.some(mask)], minlength=rows.count)

    last = rows.highest(bcsid, -1, closing)
    is_closable = is_quasi & (last > -1) & (last >= rows.highest(bcsid, -1, is_sick))
    is_closable &= last >= containers.acknowledged_id
    is_closable &= origin_count(closing | is_sick) >= containers.factor
    writers = origin_count(closing | (state == State.OPEN))
    is_stuck = is_quasi & ~is_closable & (writers < containers.factor)
    is_stuck &= origin_count(is_here) != 1
    best = groups.some(~is_sick & (bcsid == rows.highest(bcsid, -1, ~is_sick)[rows.owner]))
    service = view.service[chosen]
    target = np.where(best, rules.best_origin_copies, rules.other_origin_copies)
    online = groups.tally(service == Service.IN_SERVICE)
    is_resting = groups.some(service == Service.MAINTENANCE)
    need = np.where(is_resting, online == 0, target - online)
    of_row = np.full(len(view.rows.owner), -1, dtype=np.int64)
    of_row[chosen] = groups.of_row
    origins = Origins(
        container=owner,
        origin=replicas.origin[chosen][groups.first],
        target=target,
        under=np.where(online < target, need, 0),
        over=np.maximum(0, online - target),
        of_row=of_row,
    )
    is_safe = (service == Service.IN_SERVICE) & view.is_reachable[chosen]
    final = containers.sequence_id[rows.owner]
    is_last = (bcsid == final) & view.is_reachable[chosen]
    lonely = is_last & is_sick & ~replicas.is_empty[chosen] & replicas.is_loaded[chosen]
    lonely &= ~groups.some(is_last & (service == Service.IN_SERVICE))[groups.of_row]
    lonely &= rows.some(~is_sick)[rows.owner]
    is_vulnerable = np.zeros(len(view.rows.owner), dtype=np.bool_)
    is_vulnerable[chosen[lonely]] = True
    is_spare = is_safe & is_sick & (groups.tally(is_safe)[groups.of_row] > 1)
    return QuasiClosed(
        is_closable=is_closable,
        is_stuck=is_stuck,
        is_under=_some(owner[origins.under > 0], rows.count),
        is_over=_some(owner[origins.over > 0], rows.count),
        origins=origins,
        is_vulnerable=is_vulnerable,
        has_vulnerable=rows.some(lonely),
        has_spare_unhealthy=rows.some(is_spare),
    )


def _some(owners: Ints, count: int) -> Bools:
    found = np.zeros(count, dtype=np.bool_)
    found[owners] = True
    return found
