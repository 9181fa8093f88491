"""Limits the rate of calls of each caller with a token bucket (Turner 1986).

If several threads take the last token at the same time, one more call is accepted.
"""

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 2.0  # of calls at once, after a pause
ACCOUNT_COUNT_MAX: Final = 10_000


class CallerRateLimiter:
    """Limits the number of calls per second of each caller."""

    def __init__(
        self, calls_per_s_max: int, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls_per_s_max = calls_per_s_max
        self._burst = calls_per_s_max * BURST_S
        self._monotonic_s = monotonic_s
        self._left: dict[str, tuple[float, float]] = {}  # account -> tokens left, and when

    def try_acquire(self, account: str) -> bool:
        """Take one token of the caller with this account. Return False if no token is left, so that
        the call must be refused."""
        now_s = self._monotonic_s()
        left, at_s = self._left.get(account, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._calls_per_s_max)
        if account not in self._left and len(self._left) >= ACCOUNT_COUNT_MAX:
            self._left.clear()  # limits the memory; all accounts start again
        self._left[account] = (left - 1 if left >= 1 else left, now_s)
        return left >= 1
