"""Counts the copies or shards of each container among selected replicas.

Callers use the counts to decide whether enough replicas remain now, without one replica, or while
some nodes are switched off. For a delete, only replicas on answering nodes count (`whole`, or
`sound` in a quasi-closed container).

In this module, a mask is a boolean array with one value per replica; True selects the replica.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from health.batch import NO_BCSID, BatchView, ContainerBatch, Replicas
from health.quasi_closed import Origins
from health.segmented_rows import Bools, Groups, Ints
from health.words import ServiceState, SharedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The number of copies or shards of each container among the replicas in a mask."""

    mask: Bools
    """The counted replicas: the given mask without the shards whose index the erasure code does not
    have."""
    count: Ints
    """Number of copies of each container; for EC the number of different indexes."""
    is_single: Bools
    """Per replica: True if the count of its container would be smaller without the replica."""


def remainder(view: BatchView, mask: Bools) -> Remainder:
    """Return the number of copies or shards of each container among the replicas in `mask`."""
    replicas, containers, rows = view.batch.replicas, view.batch.containers, view.rows
    width = view.of_container(containers.data + containers.parity)
    mask = mask & (~view.is_shard | ((replicas.index > 0) & (replicas.index <= width)))
    here = np.flatnonzero(mask & view.is_shard)
    same = Groups.of(rows.owner[here], replicas.index[here])
    shards = np.bincount(rows.owner[here[same.first]], minlength=rows.count)
    is_single = mask & ~view.is_shard
    is_single[here] = same.tally()[same.of_row] == 1
    count = np.where(view.is_ec, shards, rows.tally(mask))
    return Remainder(mask=mask, count=count, is_single=is_single)


def needed_to_read(view: BatchView) -> Ints:
    """Return, for each container, the number of copies or different shards that a complete read
    requires."""
    return np.where(view.is_ec, view.batch.containers.data, 1)


def spare_count(view: BatchView, mask: Bools) -> Ints:
    """Return, for each container, how many replicas in `mask` must be lost until it is unreadable.

    For a replicated container, this is the number of its replicas in `mask`. A value below 1 means
    that the container is unreadable now.
    """
    return remainder(view, mask).count - needed_to_read(view) + 1


def is_readable(view: BatchView, mask: Bools) -> Bools:
    """Return, for each container, True if it can be read completely from the replicas in `mask`."""
    return spare_count(view, mask) > 0


def answering(view: BatchView) -> Bools:
    """Return, for each replica, True if it is undamaged and its node answers."""
    return view.is_present & ~view.is_bad & view.is_reachable


def confirmed(view: BatchView) -> Bools:
    """Return, for each replica, True if its node answers, is in service, and has reported all its
    replicas since the control plane's start."""
    is_here = view.is_present & view.is_reachable & view.is_confirmed
    return is_here & (view.service == ServiceState.IN_SERVICE)


def whole(view: BatchView) -> Bools:
    """Return, for each replica, True if it is intact and will remain in service.

    Such a replica has all commits, is CLOSED and not being deleted, its datanode could load it, and
    scans have found no fault in it. Its node answers, is in service and has reported all its
    replicas.
    """
    replicas = view.batch.replicas
    is_complete = replicas.bcsid >= view.of_container(view.batch.containers.sequence_id)
    is_complete &= replicas.state == SharedState.CLOSED
    return confirmed(view) & ~view.is_leaving & is_complete & _is_unharmed(view)


def sound(view: BatchView) -> Bools:
    """Return, for each replica of a quasi-closed container, True if it is usable.

    Such a replica is QUASI_CLOSED, has a tree, and is not excluded from plans. Its datanode could
    load it, and scans have found no fault in it. Its node answers, is in service and has reported
    all its replicas.
    """
    replicas = view.batch.replicas
    is_quasi = (replicas.state == SharedState.QUASI_CLOSED) & replicas.has_root
    return confirmed(view) & is_quasi & _is_unharmed(view) & ~replicas.is_barred


def _is_unharmed(view: BatchView) -> Bools:
    return view.batch.replicas.is_loaded & (view.batch.replicas.findings == 0)


def trees(view: BatchView, rows: Ints, *keys: Ints) -> Groups:
    """Return the groups of `rows` that have equal `keys` and equal trees, including tombstones."""
    replicas = view.batch.replicas
    tree = (replicas.algorithm[rows], replicas.root[rows], replicas.tombstones[rows])
    return Groups.of(*keys, *tree)


def agree(view: BatchView, mask: Bools) -> Bools:
    """Return, for each container, True if all its replicas in `mask` have equal trees."""
    rows = np.flatnonzero(mask)
    owner = view.rows.owner[rows]
    kinds = np.bincount(owner[trees(view, rows, owner).first], minlength=view.rows.count)
    return (kinds <= 1) & ~view.rows.some(mask & ~view.batch.replicas.has_root)


def is_equal(view: BatchView, one: Ints, other: Ints | int) -> Bools:
    """Return, for each pair of replicas, True if both replicas have trees and the trees are
    equal."""
    replicas = view.batch.replicas
    found = replicas.has_root[one] & replicas.has_root[other]
    for column in (replicas.algorithm, replicas.root, replicas.tombstones):
        found = found & (column[one] == column[other])
    return found


def covers(view: BatchView, one: Ints, other: Ints | int) -> Bools:
    """Return, for each pair of shards of one index, True if shard `one` makes shard `other`
    unnecessary.

    This is the case if the trees are equal. It is also the case if another datanode rebuilt the
    index as `other`, and then the node with `one` returned. A rebuilt shard has the live blocks but
    no tombstones of earlier deletes, so its root always differs. If no delete is pending and both
    shards have equally many live blocks, the rebuilt shard has no additional data. The shard with
    the tombstones is kept, because all earlier replicas of the index have its root.
    """
    replicas = view.batch.replicas
    found = replicas.has_root[one] & replicas.has_root[other]
    for column in (replicas.algorithm, replicas.tree_block_count):
        found = found & (column[one] == column[other])
    found &= (replicas.tombstone_count[one] > 0) & (replicas.tombstone_count[other] == 0)
    found &= ~view.batch.containers.owes_deletes[view.rows.owner[one]]
    return found | is_equal(view, one, other)


def is_kept_by_origin(view: BatchView, origins: Origins, rows: Ints, bad: Ints) -> Bools:
    """Return, for each replica in `bad`, True if intact replicas of the same origin have all its
    data.

    The origin of a replica is the datanode that received the writes. `rows` are the intact replicas
    (`sound`). The highest commit id of the intact replicas with the same origin must be at least
    that of the damaged replica. All of them with this highest commit id must have equal trees.
    """
    replicas, of_row = view.batch.replicas, origins.of_row
    count = len(origins.container)
    last = np.full(count, NO_BCSID - 1, dtype=np.int64)
    np.maximum.at(last, of_row[rows], replicas.bcsid[rows])
    latest = rows[replicas.bcsid[rows] == last[of_row[rows]]]
    kinds = np.bincount(of_row[latest[trees(view, latest, of_row[latest]).first]], minlength=count)
    return (kinds == 1)[of_row[bad]] & (replicas.bcsid[bad] <= last[of_row[bad]])


def without(batch: ContainerBatch, is_gone: Bools) -> ContainerBatch:
    """Return a copy of a batch without the replicas for which `is_gone` is True."""
    held, stays = batch.replicas, ~is_gone
    left = Replicas(**{f.name: getattr(held, f.name)[stays] for f in fields(Replicas)})
    return replace(batch, replicas=left)
