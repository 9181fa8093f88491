"""Evaluates many containers for one request, page by page.

The lock is held while a page of containers is copied into columns, and released while the page is
judged. A request may concern hundreds of thousands of containers. If the lock were held throughout,
it would block heartbeats, and all nodes would look silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from health.batch import ContainerBatch
from health.rules import Rules
from health.segmented_rows import Ints
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.health.health_batches import HealthBatchBuilder
from scm.state.entities import Container

PAGE: Final = 2_000  # containers copied while the lock is held: some 20 ms


@dataclass(frozen=True, slots=True)
class ContainerPage:
    """The containers of one page, copied from the state at one moment."""

    batch: ContainerBatch
    rules: Rules
    containers: tuple[Container | None, ...]  # in batch order; None = only replicas name it


class ContainerPages(ControlComponent):
    """Reads pages of containers. Takes the control plane's lock separately for each page."""

    def __init__(self, basis: DecisionContext, batches: HealthBatchBuilder) -> None:
        super().__init__(basis)
        self._batches = batches

    def of(self, container_ids: Ints) -> Iterator[ContainerPage]:
        """Yield pages of these containers; the ids must ascend."""
        for first in range(0, len(container_ids), PAGE):
            ids = container_ids[first : first + PAGE].tolist()
            with self.access.lock:
                page = ContainerPage(
                    self._batches.of(ids),
                    self._batches.rules(),
                    tuple(map(self._state.containers.get, ids)),
                )
            yield page
