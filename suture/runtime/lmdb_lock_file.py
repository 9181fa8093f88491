"""Puts LMDB's lock file into memory instead of on a disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_file_in_memory(name: Path) -> Iterator[None]:
    """Make LMDB keep its table of readers in memory, if it opens an environment in the `with`
    block.

    LMDB maps its lock file `name` and writes to the table of readers through the map. On a file
    system that copies on write (btrfs), or in a new file, each such write needs disk space. If the
    disk is full, the kernel ends the process with SIGBUS.

    Other processes cannot read a table in memory. Therefore, the caller must exclude other writers,
    and must protect readers in other processes in another way. Raise OSError if the file in memory
    cannot be created.
    """
    fd = os.memfd_create(name.name, os.MFD_CLOEXEC)
    try:
        name.symlink_to(f"/proc/self/fd/{fd}")
        yield
    finally:
        os.close(fd)
        name.unlink(missing_ok=True)
