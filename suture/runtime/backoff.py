"""Computes the pauses between retries. Each failure doubles the pause, up to a maximum."""

import random
from typing import Final

FACTOR_MAX: Final = 64  # default maximum pause, in multiples of the first one
DOUBLINGS_MAX: Final = 32  # more than any maximum pause needs, and few enough for a finite float


def backoff_s(failures: int, *, first_s: float, longest_s: float | None = None) -> float:
    """Return the pause in seconds after `failures` (at least 1) consecutive failures.

    `first_s` is the pause after the first failure, and `longest_s` the maximum, by default 64 times
    `first_s`.
    """
    assert failures >= 1
    top_s = FACTOR_MAX * first_s if longest_s is None else longest_s
    return min(top_s, first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX))


def jittered_backoff_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """Return a random pause in seconds, from `first_s` to twice `backoff_s`, but at most
    `longest_s`.

    The random part prevents many callers from calling a restarted server at the same moment
    ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    top_s = backoff_s(failures + 1, first_s=first_s, longest_s=longest_s)
    return random.uniform(first_s, max(first_s, top_s))  # noqa: S311 - jitter, not a secret
