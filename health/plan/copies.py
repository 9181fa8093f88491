"""The rules of the plan that copy or reconstruct replicas, and choose the sources."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from health.ec_replication import INDEX_MAX
from health.plan.plan_input import PlanInput
from health.plan.plan_rows import (
    MISPLACED_PRIORITY,
    OUT_OF_SERVICE_PRIORITY,
    PlanRows,
    RaggedArray,
    Reasons,
    reasons_of,
    rows_of,
)
from health.segmented_rows import Bools, Groups, Ints, first_of_run, popcount
from health.source_issues import SourceIssue
from health.words import (
    RECOVERING,
    UNHEALTHY,
    Action,
    HealthState,
    Queue,
    ServiceState,
    SharedState,
)

GIVEN_UP: Final = (HealthState.UNHEALTHY, HealthState.UNHEALTHY_UNDER_REPLICATED)
"""Health states of EC containers with fewer intact shards than a reconstruction needs."""


def _best_of(is_sound: Bools, group: Ints, count: int, kinds: Sequence[Bools]) -> Bools:
    """Return, for each row, True if it is one of the best rows of its group.

    `kinds` has boolean arrays with one value per row, the best kind of row first. The best rows of
    a group are its `is_sound` rows of the first kind that has any in this group. If no kind has
    any, they are the rows of the group in the first array of `kinds`. `group` has the group number
    of each row, below `count`.
    """
    chosen = kinds[0]
    is_open = np.ones(count, dtype=np.bool_)
    for kind in kinds:
        sound = kind & is_sound
        has_sound = np.zeros(count, dtype=np.bool_)
        has_sound[group[sound]] = True
        chosen = np.where((is_open & has_sound)[group], sound, chosen)
        is_open &= ~has_sound
    return chosen


def ratis_sources(scene: PlanInput, asked: Bools) -> tuple[Bools, Ints]:
    """Return, for each replica of the `asked` containers, True if it may be the source of a copy.

    Also return the rank of each replica as a source. Sources with a lower rank are used first, and
    QUASI_CLOSED replicas have the highest rank.

    The sources are the replicas with the last commit, of the best available state. A replica with a
    known problem is a source only if all other replicas with as many commits have a problem, too.
    The function does not check whether a container needs a copy.
    """
    view, replicas, rows = scene.view, scene.view.batch.replicas, scene.view.rows
    containers = view.batch.containers
    usable = scene.usable & view.of_container(asked)
    closed = usable & (replicas.state == SharedState.CLOSED)
    quasi = usable & (replicas.state == SharedState.QUASI_CLOSED)
    takes_quasi = ~rows.some(closed) | (containers.state == SharedState.QUASI_CLOSED)
    healthy = closed | (quasi & view.of_container(takes_quasi))
    # A healthy replica that is unreadable now will return, so do not copy an unhealthy one instead.
    has_healthy = view.of_container(rows.some(healthy) | (scene.counts.ratis.healthy > 0))
    chosen = healthy | (usable & (replicas.state == UNHEALTHY) & ~has_healthy)
    last = rows.highest(replicas.bcsid, -1, chosen)
    whole = view.of_container(np.maximum(last, containers.sequence_id))
    kinds = (
        chosen & (replicas.bcsid == view.of_container(last)),
        quasi & (replicas.bcsid == whole),
    )
    best = _best_of(scene.doubts == SourceIssue.NONE, rows.owner, rows.count, kinds)
    return best, quasi.astype(np.int64)


def replicate(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that copy Ratis containers with too few replicas, or that make one copy to
    improve the spread over racks."""
    view, n, verdicts = scene.view, scene.counts.ratis, scene.verdicts
    only_bad = n.healthy == 0
    need = np.where(only_bad, n.need_with_bad_after, np.minimum(n.need_after, n.need_if_healed))
    # Wait for pending operations: they may already improve the spread, and each copy to another
    # rack makes another replica surplus.
    is_misplaced = (verdicts.state == HealthState.MIS_REPLICATED) & (verdicts.queue == Queue.UNDER)
    is_misplaced |= _is_crowded(scene)
    is_misplaced &= (view.adds == 0) & (view.deletes == 0)
    is_short = verdicts.state == HealthState.UNDER_REPLICATED
    is_short |= verdicts.state == HealthState.UNHEALTHY_UNDER_REPLICATED
    is_short &= (need > 0) & (verdicts.queue == Queue.UNDER)
    applies = ~view.is_ec & (is_short | is_misplaced)
    sources, order = ratis_sources(scene, applies)
    box = scene.chosen(applies & view.rows.some(sources))
    misplaced, bad, service = is_misplaced[box], only_bad[box], n.is_due_to_service[box]
    priority = np.where(service, OUT_OF_SERVICE_PRIORITY, n.redundancy[box])
    reason = np.select([misplaced, bad, service], [0, 1, 2], 3)
    words = (
        "too few racks",
        "too few replicas, none healthy",
        "node leaves",
        "too few replicas",
    )
    copies = np.where(misplaced, 1, need[box])
    yield rows_of(
        Action.REPLICATE,
        box,
        priority=np.where(misplaced, MISPLACED_PRIORITY, priority),
        reason=reasons_of(reason, words),
        sources=scene.lists(box, sources, order),
        copies=copies,
        bytes_estimated=copies * view.batch.containers.used_bytes[box],
    )


def _is_crowded(scene: PlanInput) -> Bools:
    """Return, for each closed container, True if it has exactly enough intact replicas, but these
    are on too few racks.

    Only containers that also have damaged replicas are considered. Their health state is
    OVER_REPLICATED, which does not show the wrong spread over racks.
    """
    view, n = scene.view, scene.counts.ratis
    asked = (scene.verdicts.state == HealthState.OVER_REPLICATED) & (n.need == 0) & ~view.is_ec
    asked &= view.batch.containers.state == SharedState.CLOSED
    good = view.is_present & ~view.is_bad & (view.service == ServiceState.IN_SERVICE)
    here = np.flatnonzero(good & view.of_container(asked))
    racks = Groups.of(view.rows.owner[here], view.rack[here])
    used = np.bincount(view.rows.owner[here[racks.first]], minlength=view.rows.count)
    return asked & (used < scene.counts.racks_required)


def replicate_origins(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that copy replicas of stuck quasi-closed containers.

    The origin of a replica is the datanode that received the writes. Copies are made for each
    origin that has too few replicas. The sources are replicas of the same origin.
    """
    view, verdicts, origins = scene.view, scene.verdicts, scene.counts.quasi.origins
    is_short = verdicts.state == HealthState.QUASI_CLOSED_STUCK_UNDER_REPLICATED
    is_short &= (verdicts.queue == Queue.UNDER) & view.is_judged
    is_wanted = (origins.under > 0) & is_short[origins.container]
    rows = np.flatnonzero((origins.of_row >= 0) & scene.usable)
    rows = rows[is_wanted[origins.of_row[rows]]]
    rows = rows[_last_of_origin(scene, rows)]
    rows = rows[np.argsort(origins.of_row[rows], kind="stable")]
    chosen, own = np.unique(origins.of_row[rows], return_inverse=True)
    names = [view.batch.origins[number] for number in origins.origin[chosen]]
    reason = np.empty(len(chosen), dtype=np.object_)
    reason[:] = [f"stuck quasi-closed, origin {name}" for name in names]
    box, copies = origins.container[chosen], origins.under[chosen]
    yield rows_of(
        Action.REPLICATE,
        box,
        priority=1,
        reason=reason,
        sources=RaggedArray.of(own, rows, len(chosen)),
        copies=copies,
        bytes_estimated=copies * view.batch.containers.used_bytes[box],
    )


def _last_of_origin(scene: PlanInput, rows: Ints) -> Bools:
    """Return, for each replica in `rows`, True if it is one of the best replicas of its origin.

    The origin of a replica is the datanode that received the writes. The best replicas have the
    last commit, and are healthy if the origin has healthy replicas. Replicas with known problems
    are included only if there are no others.
    """
    origins, replicas = scene.counts.quasi.origins, scene.view.batch.replicas
    group, count = origins.of_row[rows], len(origins.container)
    healthy = ~scene.view.is_sick[rows]
    has_healthy = np.zeros(count, dtype=np.bool_)
    has_healthy[group[healthy]] = True
    chosen = healthy | ~has_healthy[group]
    last = np.full(count, -1, dtype=np.int64)
    np.maximum.at(last, group[chosen], replicas.bcsid[rows][chosen])
    chosen &= replicas.bcsid[rows] == last[group]
    return _best_of(scene.doubts[rows] == SourceIssue.NONE, group, count, (chosen,))


def replicate_vulnerable(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that copy an UNHEALTHY replica, if no other node in service has the last
    commit of its origin (the datanode that received the writes)."""
    view, quasi = scene.view, scene.counts.quasi
    count = view.rows.tally(quasi.is_vulnerable)
    applies = (
        ~view.is_ec
        & (count > view.adds)
        & (scene.verdicts.state == HealthState.UNHEALTHY_UNDER_REPLICATED)
        & view.is_judged
    )
    rows = np.flatnonzero(quasi.is_vulnerable & view.of_container(applies))
    box = view.rows.owner[rows]
    yield rows_of(
        Action.REPLICATE,
        box,
        priority=0,
        reason="only copy of an origin's last commit, UNHEALTHY",
        sources=RaggedArray.of(np.arange(len(rows)), rows, len(rows)),
        copies=1,
        bytes_estimated=view.batch.containers.used_bytes[box],
    )


def reconstruct(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that reconstruct missing indexes from one CLOSED replica per index.

    Replicas in service are preferred. Replicas with known problems are used only if they are
    needed.

    If fewer indexes have a CLOSED replica than a reconstruction needs, UNHEALTHY replicas are
    sources, too. Ozone does not reconstruct such a container, but damage in two shards is seldom in
    the same stripe.
    """
    view, ec, replicas = scene.view, scene.counts.erasure, scene.view.batch.replicas
    # Do not rebuild an index whose replica may be healed by a repair, or is just arriving.
    is_coming = (view.is_present & replicas.is_hopeful) | (
        ~view.is_gone & (replicas.state == RECOVERING)
    )
    lost = ec.unavailable & ~view.rows.bits(replicas.index, is_coming & view.is_shard)
    wanted = view.is_ec & (scene.verdicts.queue == Queue.UNDER) & (lost != 0)
    closed = scene.usable & view.is_shard & (replicas.state == SharedState.CLOSED)
    yield _reconstructed(scene, lost, closed & view.of_container(wanted), "missing indexes ")
    damaged = scene.usable & view.is_shard & view.is_sick
    damaged &= replicas.bcsid >= view.of_container(view.batch.containers.sequence_id)
    lost &= ~view.rows.bits(replicas.index, damaged)
    is_given_up = view.is_ec & np.isin(scene.verdicts.state, GIVEN_UP)
    read = (closed | damaged) & view.of_container(is_given_up)
    yield _reconstructed(scene, lost, read, "also from damaged shards, missing indexes ")


def _reconstructed(scene: PlanInput, lost: Ints, usable: Bools, text: str) -> PlanRows:
    """Return plan rows that reconstruct the `lost` indexes of containers with enough `usable`
    replicas.

    The source of each index is its best replica: CLOSED replicas are preferred, then replicas
    without a known problem, then replicas in service.
    """
    view, replicas = scene.view, scene.view.batch.replicas
    containers = view.batch.containers
    rows = np.flatnonzero(usable)
    in_doubt = scene.doubts != SourceIssue.NONE
    best = Groups.of(replicas.container[rows], replicas.index[rows])
    is_second = view.service[rows] != ServiceState.IN_SERVICE
    is_damaged = replicas.state[rows] != SharedState.CLOSED
    order = np.lexsort((is_second, in_doubt[rows], is_damaged, best.of_row))
    first = first_of_run(best.of_row[order])
    source = np.zeros(len(view.rows.owner), dtype=np.bool_)
    source[rows[order[first]]] = True
    box = scene.chosen((lost != 0) & (view.rows.tally(source) >= containers.data))
    has_enough = view.rows.tally(source & ~in_doubt) >= containers.data
    source &= ~(in_doubt & view.of_container(has_enough))
    missing = lost[box]
    copies = popcount(missing)
    is_counted = np.zeros(view.rows.count, dtype=np.bool_)
    is_counted[box] = True
    counted = view.is_present & view.of_container(is_counted)
    longest = view.rows.highest(replicas.used_bytes, 0, counted)[box]
    return rows_of(
        Action.RECONSTRUCT,
        box,
        priority=scene.counts.erasure.redundancy[box],
        reason=_index_reasons(text, missing),
        sources=scene.lists(box, source, in_doubt.astype(np.int64)),
        indexes=_index_lists(missing),
        copies=copies,
        bytes_estimated=(containers.data[box] + copies) * longest,
    )


def _indexes(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _index_lists(masks: Ints) -> RaggedArray:
    place, index = (masks[:, None] >> np.arange(INDEX_MAX) & 1).nonzero()
    return RaggedArray.of(place, index, len(masks))


def _index_reasons(text: str, masks: Ints) -> Reasons:
    kinds, which = np.unique(masks, return_inverse=True)
    words = [text + ", ".join(map(str, _indexes(mask))) for mask in kinds.tolist()]
    return reasons_of(which, words)


def move_indexes(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield one plan row for each index that has a replica on a leaving node and none in service.
    The row copies this index.

    Indexes with a replica in maintenance are copied, too, if they need a second replica. Replicas
    in maintenance are possible sources.
    """
    view, ec, replicas = scene.view, scene.counts.erasure, scene.view.batch.replicas
    offline = ec.decommission_only | ec.maintenance_only
    applies = view.is_ec & (scene.verdicts.queue == Queue.UNDER) & (offline != 0)
    here = scene.usable & ~view.is_bad & view.of_container(applies)
    readable = view.rows.bits(replicas.index, here)
    wanted = ec.decommission_only | _lowest(ec.maintenance_only & readable, ec.maintenance_copies)
    rows = np.flatnonzero(here)
    rows = rows[wanted[view.rows.owner[rows]] >> replicas.index[rows] & 1 != 0]
    same = Groups.of(replicas.container[rows], replicas.index[rows])
    every = np.ones(len(rows), dtype=np.bool_)
    is_sound = scene.doubts[rows] == SourceIssue.NONE
    rows = rows[_best_of(is_sound, same.of_row, same.count, (every,))]
    moves = Groups.of(replicas.container[rows], replicas.index[rows])
    first = rows[moves.first]
    count = len(first)
    index = replicas.index[first]
    yield rows_of(
        Action.REPLICATE,
        view.rows.owner[first],
        priority=OUT_OF_SERVICE_PRIORITY,
        reason=_index_reasons("node leaves, index ", np.int64(1) << index),
        sources=RaggedArray.of(moves.of_row, rows, count),
        indexes=RaggedArray.of(np.arange(count), index, count),
        copies=1,
        bytes_estimated=replicas.used_bytes[first],
    )


def spread_indexes(scene: PlanInput) -> Iterable[PlanRows]:
    """Yield plan rows that copy an intact shard from the rack with the most shards to another rack,
    one row per container.

    The copy creates a surplus replica. A later plan deletes the replica on the crowded rack.
    """
    view, replicas, verdicts = scene.view, scene.view.batch.replicas, scene.verdicts
    applies = view.is_ec & (verdicts.state == HealthState.MIS_REPLICATED) & view.is_judged
    applies &= (verdicts.queue == Queue.UNDER) & (view.adds == 0) & (view.deletes == 0)
    stands = view.is_present & ~view.is_bad & ~view.is_leaving & view.of_container(applies)
    here = np.flatnonzero(stands)
    racks = Groups.of(view.rows.owner[here], view.rack[here])
    crowd = np.zeros(len(stands), dtype=np.int64)
    crowd[here] = racks.tally()[racks.of_row]
    rows = np.flatnonzero(stands & scene.whole & ~replicas.is_barred)
    order = np.lexsort((-view.places(rows), -crowd[rows], view.rows.owner[rows]))
    rows = rows[order]
    chosen = rows[first_of_run(view.rows.owner[rows])]
    index = replicas.index[chosen]
    yield rows_of(
        Action.REPLICATE,
        view.rows.owner[chosen],
        priority=MISPLACED_PRIORITY,
        reason=_index_reasons("too many shards on one rack, index ", np.int64(1) << index),
        sources=RaggedArray.of(np.arange(len(chosen)), chosen, len(chosen)),
        indexes=RaggedArray.of(np.arange(len(chosen)), index, len(chosen)),
        copies=1,
        bytes_estimated=replicas.used_bytes[chosen],
    )


def _lowest(masks: Ints, counts: Ints) -> Ints:
    """Return, for each integer in `masks`, the integer with only its lowest set bits. `counts` has
    the maximum number of bits to keep for each integer."""
    taken = np.zeros(len(masks), dtype=np.int64)
    left, wanted = masks.copy(), counts.copy()
    while (wanted > 0).any() and left.any():
        bit = np.where(wanted > 0, left & -left, 0)
        taken |= bit
        left &= ~bit
        wanted -= 1
    return taken
