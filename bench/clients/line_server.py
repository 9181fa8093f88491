"""A benchmark process controlled by lines from `BenchProcess`, without product code.

Each line is the name of a task with its arguments. Each is answered with one line of JSON: the
seconds that the task took. "cpu" returns the processor seconds so far.
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
    """Print `hello`. Then run the task that each line of stdin names, until stdin ends.

    If a task returns a float, this is its duration in seconds; otherwise, the caller measures it.
    """
    say(hello)
    for line in sys.stdin:
        name, *arguments = line.split()
        if name == "cpu":
            say({"s": time.process_time()})
        else:
            say({"s": seconds(work[name], *arguments)})


def seconds(work: Callable[..., object], *arguments: str) -> float:
    """Run a task; return its duration in seconds. If the task returns a float, return this."""
    begun_s = time.perf_counter()
    counted = work(*arguments)
    return counted if isinstance(counted, float) else time.perf_counter() - begun_s


def say(answer: Mapping[str, Any]) -> None:
    """Print one answer."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def keep_heaps(*, arenas_max: int = 0) -> None:
    """Make malloc keep freed memory for later messages. Otherwise, each message of 1 MiB needs new
    pages from the kernel.

    `arenas_max` limits the heaps of threads; 0 = malloc's own limit.
    """
    mallopt = ctypes.CDLL(None).mallopt
    if arenas_max:
        mallopt(M_ARENA_MAX, arenas_max)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
