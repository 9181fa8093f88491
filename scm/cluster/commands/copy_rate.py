"""How fast copies are, by what they took lately: how long one more will take."""

from typing import Final

from scm.state.facts import Outcome

COPY_BYTES_PER_S: Final = 50e6  # what a copy is taken to need before the first was seen
RATE_WEIGHT: Final = 0.2  # of the newest copy in that estimate


class CopyRate:
    """What copies in this cluster need. Callers hold the control plane's lock."""

    def __init__(self) -> None:
        self._bytes_per_s = COPY_BYTES_PER_S

    def estimate_ms(self, size_bytes: int) -> int:
        """Return how long a copy of so many bytes takes, by what copies took lately."""
        return int(size_bytes * 1000 / self._bytes_per_s)

    def note(self, outcome: Outcome) -> None:
        """Learn how fast copies are."""
        if outcome.moved_bytes and outcome.duration_ms:
            rate = outcome.moved_bytes * 1000 / outcome.duration_ms
            self._bytes_per_s += RATE_WEIGHT * (rate - self._bytes_per_s)
