"""What this process holds of the machine's memory, and how it gives it back.

Going through a hundred thousand replicas takes tens of megabytes for a moment, in whichever thread
does it: glibc keeps them for each thread, and every page of a mapped index that was looked at stays
mapped. What carries data is the opposite: as glibc comes, each message of a megabyte is new memory
from the kernel, page by page, and goes back at once; that took half of the processor time of a
gRPC stream (`make bench NAME=replicate`). Another C library may not have these calls: then nothing
is kept and nothing is given back.
"""

import ctypes
import os
from contextlib import suppress
from mmap import MADV_DONTNEED
from pathlib import Path
from typing import Final

ARENAS_MAX: Final = 2  # what allocates most holds the interpreter lock; glibc: eight for each core
KEPT_BYTES: Final = 32 * 1024**2  # free at the end of a heap: the messages of a few streams
MAPPED_BYTES_MIN: Final = 32 * 1024**2  # glibc's maximum: above any message, a chunk and more
M_TRIM_THRESHOLD: Final = -1  # these three: malloc.h
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
MAPS: Final = Path("/proc/self/maps")


def share_heaps() -> None:
    """Let all threads share a few heaps, which keep what streams use again and again; call it
    before there are threads."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS_MAX)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def give_back() -> None:
    """Give freed memory back to the system: after work on all replicas, or on a whole one."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def let_go_of_pages(file: Path) -> None:
    """Take the pages of a file that is mapped shared out of this process's memory; they stay in
    the page cache, and come back when they are looked at.

    The caller makes sure that the file stays mapped meanwhile: else its addresses may be another's.
    """
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for start, end in _mapped_at(os.fsencode(file)):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)


def _mapped_at(file: bytes) -> list[tuple[int, int]]:
    """Return the addresses at which a file is mapped shared: privately mapped pages may be the
    only copy of what was written to them."""
    places = []
    for line in MAPS.read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == file and fields[1].endswith(b"s"):
            start, _, end = fields[0].partition(b"-")
            places.append((int(start, 16), int(end, 16)))
    return places
