"""Counts what remains of each container if only some of its replicas count.

Whether something is enough is asked here: for now, without a replica, or without nodes that would
be off. These questions differ only in the mask of the replicas that count.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from health.batch import BatchView, ContainerBatch, Replicas
from health.segmented_rows import Bools, Groups, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The replicas in a mask, counted."""

    count: Ints
    """Copies of each container; of an erasure-coded one, different indexes."""
    is_single: Bools
    """Replicas without which their container's count is one less."""


def remainder(view: BatchView, mask: Bools) -> Remainder:
    """Count the replicas in a mask; a shard whose index the code does not have is not counted."""
    replicas, containers, rows = view.batch.replicas, view.batch.containers, view.rows
    width = view.of_container(containers.data + containers.parity)
    mask = mask & (~view.is_shard | ((replicas.index > 0) & (replicas.index <= width)))
    here = np.flatnonzero(mask & view.is_shard)
    same = Groups.of(rows.owner[here], replicas.index[here])
    shards = np.bincount(rows.owner[here[same.first]], minlength=rows.count)
    is_single = mask & ~view.is_shard
    is_single[here] = same.tally()[same.of_row] == 1
    return Remainder(count=np.where(view.is_ec, shards, rows.tally(mask)), is_single=is_single)


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


def without(batch: ContainerBatch, is_gone: Bools) -> ContainerBatch:
    """Return a batch as if some of its replicas did not exist."""
    held, stays = batch.replicas, ~is_gone
    left = Replicas(**{f.name: getattr(held, f.name)[stays] for f in fields(Replicas)})
    return replace(batch, replicas=left)
