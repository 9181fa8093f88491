"""Reads the facts of many containers for one request, one page of containers at a time.

The lock is held only while the facts of one page are copied into columns. The caller evaluates the
page without the lock. A request may concern hundreds of thousands of containers. If the lock was
held for all of them, heartbeats would have to wait, and all datanodes would seem to be silent.
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
    """The facts of one page of containers, copied from the state at one moment."""

    batch: ContainerBatch
    rules: Rules
    containers: tuple[Container | None, ...]  # in batch order; None = only replicas name it


class ContainerPages(ControlComponent):
    """Reads pages of containers. Each page acquires and releases the control plane's lock."""

    def __init__(self, basis: DecisionContext, batches: HealthBatchBuilder) -> None:
        super().__init__(basis)
        self._batches = batches

    def of(self, container_ids: Ints) -> Iterator[ContainerPage]:
        """Yield the containers with these ids in pages. The ids must be in ascending order."""
        for first in range(0, len(container_ids), PAGE):
            ids = container_ids[first : first + PAGE].tolist()
            with self.access.lock:
                page = ContainerPage(
                    self._batches.of(ids),
                    self._batches.rules(),
                    tuple(map(self._state.containers.get, ids)),
                )
            yield page
