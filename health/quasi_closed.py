"""Decides whether a quasi-closed container may be closed, and which of its replicas to keep.

The origin of a replica is the datanode that received the client's writes. `close_obstacle` is the
only rule for closing: the Spark job, the control plane's close commands and `suture scm close` use
it. Until this rule allows a close, the data of every origin is kept.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from health.batch import NO_BCSID, BatchView
from health.rules import Rules
from health.segmented_rows import Bools, Groups, Ints, Segments
from health.words import UNHEALTHY, ServiceState, SharedState


class Obstacle(IntEnum):
    """The reason why a quasi-closed container may not be closed. If several apply, it is the
    first."""

    NONE = 0
    NONE_CLOSED = 1
    ACKNOWLEDGED_COMMIT = 2
    HIGHER_COMMIT = 3
    FEW_ORIGINS = 4


def majority(factor: Any) -> Any:
    """Return the number of origins (datanodes that received writes) that must have a closed
    replica.

    The number is a majority, as for an acknowledged write. Any two majorities share an origin, so
    the closed replicas have every acknowledged write (fact S1.43). Ozone requires all origins;
    there, one lost datanode prevents the close forever.
    """
    return factor // 2 + 1


def close_obstacle(
    *, last: Any, other_last: Any, acknowledged: Any, origin_count: Any, required_count: Any
) -> Ints:
    """Return the reason, as a code of `Obstacle`, why a container may not be closed at commit
    `last`.

    The arguments are numbers for one container, or arrays with one value per container. `last` is
    the greatest BCSID of the closed replicas (CLOSED or QUASI_CLOSED). `other_last` is the greatest
    BCSID of all other replicas (UNHEALTHY, not loaded, or still open). `acknowledged` is the last
    commit acknowledged to a client. Each of them is NO_BCSID if there is none. `origin_count` is
    the number of origins of the closed and UNHEALTHY replicas that can be loaded.
    """
    reasons = {
        Obstacle.NONE_CLOSED: last <= NO_BCSID,
        Obstacle.ACKNOWLEDGED_COMMIT: last < acknowledged,
        Obstacle.HIGHER_COMMIT: last < other_last,
        Obstacle.FEW_ORIGINS: origin_count < required_count,
    }
    return np.select([np.asarray(holds) for holds in reasons.values()], list(map(int, reasons)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The origins of quasi-closed containers, with the numbers of missing and surplus replicas of
    each.

    The columns have one value per origin of a container, in ascending order of the containers. An
    origin is a datanode that received writes of the container.
    """

    container: Ints
    origin: Ints
    target: Ints
    """Required number of replicas in service with this origin."""
    under: Ints
    over: Ints
    of_row: Ints
    """Per replica: the index of its origin in the other columns; -1 if its container is not
    quasi-closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuasiClosed:
    """Facts about the quasi-closed containers of a batch. For other containers, all values are
    False."""

    is_closable: Bools
    """True if `close_obstacle` allows a close at commit `last`."""
    last: Ints
    """Greatest BCSID of the closed replicas; NO_BCSID if there is none."""
    is_stuck: Bools
    """True if the container cannot be closed, so that its replicas are counted for each origin."""
    is_under: Bools
    is_over: Bools
    origins: Origins
    is_vulnerable: Bools
    """Per replica: True if it is UNHEALTHY, and no other node in service has the last commit of its
    origin (the datanode that received the writes)."""
    has_vulnerable: Bools
    has_spare_unhealthy: Bools
    """True if an UNHEALTHY replica may be deleted without losing data of its origin."""


def judge_quasi_closed(view: BatchView, rules: Rules) -> QuasiClosed:
    """Return the facts about the quasi-closed containers of a batch, such as whether they may be
    closed."""
    containers, replicas = view.batch.containers, view.batch.replicas
    is_quasi = containers.state == SharedState.QUASI_CLOSED
    chosen = np.flatnonzero(is_quasi[replicas.container] & view.is_present)
    rows = Segments.of(replicas.container[chosen], len(is_quasi))
    state, bcsid = replicas.state[chosen], replicas.bcsid[chosen]
    is_sick, is_here = state == UNHEALTHY, np.ones(len(chosen), dtype=np.bool_)
    is_closed = (state == SharedState.QUASI_CLOSED) | (state == SharedState.CLOSED)
    groups = Groups.of(rows.owner, replicas.origin[chosen])
    owner = rows.owner[groups.first]

    def origin_count(mask: Bools) -> Ints:
        return np.bincount(owner[groups.some(mask)], minlength=rows.count)

    last = rows.highest(bcsid, NO_BCSID, is_closed)
    obstacle = close_obstacle(
        last=last,
        other_last=rows.highest(bcsid, NO_BCSID, ~is_closed),
        acknowledged=containers.acknowledged_id,
        origin_count=origin_count((is_closed | is_sick) & replicas.is_loaded[chosen]),
        required_count=majority(containers.factor),
    )
    is_closable = is_quasi & (obstacle == Obstacle.NONE)
    writers = origin_count((state == SharedState.QUASI_CLOSED) | (state == SharedState.OPEN))
    is_single, is_written = origin_count(is_here) == 1, writers >= containers.factor
    is_stuck = is_quasi & ~is_closable & ~is_written & ~is_single
    best = groups.some(~is_sick & (bcsid == rows.highest(bcsid, -1, ~is_sick)[rows.owner]))
    service = view.service[chosen]
    target = np.where(best, rules.best_origin_copies, rules.other_origin_copies)
    most = containers.factor[owner]
    target = np.where(is_written[owner], np.minimum(target, most), target)
    target = np.where(is_single[owner], most, target)
    online = groups.tally(service == ServiceState.IN_SERVICE)
    is_resting = groups.some(service == ServiceState.MAINTENANCE)
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
    is_safe = (service == ServiceState.IN_SERVICE) & view.is_reachable[chosen]
    final = containers.sequence_id[rows.owner]
    is_last = (bcsid == final) & view.is_reachable[chosen]
    lonely = is_last & is_sick & ~replicas.is_empty[chosen] & replicas.is_loaded[chosen]
    lonely &= ~groups.some(is_last & (service == ServiceState.IN_SERVICE))[groups.of_row]
    lonely &= rows.some(~is_sick)[rows.owner]
    is_vulnerable = np.zeros(len(view.rows.owner), dtype=np.bool_)
    is_vulnerable[chosen[lonely]] = True
    is_spare = is_safe & is_sick & (groups.tally(is_safe)[groups.of_row] > 1)
    return QuasiClosed(
        is_closable=is_closable,
        last=last,
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
