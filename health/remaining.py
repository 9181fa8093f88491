"""Counts what remains of each container if only some of its replicas count.

Whether something is enough is asked here: for now, without a replica, or without nodes that would
be off. These questions differ only in the mask of the replicas that count. Before a delete, only
replicas count that were seen and confirmed: `whole`, or `sound` in a quasi-closed container.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from health.batch import NO_BCSID, BatchView, ContainerBatch, Replicas
from health.quasi_closed import Origins
from health.segmented_rows import Bools, Groups, Ints
from health.words import ServiceState, SharedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The replicas in a mask, counted."""

    mask: Bools
    """Without shards whose index the code does not have."""
    count: Ints
    """Copies of each container; of an erasure-coded one, different indexes."""
    is_single: Bools
    """Replicas without which their container's count is one less."""


def remainder(view: BatchView, mask: Bools) -> Remainder:
    """Count the replicas in a mask."""
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
    """Return the copies, or the different shards, that reading each container needs."""
    return np.where(view.is_ec, view.batch.containers.data, 1)


def spare_count(view: BatchView, mask: Bools) -> Ints:
    """Return how many times each container can be read from the replicas in a mask: the number of
    copies; for shards, the number that may be lost plus one.
    """
    return remainder(view, mask).count - needed_to_read(view) + 1


def is_readable(view: BatchView, mask: Bools) -> Bools:
    """Return which containers can be read completely from the replicas in a mask."""
    return spare_count(view, mask) > 0


def answering(view: BatchView) -> Bools:
    """Return the good replicas on nodes that answer."""
    return view.is_present & ~view.is_bad & view.is_reachable


def confirmed(view: BatchView) -> Bools:
    """Return the replicas on answering nodes in service that have reported all their replicas since
    the control plane's start.
    """
    is_here = view.is_present & view.is_reachable & view.is_confirmed
    return is_here & (view.service == ServiceState.IN_SERVICE)


def whole(view: BatchView) -> Bools:
    """Return the replicas known to have all commits, on nodes that stay: confirmed, CLOSED, loaded,
    without findings, and not being deleted.
    """
    replicas = view.batch.replicas
    is_complete = replicas.bcsid >= view.of_container(view.batch.containers.sequence_id)
    is_complete &= replicas.state == SharedState.CLOSED
    return confirmed(view) & ~view.is_leaving & is_complete & _is_unharmed(view)


def sound(view: BatchView) -> Bools:
    """Return the replicas of quasi-closed containers that report all data that the writes of their
    origin left: confirmed, loaded, with a tree, without findings, and not excluded.
    """
    replicas = view.batch.replicas
    is_quasi = (replicas.state == SharedState.QUASI_CLOSED) & replicas.has_root
    return confirmed(view) & is_quasi & _is_unharmed(view) & ~replicas.is_barred


def _is_unharmed(view: BatchView) -> Bools:
    return view.batch.replicas.is_loaded & (view.batch.replicas.findings == 0)


def trees(view: BatchView, rows: Ints, *keys: Ints) -> Groups:
    """Group rows with the same keys and the same tree, including its tombstones."""
    replicas = view.batch.replicas
    tree = (replicas.algorithm[rows], replicas.root[rows], replicas.tombstones[rows])
    return Groups.of(*keys, *tree)


def agree(view: BatchView, mask: Bools) -> Bools:
    """Return the containers in which all replicas in a mask have a tree, and the same one."""
    rows = np.flatnonzero(mask)
    owner = view.rows.owner[rows]
    kinds = np.bincount(owner[trees(view, rows, owner).first], minlength=view.rows.count)
    return (kinds <= 1) & ~view.rows.some(mask & ~view.batch.replicas.has_root)


def is_equal(view: BatchView, one: Ints, other: Ints | int) -> Bools:
    """Return which pairs of replicas report equal trees; False if one has no tree."""
    replicas = view.batch.replicas
    found = replicas.has_root[one] & replicas.has_root[other]
    for column in (replicas.algorithm, replicas.root, replicas.tombstones):
        found = found & (column[one] == column[other])
    return found


def covers(view: BatchView, one: Ints, other: Ints | int) -> Bools:
    """Return in which pairs of whole shards of an index the first makes the other unnecessary.

    Equal trees do. So does a shard that came back beside one that was rebuilt meanwhile: a rebuilt
    shard has the live blocks but no tombstones of those deleted before, so its root differs for
    ever. It holds nothing more once no delete is pending and both hold as many live blocks. The one
    with the tombstones stays, because its root is the one that every replica of this index had.
    """
    replicas = view.batch.replicas
    found = replicas.has_root[one] & replicas.has_root[other]
    for column in (replicas.algorithm, replicas.tree_block_count):
        found = found & (column[one] == column[other])
    found &= (replicas.tombstone_count[one] > 0) & (replicas.tombstone_count[other] == 0)
    found &= ~view.batch.containers.owes_deletes[view.rows.owner[one]]
    return found | is_equal(view, one, other)


def is_kept_by_origin(view: BatchView, origins: Origins, rows: Ints, bad: Ints) -> Bools:
    """Return the bad replicas for which sound ones (`rows`) of their origin have as many commits,
    and those with the most have the same tree.
    """
    replicas, of_row = view.batch.replicas, origins.of_row
    count = len(origins.container)
    last = np.full(count, NO_BCSID - 1, dtype=np.int64)
    np.maximum.at(last, of_row[rows], replicas.bcsid[rows])
    latest = rows[replicas.bcsid[rows] == last[of_row[rows]]]
    kinds = np.bincount(of_row[latest[trees(view, latest, of_row[latest]).first]], minlength=count)
    return (kinds == 1)[of_row[bad]] & (replicas.bcsid[bad] <= last[of_row[bad]])


def without(batch: ContainerBatch, is_gone: Bools) -> ContainerBatch:
    """Return a batch as if some of its replicas did not exist."""
    held, stays = batch.replicas, ~is_gone
    left = Replicas(**{f.name: getattr(held, f.name)[stays] for f in fields(Replicas)})
    return replace(batch, replicas=left)
