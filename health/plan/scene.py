"""What every rule of the plan looks at."""

from dataclasses import dataclass

import numpy as np

from health.batch import View
from health.chain import Counts, Verdicts
from health.comparison import Comparison
from health.plan.actions import Lists
from health.segments import Bools, Ints


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
        """Return what can be read: on a node that answers, loaded, not about to be deleted."""
        view = self.view
        is_there = view.is_present & view.is_reachable & ~view.is_leaving
        return is_there & view.batch.replicas.is_loaded

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
