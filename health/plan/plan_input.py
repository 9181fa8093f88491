"""The common input of the plan's rules."""

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
    """The facts that all rules of the plan read."""

    view: BatchView
    counts: Counts
    verdicts: Verdicts
    compared: RootComparison
    doubts: Ints
    """The known problem with the use of each replica as a source, as a code of `SourceIssue`."""

    def chosen(self, when: Bools) -> Ints:
        """Return the indexes of the judged containers for which `when` is True."""
        return np.flatnonzero(when & self.view.is_judged)

    @cached_property
    def usable(self) -> Bools:
        """Mask of readable replicas: loaded, on an answering node, not excluded from plans
        (`is_barred`), and not being deleted."""
        view = self.view
        is_there = view.is_present & view.is_reachable & ~view.is_leaving
        return is_there & view.batch.replicas.is_loaded & ~view.batch.replicas.is_barred

    @cached_property
    def whole(self) -> Bools:
        """Mask of whole replicas: CLOSED, without findings, not being deleted, and on answering
        nodes in service (`health.remaining.whole`)."""
        return whole(self.view)

    @cached_property
    def staying(self) -> Bools:
        """Mask of replicas that the control plane may act on: confirmed, and not being deleted."""
        return confirmed(self.view) & ~self.view.is_leaving

    def lists(self, containers: Ints, mask: Bools, order: Ints | None = None) -> RaggedArray:
        """Return, for each of the `containers`, the list of its replicas in `mask`.

        `order` ranks the replicas of a container; if it is None, they keep the order of the batch.
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
        """Return the judged containers for which `when` is True and that have replicas in `mask`.
        Also return, for each of these containers, the list of its replicas in `mask`.
        """
        rows = np.flatnonzero(mask)
        owner = self.view.rows.owner[rows]
        is_meant = (when & self.view.is_judged)[owner]
        rows, owner = rows[is_meant], owner[is_meant]
        begins = first_of_run(owner)
        starts = np.append(np.flatnonzero(begins), len(rows))
        return owner[begins], RaggedArray(starts, rows)
