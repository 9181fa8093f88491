"""The common input of the plan's rules."""

from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np

from health.batch import BatchView
from health.health_state import Counts, Verdicts
from health.plan.plan_rows import RaggedArray
from health.root_comparison import RootComparison
from health.segmented_rows import Bools, Ints, first_of_run
from health.words import ServiceState, SharedState


@dataclass(frozen=True)
class PlanInput:
    """The common input of the rules."""

    view: BatchView
    counts: Counts
    verdicts: Verdicts
    compared: RootComparison
    doubts: Ints
    """The doubt about each replica as a source (`health.source_issues`)."""

    def chosen(self, when: Bools) -> Ints:
        """Return the places of the containers for which a rule applies."""
        return np.flatnonzero(when & self.view.is_judged)

    @cached_property
    def usable(self) -> Bools:
        """Readable replicas: loaded, on an answering node, not barred, not being deleted."""
        view = self.view
        is_there = view.is_present & view.is_reachable & ~view.is_leaving
        return is_there & view.batch.replicas.is_loaded & ~view.batch.replicas.is_barred

    @cached_property
    def whole(self) -> Bools:
        """Replicas known to have all commits, on nodes that stay: CLOSED, loaded, without findings,
        not being deleted, on an answering node in service that has reported all its replicas.
        """
        view, replicas = self.view, self.view.batch.replicas
        is_complete = replicas.state == SharedState.CLOSED
        is_complete &= replicas.bcsid >= view.of_container(view.batch.containers.sequence_id)
        return self.staying & is_complete & replicas.is_loaded & (replicas.findings == 0)

    @cached_property
    def staying(self) -> Bools:
        """Replicas that the control plane may act on: on an answering node in service that has
        reported all its replicas, and not being deleted.
        """
        view = self.view
        is_here = view.is_present & view.is_reachable & view.is_confirmed
        return is_here & ~view.is_leaving & (view.service == ServiceState.IN_SERVICE)

    def places(self, rows: Ints) -> Ints:
        """Return the positions of replicas in an order that every planner agrees on: by a checksum
        of container and datanode (HDDS-4589).
        """
        batch = self.view.batch
        ids = batch.containers.container_id[self.view.rows.owner[rows]].tolist()
        nodes, names = batch.replicas.node[rows].tolist(), batch.nodes.names
        texts = (f"{i}:{names[node]}".encode() for i, node in zip(ids, nodes, strict=True))
        return np.fromiter(map(crc32, texts), dtype=np.int64, count=len(rows))

    def lists(self, containers: Ints, mask: Bools, order: Ints | None = None) -> RaggedArray:
        """Return the replicas in the mask of each of these containers.

        `order` ranks replicas within their container; the default is that of the batch.
        """
        place = np.full(self.view.rows.count, -1, dtype=np.int64)
        place[containers] = np.arange(len(containers))
        rows = np.flatnonzero(mask)
        own = place[self.view.rows.owner[rows]]
        rows, own = rows[own >= 0], own[own >= 0]
        if order is not None:
            ranked = np.lexsort((order[rows], own))
            rows, own = rows[ranked], own[ranked]
        return RaggedArray.of(own, rows, len(containers))

    def concerned(self, when: Bools, mask: Bools) -> tuple[Ints, RaggedArray]:
        """Return the containers for which a rule applies and that have replicas in the mask, and
        these.
        """
        rows = np.flatnonzero(mask)
        owner = self.view.rows.owner[rows]
        is_meant = (when & self.view.is_judged)[owner]
        rows, owner = rows[is_meant], owner[is_meant]
        begins = first_of_run(owner)
        starts = np.append(np.flatnonzero(begins), len(rows))
        return owner[begins], RaggedArray(starts, rows)
