"""Waits for conditions that other processes or threads make true."""

import time
from collections.abc import Callable
from threading import Event

WAIT_S = 30.0  # `wire.trying` reduces it
POLL_S = 0.02  # without a pause, the polling would slow down the other threads


def wait_until(condition: Callable[[], bool], *, within_s: float | None = None) -> None:
    """Poll a condition until it is true; fail if it does not become true in time."""
    within_s = within_s or WAIT_S
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s"
        Event().wait(POLL_S)
