"""The rules of the plan that delete surplus, damaged and empty replicas.

A rule deletes at most one replica per container and run, and every program that computes the plan
chooses the same replica. Only replicas on answering nodes in service that have reported all their
replicas are deleted. The required number of equal, intact replicas remains, on the required number
of racks. A replica with more commits than the remaining replicas is not deleted.

A replica is intact if it is CLOSED, its datanode could load it, and scans have found no fault in it
(`health.remaining.whole`). Pending adds, and replicas with pending deletes, do not count as
replicas.
"""

from collections.abc import Iterable

import numpy as np

from health.batch import NO_BCSID
from health.plan.plan_input import PlanInput
from health.plan.plan_rows import (
    DELETE_PRIORITY,
    PlanRows,
    RaggedArray,
    Reasons,
    reasons_of,
    rows_of,
)
from health.remaining import agree, covers, is_equal, is_kept_by_origin, sound, trees
from health.segmented_rows import Bools, Groups, Ints, first_of_run
from health.words import (
    Action,
    ChecksumClass,
    ContainerOnlyState,
    HealthState,
    Queue,
    ServiceState,
    SharedState,
)

EXCESS, TWIN = "more replicas than needed", "unhealthy, its index has a good replica"


def _first(scene: PlanInput, rows: Ints, *keys: Ints) -> Ints:
    """Return one of `rows` for each container: the first row in the order of `keys`. The last key
    is the primary key. Rows with equal keys are in the order of `BatchView.places`."""
    order = np.lexsort((scene.view.places(rows), *keys, scene.view.rows.owner[rows]))
    rows = rows[order]
    return rows[first_of_run(scene.view.rows.owner[rows])]


def _deletes(scene: PlanInput, rows: Ints, reason: Reasons | str, *, is_forced: bool) -> PlanRows:
    """Return one plan row per container. The plan row deletes all replicas of the container that
    are in `rows`. The plan rows are in ascending order of the containers."""
    replicas = scene.view.batch.replicas
    box, place = np.unique(scene.view.rows.owner[rows], return_inverse=True)
    return rows_of(
        Action.DELETE,
        box,
        priority=DELETE_PRIORITY,
        reason=reason,
        targets=RaggedArray.of(place, rows, len(box)),
        indexes=RaggedArray.of(place, replicas.index[rows], len(box)),
        is_forced=is_forced,
    )


def delete_excess(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that delete one replica of each closed container with too many replicas.

    Replicas that are damaged or lack commits are deleted first, in ascending order of the commit
    ids. Then intact replicas (`health.remaining.whole`) that the spread over racks does not need
    are deleted. If intact replicas differ, none is deleted, because it is unknown which one is
    correct.
    """
    view, replicas, rows = scene.view, scene.view.batch.replicas, scene.view.rows
    containers = view.batch.containers
    applies = ~view.is_ec & (containers.state == SharedState.CLOSED) & view.is_judged
    applies &= scene.verdicts.state == HealthState.OVER_REPLICATED
    applies &= scene.compared.checksum_class != ChecksumClass.CONTRADICTORY
    asked = view.of_container(applies)
    whole = scene.whole & asked
    seen = view.is_present & view.is_reachable & ~view.is_leaving
    online = rows.tally(seen & (view.service == ServiceState.IN_SERVICE) & asked)
    count = rows.tally(whole)
    applies &= (
        (online > scene.counts.ratis.most) & (count >= containers.factor) & agree(view, whole)
    )
    last = rows.highest(replicas.bcsid, NO_BCSID, whole)
    victims = np.flatnonzero(scene.staying & ~replicas.is_barred & view.of_container(applies))
    owner = rows.owner[victims]
    is_spare = (count > containers.factor)[owner] & _keeps_racks(scene, applies)[victims]
    is_able = (replicas.bcsid[victims] <= last[owner]) & (~whole[victims] | is_spare)
    victims, owner = victims[is_able], owner[is_able]
    has = np.where(view.is_bad[victims], replicas.bcsid[victims], containers.sequence_id[owner])
    yield _deletes(
        scene, _first(scene, victims, has, whole[victims].astype(np.int64)), EXCESS, is_forced=True
    )


def _keeps_racks(scene: PlanInput, applies: Bools) -> Bools:
    """Return, for each replica, True if its delete leaves enough racks.

    Enough racks remain if the container is on as many racks as before, or at least on the required
    number. Only intact replicas on answering nodes that stay in service count for racks.
    """
    view = scene.view
    seen = view.is_present & ~view.is_bad & view.is_reachable & ~view.is_leaving
    seen &= view.service == ServiceState.IN_SERVICE
    here = np.flatnonzero(seen & view.of_container(applies))
    racks = Groups.of(view.rows.owner[here], view.rack[here])
    used = np.bincount(view.rows.owner[here[racks.first]], minlength=view.rows.count)
    is_alone = np.zeros(len(seen), dtype=np.bool_)
    is_alone[here] = racks.tally()[racks.of_row] == 1
    return ~is_alone | view.of_container(used > scene.counts.racks_required)


def delete_spare_of_origin(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that delete one replica of each stuck quasi-closed container with surplus
    replicas.

    The origin of a replica is the datanode that received the writes. Enough equal replicas of the
    same origin with at least as many commits must remain. A damaged replica is deleted first, if
    the other replicas have all its data.
    """
    view, replicas, verdicts = scene.view, scene.view.batch.replicas, scene.verdicts
    origins, containers = scene.counts.quasi.origins, view.batch.containers
    by_origin = verdicts.state == HealthState.QUASI_CLOSED_STUCK_OVER_REPLICATED
    applies = by_origin | (verdicts.state == HealthState.OVER_REPLICATED)
    applies &= (verdicts.queue == Queue.OVER) & (view.deletes == 0) & view.is_judged
    applies &= verdicts.is_stuck  # others will soon be closed, and then their origins do not matter
    able = scene.staying & ~replicas.is_barred & view.of_container(applies)
    kept = able & sound(view)
    rows = np.flatnonzero(kept)
    origin = origins.of_row[rows]
    same = trees(view, rows, origin)
    earliest = np.full(same.count, np.iinfo(np.int64).max)
    np.minimum.at(earliest, same.of_row, replicas.bcsid[rows])
    owner = view.rows.owner[rows]
    target = np.where(by_origin[owner], origins.target[origin], containers.factor[owner])
    is_spare = (same.tally()[same.of_row] > target) & _keeps_racks(scene, applies)[rows]
    is_spare &= replicas.bcsid[rows] == earliest[same.of_row]
    enough = view.rows.tally(kept) >= containers.factor
    is_over = ~by_origin[origins.container] | (origins.over > 0)
    bad = np.flatnonzero(able & view.is_sick & view.of_container(enough))
    bad = bad[is_over[origins.of_row[bad]] & is_kept_by_origin(view, origins, rows, bad)]
    victims = np.concatenate((rows[is_spare], bad))
    is_whole = (~view.is_sick[victims]).astype(np.int64)
    yield _deletes(scene, _first(scene, victims, is_whole), EXCESS, is_forced=True)


def delete_spare_shard(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that delete one shard of each EC container in which every index has an intact
    shard (`health.remaining.whole`).

    A damaged shard is deleted if there is one. Otherwise, one of two intact shards of an index is
    deleted, on the rack with the most shards.
    """
    view, replicas = scene.view, scene.view.batch.replicas
    containers = view.batch.containers
    applies = view.is_ec & (containers.state == SharedState.CLOSED) & view.is_judged
    applies &= scene.compared.checksum_class != ChecksumClass.CONTRADICTORY
    applies &= (
        view.present > containers.factor
    )  # otherwise no replica is surplus if each index has a whole one
    whole = scene.whole & view.of_container(applies)
    every = (np.int64(2) << containers.data + containers.parity) - 2
    applies &= (view.rows.bits(replicas.index, whole) & every) == every
    whole &= view.of_container(applies)
    bad = scene.staying & view.is_bad & ~replicas.is_barred & view.of_container(applies)
    bad &= replicas.bcsid <= _last_of_index(scene, whole, bad)
    twins, crowd = _twins(scene, whole)
    rows = np.flatnonzero(bad | (twins & ~replicas.is_barred))
    is_twin = ~bad[rows]
    index = np.where(is_twin, replicas.index[rows], 0)
    victims = _first(scene, rows, np.where(is_twin, -crowd[rows], 0), index)
    reason = reasons_of(bad[victims].astype(np.int64), (EXCESS, TWIN))
    yield _deletes(scene, victims, reason, is_forced=True)


def _last_of_index(scene: PlanInput, whole: Bools, asked: Bools) -> Ints:
    """Return, for each replica in `asked`, the highest commit id of the intact replicas (`whole`)
    with the same index; NO_BCSID if there are none."""
    replicas = scene.view.batch.replicas
    rows = np.flatnonzero(whole | asked)
    same = Groups.of(scene.view.rows.owner[rows], replicas.index[rows])
    last = np.full(same.count, NO_BCSID, dtype=np.int64)
    is_whole = whole[rows]
    np.maximum.at(last, same.of_row[is_whole], replicas.bcsid[rows[is_whole]])
    found = np.full(len(whole), NO_BCSID, dtype=np.int64)
    found[rows] = last[same.of_row]
    return found


def _twins(scene: PlanInput, whole: Bools) -> tuple[Bools, Ints]:
    """Return, for each shard, True if it is intact (`whole`) and another intact shard of its index
    makes it unnecessary.

    Also return, for each intact shard, the number of intact shards of its container on its rack.
    """
    view, replicas = scene.view, scene.view.batch.replicas
    rows = np.flatnonzero(whole)
    owner, index = view.rows.owner[rows], replicas.index[rows]
    racks = Groups.of(owner, view.rack[rows])
    crowd = np.zeros(len(whole), dtype=np.int64)
    crowd[rows] = racks.tally()[racks.of_row]
    same = Groups.of(owner, index)
    doubled = same.tally()[same.of_row] > 1
    rows, same_of = rows[doubled], same.of_row[doubled]
    order = np.lexsort((scene.view.places(rows), -replicas.tombstone_count[rows], same_of))
    rows, same_of = rows[order], same_of[order]
    begins = first_of_run(same_of)
    best = rows[begins][np.cumsum(begins) - 1]
    is_same = is_equal(view, best, rows)
    group = np.cumsum(begins) - 1
    is_refused = np.zeros(int(begins.sum()), dtype=np.bool_)
    is_refused[group[~covers(view, best, rows)]] = True
    has_behind = np.zeros_like(is_refused)
    has_behind[group[~is_same]] = True
    chosen = ~is_refused[group] & (~is_same | ~has_behind[group])
    found = np.zeros(len(whole), dtype=np.bool_)
    found[rows[chosen]] = True
    return found, crowd


def delete_empty(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that delete all empty replicas of containers that are empty or DELETING. The
    deletes are not forced."""
    view, replicas = scene.view, scene.view.batch.replicas
    is_going = view.batch.containers.state == ContainerOnlyState.DELETING
    is_going = (is_going | scene.counts.is_empty) & view.is_judged
    empty = view.is_present & replicas.is_empty & ~view.is_sick & ~view.is_leaving
    rows = np.flatnonzero(empty & view.of_container(is_going))
    yield _deletes(scene, rows, "empty", is_forced=False)
