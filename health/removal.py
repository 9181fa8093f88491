"""Decides whether a replica may be deleted, from the replicas that would remain.

The plan chooses surplus replicas (`health.plan.deletes`), but the cluster may change before the
control plane sends the delete. Operators and the balancer also order deletes. Therefore, the
control plane checks each delete with this module twice: when the delete is ordered, and when it is
sent. Only replicas on answering nodes in service count, if the nodes have reported all their
replicas.
"""

from collections.abc import Collection
from functools import cached_property

import numpy as np

from health.batch import BatchView
from health.quasi_closed import Origins, judge_quasi_closed
from health.remaining import (
    Remainder,
    agree,
    confirmed,
    covers,
    is_equal,
    is_kept_by_origin,
    remainder,
    sound,
    whole,
)
from health.rules import Rules
from health.segmented_rows import Bools, Ints
from health.words import SharedState

UNBLOCK_REPLICAS_MIN = 3
"""An unhealthy replica is deleted to free a node for a new replica only if the container has at
least this many replicas."""


class Removals:
    """Decides which replicas of a batch may be deleted. A replica is identified by its container
    and datanode."""

    def __init__(self, view: BatchView, rules: Rules) -> None:
        self._view = view
        self._rules = rules

    @cached_property
    def _remainder(self) -> Remainder:
        return remainder(self._view, whole(self._view))

    @property
    def _whole(self) -> Bools:
        return self._remainder.mask

    @cached_property
    def _is_agreed(self) -> Bools:
        """For each container, True if its intact replicas are equal. If two of them differ, either
        may be correct."""
        return agree(self._view, self._whole)

    @cached_property
    def _staying(self) -> Bools:
        return confirmed(self._view) & ~self._view.is_leaving

    @cached_property
    def _sound(self) -> Bools:
        return sound(self._view)

    @cached_property
    def _origins(self) -> Origins:
        return judge_quasi_closed(self._view, self._rules).origins

    def copy_count(self, container_id: int, *, without: Collection[str] = ()) -> int:
        """Return the number of equal, intact copies of a container (`health.remaining.whole`).

        Replicas on the datanodes in `without` are ignored. Return 0 if two intact copies differ.
        For an erasure-coded container, return the number of indexes with an intact shard.
        """
        view, box = self._view, self._box(container_id)
        left = self._whole & ~view.batch.nodes.among(without)[view.batch.replicas.node]
        is_counted = view.is_ec[box] or agree(view, left)[box]
        return int(remainder(view, left).count[box]) if is_counted else 0

    def is_movable(self, container_id: int, datanode_id: str) -> bool:
        """Return True if a replica may be moved to another node: it is intact and not excluded from
        plans."""
        row = self._row(self._box(container_id), datanode_id)
        is_barred = self._view.batch.replicas.is_barred
        return row is not None and bool(self._whole[row] & ~is_barred[row])

    def may_remove(self, container_id: int, datanode_id: str, *, keep_count: int) -> bool:
        """Return True if enough replicas of a container remain without the replica on a datanode.

        For a replicated container, `keep_count` intact and equal copies must remain. For a
        quasi-closed container, `_may_leave_origin` must be True, and for a shard
        `_may_leave_index`. A `keep_count` of one more than the number of data shards means that an
        operator orders the delete of a shard. Then `keep_count` indexes must keep an intact shard,
        from which the deleted shard is rebuilt.
        """
        view, box = self._view, self._box(container_id)
        row, left = self._row(box, datanode_id), int(self._remainder.count[box])
        if row is not None:
            left -= int(self._remainder.is_single[row])
        if view.is_ec[box]:
            data = int(view.batch.containers.data[box])
            if keep_count == data + 1:
                return left >= keep_count
            return (
                row is not None
                and left >= data
                and self._may_leave_index(row, has_spare_index=left > data)
            )
        if view.batch.containers.state[box] == SharedState.QUASI_CLOSED:
            return row is not None and self._may_leave_origin(row, keep_count)
        return bool(self._is_agreed[box]) and left >= keep_count

    def witnesses(self, container_id: int, datanode_id: str) -> list[str]:
        """Return the datanodes that can prove that they have the data of a replica, before the
        replica is deleted.

        Return an empty list for a shard that no other node has. In a quasi-closed container, the
        returned datanodes have a replica with an equal tree and at least the same commit id. If the
        replica to delete is damaged, no tree is equal to its tree. Then the returned datanodes have
        an intact replica of the same origin (the datanode that received the writes), which has all
        its data. Other datanodes are not returned, because each would read its complete replica
        without a result.
        """
        view, box = self._view, self._box(container_id)
        row = self._row(box, datanode_id)
        if row is None:
            return []
        replicas, others = view.batch.replicas, self._others(row)
        if view.batch.containers.state[box] == SharedState.QUASI_CLOSED:
            same_origin = replicas.origin[others] == replicas.origin[row]
            has = is_equal(view, others, row) | (same_origin & view.is_bad[row])
            has &= (self._sound & ~view.is_leaving)[others] & self._has_as_much(others, row)
            return self._names(others[has])
        same = others[replicas.index[others] == replicas.index[row]]
        return self._names(np.concatenate((same[whole(view)[same]], self._equivalents(row))))

    def giving_way(self, container_id: int) -> list[str]:
        """Return the datanodes whose damaged replica may be deleted to free a node for a missing
        replica.

        The datanodes are in the order of the deletes. Return an empty list while an operation of
        the container is pending.
        """
        view, box = self._view, self._box(container_id)
        if view.adds[box] or view.deletes[box]:
            return []
        own = self._own(box)
        replicas = view.batch.replicas
        is_able = self._staying[own] & view.is_bad[own]
        bad = own[is_able & ~replicas.is_hopeful[own] & ~replicas.is_barred[own]]
        give = self._shards_giving_way if view.is_ec[box] else self._copies_giving_way
        return self._names(give(box, own, bad))

    def _copies_giving_way(self, box: int, own: Ints, bad: Ints) -> Ints:
        """Return the damaged copies that may be deleted, because other copies have their data.

        They are in ascending order of the commit id, then of the number of blocks. At least one
        intact copy remains. In a quasi-closed container, this must be a copy of the same origin
        (the datanode that received the writes).
        """
        view, replicas = self._view, self._view.batch.replicas
        here = own[view.is_present[own]]
        is_quasi = view.batch.containers.state[box] == SharedState.QUASI_CLOSED
        is_kept = self._is_agreed[box] and self._remainder.count[box] > 0
        if len(here) < UNBLOCK_REPLICAS_MIN or not (is_quasi or is_kept):
            return here[:0]
        last = replicas.bcsid[here[~view.is_bad[here]]].max(initial=0)
        bad = bad[replicas.bcsid[bad] <= last]
        if is_quasi:
            bad = bad[is_kept_by_origin(view, self._origins, own[self._sound[own]], bad)]
        return bad[np.lexsort((view.places(bad), replicas.block_count[bad], replicas.bcsid[bad]))]

    def _shards_giving_way(self, box: int, own: Ints, bad: Ints) -> Ints:
        """Return the damaged shards that may be deleted, first those whose index has an intact
        shard.

        If no damaged shard may be deleted, return one of two equal intact shards
        (`health.remaining.whole`). Enough indexes with an intact shard remain to read the
        container.
        """
        view, index = self._view, self._view.batch.replicas.index
        count, data = int(self._remainder.count[box]), int(view.batch.containers.data[box])
        if count < data:
            return own[:0]
        bad = bad[
            [self._may_leave_index(row, has_spare_index=count > data) for row in bad.tolist()]
        ]
        is_lone = ~np.isin(index[bad], index[own[self._whole[own]]])
        bad = bad[np.lexsort((view.places(bad), is_lone))]
        return bad if len(bad) else self._twin(own[self._whole[own]])

    def _twin(self, found: Ints) -> Ints:
        """Return one intact shard that another shard of its index makes unnecessary, in an array of
        length 1.

        The shard is on the rack with the most intact shards. `health.remaining.covers` decides
        which shards are unnecessary. Return an empty array if there is none.
        """
        view, replicas = self._view, self._view.batch.replicas
        for index in np.unique(replicas.index[found]).tolist():
            twins = found[replicas.index[found] == index]
            twins = twins[np.lexsort((view.places(twins), -replicas.tombstone_count[twins]))]
            best, is_same = twins[0], is_equal(view, twins, twins[0])
            if len(twins) > 1 and covers(view, best, twins).all():
                able = twins if is_same.all() else twins[~is_same]
                able = able[~replicas.is_barred[able]]
                able = able[np.argsort(view.places(able), kind="stable")]
                crowd = (view.rack[found] == view.rack[able][:, None]).sum(axis=1)
                if len(able):
                    return able[[int(crowd.argmax())]]
        return found[:0]

    def _may_leave_index(self, row: int, *, has_spare_index: bool) -> bool:
        """Return True if a shard may be deleted.

        An undamaged shard may be deleted if an intact shard of its index has its data. A damaged
        shard may be deleted if another shard of its index has its data, or if more indexes have an
        intact shard than a read requires. A damaged shard is kept if its commit id is higher than
        those of its container and of the intact shards of its index.
        """
        view, replicas, others = self._view, self._view.batch.replicas, self._others(row)
        if not view.is_present[row]:
            return False
        twins = others[self._whole[others] & (replicas.index[others] == replicas.index[row])]
        if not view.is_bad[row]:
            return bool(covers(view, twins, row).any())
        last = max(
            int(view.batch.containers.sequence_id[view.rows.owner[row]]),
            int(replicas.bcsid[twins].max(initial=0)),
        )
        is_doubled = len(twins) > 0 or len(self._equivalents(row)) > 0
        return bool(replicas.bcsid[row] <= last) and (has_spare_index or is_doubled)

    def _equivalents(self, row: int) -> Ints:
        """Return the other shards of the same index with the same data and commit id as the shard
        `row`.

        An example is a copy of the shard. Only a QUASI_CLOSED shard has equivalents. It counts as
        damaged because it lacks a commit, and its equivalents lack the same commit.
        """
        view, replicas, others = self._view, self._view.batch.replicas, self._others(row)
        if not view.is_shard[row] or replicas.state[row] != SharedState.QUASI_CLOSED:
            return others[:0]
        has = self._staying[others] & (replicas.findings[others] == 0)
        for column in (replicas.index, replicas.state, replicas.bcsid):
            has &= column[others] == column[row]
        return others[has & is_equal(view, others, row)]

    def _may_leave_origin(self, row: int, keep_count: int) -> bool:
        """Return True if a replica of a quasi-closed container may be deleted.

        An intact replica may be deleted if the required number of equal replicas of its origin (the
        datanode that received the writes) remains. A damaged replica may be deleted if intact
        replicas of its origin have all its commits, and `keep_count` intact replicas remain. Only
        one replica of a container is deleted at a time.
        """
        view, origins, others = self._view, self._origins, self._others(row)
        place, box = int(origins.of_row[row]), int(view.rows.owner[row])
        if place < 0 or view.deletes[box] > view.is_leaving[row]:
            return False
        able = others[self._sound[others]]
        if self._sound[row]:
            same = able[(origins.of_row[able] == place) & self._has_as_much(able, row)]
            return bool(is_equal(view, same, row).sum() >= origins.target[place])
        is_kept = is_kept_by_origin(view, origins, able, np.array([row]))
        return bool(view.is_bad[row] & is_kept[0]) and len(able) >= keep_count

    def _has_as_much(self, others: Ints, row: int) -> Bools:
        return self._view.batch.replicas.bcsid[others] >= self._view.batch.replicas.bcsid[row]

    def _box(self, container_id: int) -> int:
        return int(np.searchsorted(self._view.batch.containers.container_id, container_id))

    def _own(self, box: int) -> Ints:
        return np.arange(*self._view.rows.starts[box : box + 2])

    def _row(self, box: int, datanode_id: str) -> int | None:
        own, batch = self._own(box), self._view.batch
        named = own[batch.nodes.among([datanode_id])[batch.replicas.node[own]]]
        return int(named[0]) if len(named) else None

    def _others(self, row: int) -> Ints:
        own = self._own(int(self._view.rows.owner[row]))
        return own[own != row]

    def _names(self, rows: Ints) -> list[str]:
        batch = self._view.batch
        return [batch.nodes.names[node] for node in batch.replicas.node[rows].tolist()]
