"""Drops the pages of a file from the page cache, and counts those in the page cache."""

import ctypes
import mmap
import os
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def drop_pages(path: Path) -> None:
    """Write a file's pages back and drop them from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def cached_pages(path: Path) -> int:
    """Return how many pages of a file are resident (mincore)."""
    size_bytes = path.stat().st_size
    page_count = -(-size_bytes // mmap.PAGESIZE)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY) as view,
    ):
        start = ctypes.c_char.from_buffer(view)
        resident = (ctypes.c_ubyte * page_count)()
        address = ctypes.c_void_p(ctypes.addressof(start))
        if libc.mincore(address, ctypes.c_size_t(size_bytes), resident):
            raise OSError(ctypes.get_errno(), "mincore failed")
        del start
        return sum(page & 1 for page in resident)
