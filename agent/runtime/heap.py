"""The C library's heaps: few of them, and what was freed is given back.

Going through a hundred thousand replicas takes tens of megabytes for a moment, in whichever thread
does it, and glibc keeps them for each thread. Another C library may have neither call: then both
functions do nothing.
"""

import ctypes
from contextlib import suppress
from typing import Final

ARENAS_MAX: Final = 2  # what allocates most holds the interpreter lock; glibc: eight for each core
M_ARENA_MAX: Final = -8  # malloc.h


def bound() -> None:
    """Let all threads share a few heaps; call it before there are threads."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS_MAX)


def give_back() -> None:
    """Give freed memory back to the system: after work on all replicas."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
