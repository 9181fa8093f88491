"""The common input of all rules of the plan."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from health.batch import BatchView
from health.health_state import Counts, Verdicts
from health.plan.plan_rows import RaggedArray
from health.remaining import confirmed, whole
from health.root_comparison import RootComparison
from health.segmented_rows import Bools, Ints, first_of_run


@dataclass(frozen=True)
class PlanInput:
    """The facts about a batch that the rules of the plan use."""

    view: BatchView
    counts: Counts
    verdicts: Verdicts
    compared: RootComparison
    doubts: Ints
    """For each replica, the known problem that makes it a bad source of a copy, as a code of
    `SourceIssue`."""

    def chosen(self, when: Bools) -> Ints:
        """Return the indexes of the containers for which `when` is True and for which plans are
        made (`BatchView.is_judged`)."""
        return np.flatnonzero(when & self.view.is_judged)

    @cached_property
    def usable(self) -> Bools:
        """For each replica, True if it can be read: loaded, on an answering node, not excluded from
        plans (`is_barred`), and not being deleted."""
        view = self.view
        is_there = view.is_present & view.is_reachable & ~view.is_leaving
        return is_there & view.batch.replicas.is_loaded & ~view.batch.replicas.is_barred

    @cached_property
    def whole(self) -> Bools:
        """For each replica, True if it is intact: CLOSED, with no fault found by scans, not being
        deleted, and on an answering node in service (`health.remaining.whole`)."""
        return whole(self.view)

    @cached_property
    def staying(self) -> Bools:
        """For each replica, True if the control plane may send commands for it: its node answers,
        is in service and has reported all replicas, and the replica is not being deleted."""
        return confirmed(self.view) & ~self.view.is_leaving

    def lists(self, containers: Ints, mask: Bools, order: Ints | None = None) -> RaggedArray:
        """Return, for each container in `containers`, the list of its replicas in `mask`.

        `order` has a rank for each replica, and the lists are sorted by rank. If `order` is None,
        the replicas keep the order of the batch.
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
        """Return the containers for which `when` is True and which have replicas in `mask`. Also
        return, for each of these containers, the list of its replicas in `mask`.

        Only containers for which plans are made (`BatchView.is_judged`) are returned.
        """
        rows = np.flatnonzero(mask)
        owner = self.view.rows.owner[rows]
        is_meant = (when & self.view.is_judged)[owner]
        rows, owner = rows[is_meant], owner[is_meant]
        begins = first_of_run(owner)
        starts = np.append(np.flatnonzero(begins), len(rows))
        return owner[begins], RaggedArray(starts, rows)
