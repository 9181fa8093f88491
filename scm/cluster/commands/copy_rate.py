"""Estimates how long a copy takes, from the recent rate of copies."""

from typing import Final

from scm.state.entities import CommandOutcome

COPY_BYTES_PER_S: Final = 50e6  # assumed rate before the first copy
RATE_WEIGHT: Final = 0.2  # weight of the newest copy in the estimate


class CopyRate:
    """The estimated rate of copies in this cluster. Callers hold the control plane's lock."""

    def __init__(self) -> None:
        self._bytes_per_s = COPY_BYTES_PER_S

    def estimate_ms(self, size_bytes: int) -> int:
        """Return how long a copy of `size_bytes` takes at the recent rate."""
        return int(size_bytes * 1000 / self._bytes_per_s)

    def record_copy(self, outcome: CommandOutcome) -> None:
        """Update the rate with a finished copy."""
        if outcome.moved_bytes and outcome.duration_ms:
            rate = outcome.moved_bytes * 1000 / outcome.duration_ms
            self._bytes_per_s += RATE_WEIGHT * (rate - self._bytes_per_s)
