"""Estimates the duration of a copy from the rate of recent copies."""

from typing import Final

from scm.state.entities import CommandOutcome

COPY_BYTES_PER_S: Final = 50e6  # assumed rate before the first copy
RATE_WEIGHT: Final = 0.2  # weight of the newest copy in the estimate


class CopyRate:
    """The estimated rate of copies in this cluster. Callers must hold the control plane's lock."""

    def __init__(self) -> None:
        self._bytes_per_s = COPY_BYTES_PER_S

    def estimate_ms(self, size_bytes: int) -> int:
        """Return the estimated duration in ms of a copy of `size_bytes` bytes."""
        return int(size_bytes * 1000 / self._bytes_per_s)

    def record_copy(self, outcome: CommandOutcome) -> None:
        """Update the estimated rate with the size and duration of a finished copy."""
        if outcome.moved_bytes and outcome.duration_ms:
            rate = outcome.moved_bytes * 1000 / outcome.duration_ms
            self._bytes_per_s += RATE_WEIGHT * (rate - self._bytes_per_s)
