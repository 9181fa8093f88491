"""Evaluates many containers for one request, page by page.

The lock is held while a page of containers is copied into columns, not while they are judged. A
datanode may hold hundreds of thousands, and while heartbeats are blocked all other nodes look
silent.
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
    """Some containers at one moment."""

    batch: ContainerBatch
    rules: Rules
    containers: tuple[Container | None, ...]  # in batch order; None: only replicas name it


class ContainerPages(ControlComponent):
    """Reads pages of containers. Takes the control plane's lock separately for each page."""

    def __init__(self, basis: DecisionContext, batches: HealthBatchBuilder) -> None:
        super().__init__(basis)
        self._batches = batches

    def of(self, container_ids: Ints) -> Iterator[ContainerPage]:
        """Yield these containers, whose ids ascend."""
        for first in range(0, len(container_ids), PAGE):
            ids = container_ids[first : first + PAGE].tolist()
            with self.access.lock:
                page = ContainerPage(
                    self._batches.of(ids),
                    self._batches.rules(),
                    tuple(map(self._state.containers.get, ids)),
                )
            yield page
