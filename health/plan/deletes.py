"""Replicas that are to be deleted, chosen most carefully.

Pending adds never count and pending deletes always do; only replicas on answering nodes in service
may go, one per container and run, the same one whoever plans, never while roots differ, never the
last good one, never an origin's or an index's last, and never so that too few racks are left.
"""

from collections.abc import Iterable
from zlib import crc32

import numpy as np

from health.plan.actions import DELETE_PRIORITY, Actions, Lists, rows_of
from health.plan.scene import Scene
from health.segments import Bools, Groups, Ints
from health.words import (
    UNHEALTHY,
    Action,
    ChecksumClass,
    ContainerState,
    Health,
    Queue,
    Service,
    State,
)


def _candidates(scene: Scene, containers: Bools) -> tuple[Ints, Ints]:
    """Return rows in service, answering, not being deleted already; and their order: the bad ones
    by what they lack, then by a checksum of container and datanode. The control plane confirms
    only the victim that it would choose itself (HDDS-4589).
    """
    view, batch = scene.view, scene.view.batch
    usable = view.is_present & (view.service == Service.IN_SERVICE) & view.is_reachable
    rows = np.flatnonzero(usable & ~view.is_leaving & containers[view.rows.owner])
    owner = view.rows.owner[rows]
    ids, nodes = batch.containers.container_id[owner].tolist(), batch.replicas.node[rows].tolist()
    names = batch.nodes.names
    texts = (f"{i}:{names[node]}".encode() for i, node in zip(ids, nodes, strict=True))
    place = np.fromiter(map(crc32, texts), dtype=np.int64, count=len(rows))
    is_bad = scene.counts.ratis.is_bad[rows]
    has = np.where(is_bad, batch.replicas.bcsid[rows], batch.containers.sequence_id[owner])
    return rows, np.lexsort((place, has, owner))


def _victims(scene: Scene, rows: Ints, order: Ints, mask: Bools, reason: str) -> Iterable[Actions]:
    """One delete for each container that has a candidate which passes: the first in order."""
    ordered = rows[order][mask[order]]
    owner = scene.view.rows.owner[ordered]
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = owner[1:] != owner[:-1]
    victim = ordered[first]
    yield _deletes(scene, victim, owner[first], reason, is_forced=True)


def _deletes(scene: Scene, rows: Ints, owner: Ints, reason: str, *, is_forced: bool) -> Actions:
    """One row for each container, with all its victims; `owner` ascends."""
    replicas = scene.view.batch.replicas
    box, place = np.unique(owner, return_inverse=True)
    return rows_of(
        Action.DELETE,
        box,
        priority=DELETE_PRIORITY,
        reason=reason,
        targets=Lists.of(place, rows, len(box)),
        indexes=Lists.of(place, replicas.index[rows], len(box)),
        is_forced=is_forced,
    )


def delete_excess(scene: Scene) -> Iterable[Actions]:
    """One replica of an over-replicated container, such that rack, origin and index stay."""
    view, replicas, verdicts = scene.view, scene.view.batch.replicas, scene.verdicts
    containers = view.batch.containers
    is_over = verdicts.state == Health.OVER_REPLICATED
    by_origin = verdicts.state == Health.QUASI_CLOSED_STUCK_OVER_REPLICATED
    is_over |= by_origin
    agrees = scene.compared.checksum_class > ChecksumClass.MISMATCH_MINORITY
    applies = is_over & (verdicts.queue == Queue.OVER) & agrees & view.is_judged
    rows, order = _candidates(scene, applies)
    owner = view.rows.owner[rows]
    is_ec, is_closed = view.is_ec[owner], (containers.state == State.CLOSED)[owner]
    is_match = replicas.state[rows] == containers.state[owner]
    matching = np.bincount(owner[is_match], minlength=view.rows.count)[owner]
    strange = np.bincount(owner[~is_match], minlength=view.rows.count)[owner]
    factor = containers.factor[owner]
    is_whole = is_match & (replicas.findings[rows] == 0)
    spare = is_whole & _is_spare(scene, rows, is_match) & (is_ec | (matching > factor))
    spare &= ~by_origin[owner] | _is_spare_of_origin(scene, rows, is_whole & by_origin[owner])
    # What has more commits than all that stay may be all that is left of what somebody wrote.
    kept = np.full(view.rows.count, -1, dtype=np.int64)
    np.maximum.at(kept, owner[is_match], replicas.bcsid[rows][is_match])
    is_odd = ~is_match & (replicas.bcsid[rows] <= kept[owner])
    # A strange replica goes first; in a quasi-closed container it may be an origin's only one.
    takes_strange = ~is_ec & is_closed & (strange > 0)
    chosen = np.where(takes_strange, is_odd, spare) & (is_ec | (matching >= factor))
    yield from _victims(scene, rows, order, chosen, "more replicas than needed")


def _is_spare(scene: Scene, rows: Ints, is_match: Bools) -> Bools:
    """Whether rack, origin and index of a matching candidate are all there without it."""
    view, replicas = scene.view, scene.view.batch.replicas
    owner = view.rows.owner[rows]
    is_closed = (view.batch.containers.state == State.CLOSED)[owner]

    def others(key: Ints) -> tuple[Bools, Groups]:
        groups = Groups.of(owner, key)
        return groups.tally(is_match)[groups.of_row] > 1, groups

    same_rack, racks = others(view.rack[rows])
    used = racks.tally(is_match)
    total = np.bincount(owner[racks.first][used > 0], minlength=view.rows.count)[owner]
    left = total - (used[racks.of_row] == 1)
    same_rack |= left >= scene.counts.racks_required[owner]
    same_origin, _ = others(replicas.origin[rows])
    same_index, _ = others(replicas.index[rows])
    return same_rack & (same_origin | is_closed) & same_index


def _is_spare_of_origin(scene: Scene, rows: Ints, is_whole: Bools) -> Bools:
    """Whether a whole candidate of a stuck container has the earliest commit of an origin of which
    more than enough are whole. The control plane refuses to delete any other."""
    origins, found = scene.counts.quasi.origins, np.zeros_like(is_whole)
    whole = rows[is_whole]
    origin, bcsid = origins.of_row[whole], scene.view.batch.replicas.bcsid[whole]
    held = np.bincount(origin, minlength=len(origins.target))
    earliest = np.full(len(held), np.iinfo(np.int64).max)
    np.minimum.at(earliest, origin, bcsid)
    found[is_whole] = (held > origins.target)[origin] & (bcsid == earliest[origin])
    return found


def delete_unhealthy_index(scene: Scene) -> Iterable[Actions]:
    """The UNHEALTHY twin of an EC index that also has a CLOSED replica in service."""
    view, replicas = scene.view, scene.view.batch.replicas
    is_doubled = scene.verdicts.state == Health.UNHEALTHY_OVER_REPLICATED
    rows, order = _candidates(scene, view.is_ec & is_doubled & view.is_judged)
    twins = Groups.of(view.rows.owner[rows], replicas.index[rows])
    has_closed = twins.some(replicas.state[rows] == State.CLOSED)[twins.of_row]
    is_twin = (replicas.state[rows] == UNHEALTHY) & has_closed
    yield from _victims(scene, rows, order, is_twin, "unhealthy, its index has a good replica")


def delete_empty(scene: Scene) -> Iterable[Actions]:
    """Every replica of an emptied container that says itself that it is empty; never forced."""
    view, replicas = scene.view, scene.view.batch.replicas
    is_going = view.batch.containers.state == ContainerState.DELETING
    is_going = (is_going | scene.counts.is_empty) & view.is_judged
    empty = view.is_present & replicas.is_empty & ~view.is_sick & ~view.is_leaving
    rows = np.flatnonzero(empty & view.of_container(is_going))
    yield _deletes(scene, rows, view.rows.owner[rows], "empty", is_forced=False)
