"""Counts the failures of a volume in a sliding window of time, and tolerates a few of them.

No I/O: the caller passes the time.
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
        """Record a failure at `now_s`. Return True if there were more than `tolerated` failures in
        the window."""
        self._at_s.append(now_s)
        while self._at_s[0] <= now_s - self.window_s:
            self._at_s.popleft()
        return len(self._at_s) > self.tolerated
