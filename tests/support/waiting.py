"""Waiting for what other processes or threads bring about."""

import time
from collections.abc import Callable
from threading import Event

WAIT_S = 30.0
POLL_S = 0.02  # asked without a pause, it is what keeps the others from doing it


def wait_until(condition: Callable[[], bool], *, within_s: float = WAIT_S) -> None:
    """Ask again and again until a condition holds; fail if it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s"
        Event().wait(POLL_S)
