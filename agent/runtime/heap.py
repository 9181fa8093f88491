"""Memory that was freed and is kept by the C library: given back after work on all replicas."""

import ctypes
from collections.abc import Callable
from typing import Final


def _trim() -> Callable[[int], int]:
    """Return glibc's malloc_trim; where there is another C library, a function without effect."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda _: 0
    return trim


malloc_trim: Final = _trim()


def give_back() -> None:
    """Give freed memory back to the system.

    Going through a hundred thousand replicas takes tens of megabytes for a moment, in whichever
    thread does it, and the library keeps them for each thread.
    """
    malloc_trim(0)
