"""What every rule of the plan looks at."""

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from health.batch import View
from health.chain import Counts, Verdicts
from health.comparison import Comparison
from health.plan.actions import Lists
from health.segments import Bools, Ints
from health.words import Service, State


@dataclass(frozen=True, slots=True)
class Scene:
    """What every rule looks at."""

    view: View
    counts: Counts
    verdicts: Verdicts
    compared: Comparison
    doubts: Ints
    """What speaks against copying each replica (`health.doubts`)."""

    def chosen(self, when: Bools) -> Ints:
        """Return the places of the containers for which a rule applies."""
        return np.flatnonzero(when & self.view.is_judged)

    def usable(self) -> Bools:
        """Return what can be read: loaded, on a node that answers, not barred, not going."""
        view = self.view
        is_there = view.is_present & view.is_reachable & ~view.is_leaving
        return is_there & view.batch.replicas.is_loaded & ~view.batch.replicas.is_barred

    def whole(self) -> Bools:
        """Return the replicas that have all that was committed and are seen to, on nodes that stay:
        CLOSED, loaded, without findings, not going, on an answering node in service that has named
        all it holds."""
        view, replicas = self.view, self.view.batch.replicas
        is_complete = replicas.state == State.CLOSED
        is_complete &= replicas.bcsid >= view.of_container(view.batch.containers.sequence_id)
        return self.staying() & is_complete & replicas.is_loaded & (replicas.findings == 0)

    def staying(self) -> Bools:
        """Return the replicas of which the control plane may dispose: on an answering node in
        service that has named all it holds, and not going already."""
        view = self.view
        is_here = view.is_present & view.is_reachable & view.is_confirmed
        return is_here & ~view.is_leaving & (view.service == Service.IN_SERVICE)

    def places(self, rows: Ints) -> Ints:
        """Return the places of some replicas in an order that every planner agrees on: by a
        checksum of container and datanode (HDDS-4589)."""
        batch = self.view.batch
        ids = batch.containers.container_id[self.view.rows.owner[rows]].tolist()
        nodes, names = batch.replicas.node[rows].tolist(), batch.nodes.names
        texts = (f"{i}:{names[node]}".encode() for i, node in zip(ids, nodes, strict=True))
        return np.fromiter(map(crc32, texts), dtype=np.int64, count=len(rows))

    def lists(self, containers: Ints, mask: Bools, order: Ints | None = None) -> Lists:
        """Return for each of some containers its replicas that pass.

        `order` ranks replicas within their container; else it is that of the batch.
        """
        place = np.full(self.view.rows.count, -1, dtype=np.int64)
        place[containers] = np.arange(len(containers))
        rows = np.flatnonzero(mask & (place >= 0)[self.view.rows.owner])
        own = place[self.view.rows.owner[rows]]
        if order is not None:
            rows = rows[np.lexsort((order[rows], own))]
            own = place[self.view.rows.owner[rows]]
        return Lists.of(own, rows, len(containers))
