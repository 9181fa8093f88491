"""Many containers for one question, page by page.

The lock is held to take a page of containers as columns, not while they are judged: a datanode may
hold hundreds of thousands, and heartbeats that are not taken in make all others look silent.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from health.batch import Batch
from health.rules import Rules
from health.segments import Ints
from scm.replication.judging.judge_input import Batches
from scm.state.database import State
from scm.state.facts import Container

PAGE: Final = 2_000  # containers that are copied while the lock is held, some 20 ms


@dataclass(frozen=True, slots=True)
class Page:
    """Some containers as they were at one moment."""

    batch: Batch
    rules: Rules
    containers: tuple[Container | None, ...]  # as in the batch; None: only replicas name it


class ContainerPages:
    """Takes pages. Takes the control plane's lock by itself, anew for each."""

    def __init__(
        self, state: State, batches: Batches, lock: AbstractContextManager[object]
    ) -> None:
        self._state = state
        self._batches = batches
        self._lock = lock

    def of(self, container_ids: Ints) -> Iterator[Page]:
        """Yield these containers, whose ids ascend."""
        for first in range(0, len(container_ids), PAGE):
            ids = container_ids[first : first + PAGE].tolist()
            with self._lock:
                page = Page(
                    self._batches.of(ids),
                    self._batches.rules(),
                    tuple(map(self._state.containers.get, ids)),
                )
            yield page
