"""LMDB's lock file in memory instead of on a disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_file_in_memory(name: Path) -> Iterator[None]:
    """Make LMDB keep its table of readers in memory while it opens an environment in the body.

    LMDB writes to that table through a map of its lock file `name`, which may not exist. If a file
    system copies on write (btrfs), or the file is new, each such write needs space, and on a full
    disk SIGBUS ends the process. No other process reads a table in memory: the caller keeps other
    writers out, and readers in other processes need a protection of their own.

    Raise OSError.
    """
    fd = os.memfd_create(name.name, os.MFD_CLOEXEC)
    try:
        name.symlink_to(f"/proc/self/fd/{fd}")
        yield
    finally:
        os.close(fd)
        name.unlink(missing_ok=True)
