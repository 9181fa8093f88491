"""The health states of containers as they were when each was looked at last."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from health.words import Health
from scm.state.settled import Settled


@dataclass(frozen=True, slots=True)
class States:
    """One word a container; a cluster has few that are not HEALTHY."""

    unwell: Mapping[int, Health]
    judged: Settled
    """Containers about which nothing changed since their last look."""

    def of(self, container_id: int) -> str | None:
        """Return the state as a word; None: it is not known now, the container waits for a look."""
        if container_id not in self.judged:
            return None
        return self.unwell.get(container_id, Health.HEALTHY).name


NOT_KNOWN: Final = States({}, Settled())
