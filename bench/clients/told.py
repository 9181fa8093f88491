"""A process of a bench that is told what to do by lines (`ends.End` tells it); nothing of ours.

Each line is a word that names the work, and its arguments. Each is answered with one line of JSON:
the seconds that the work took. "cpu" tells the processor seconds so far.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

KEPT_BYTES: Final = 64 * 1024**2
MAPPED_BYTES_MIN: Final = 32 * 1024**2
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h


def work_when_told(work: Mapping[str, Callable[..., object]], **hello: object) -> None:
    """Say `hello`; then do the work that each line names, until there are no more lines.

    Work that returns a float has timed itself.
    """
    say(hello)
    for line in sys.stdin:
        name, *arguments = line.split()
        if name == "cpu":
            say({"s": time.process_time()})
        else:
            say({"s": seconds(work[name], *arguments)})


def seconds(work: Callable[..., object], *arguments: str) -> float:
    """Return how many seconds it takes, by its own count if it has one."""
    begun_s = time.perf_counter()
    counted = work(*arguments)
    return counted if isinstance(counted, float) else time.perf_counter() - begun_s


def say(answer: Mapping[str, Any]) -> None:
    """Answer one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def keep_heaps(*, arenas_max: int = 0) -> None:
    """Let memory that was freed stay for the next message: else each of 1 MiB is new pages.

    With `arenas_max` at most so many heaps of threads; 0: as many as malloc likes.
    """
    mallopt = ctypes.CDLL(None).mallopt
    if arenas_max:
        mallopt(M_ARENA_MAX, arenas_max)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
