"""Counts a volume's failures in a sliding window, and tolerates a few of them.

No I/O: the caller supplies the time.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

TOLERATED: Final = 1
WINDOW_S: Final = 70 * 60.0


@dataclass(slots=True)
class FailureWindow:
    """The times of one volume's failures in the last `window_s` seconds."""

    tolerated: int = TOLERATED
    window_s: float = WINDOW_S
    _at_s: deque[float] = field(default_factory=deque, init=False)

    def add(self, now_s: float) -> bool:
        """Count a failure. Return True if the window contains more than `tolerated` failures."""
        self._at_s.append(now_s)
        while self._at_s[0] <= now_s - self.window_s:
            self._at_s.popleft()
        return len(self._at_s) > self.tolerated
