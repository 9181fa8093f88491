"""Detects the types of file systems (statfs(2))."""

import ctypes
import os
from pathlib import Path
from typing import Final

STATFS_WORDS: Final = 32  # larger than the kernel's structure
BTRFS: Final = 0x9123_683E  # linux/magic.h
IN_MEMORY: Final = frozenset({0x0102_1994, 0x8584_58F6})  # tmpfs, ramfs (linux/magic.h)


def is_in_memory(fd: int) -> bool:
    """Return True if a file system stores its files in memory only. Raise OSError if the type
    cannot be read."""
    return _type_of(fd) in IN_MEMORY


def is_on_btrfs(directory: Path) -> bool:
    """Return True if a directory is on btrfs, where overwriting needs free space. Raise OSError if
    the type cannot be read."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _type_of(fd) == BTRFS
    finally:
        os.close(fd)


def _type_of(fd: int) -> int:
    facts = (ctypes.c_ulong * STATFS_WORDS)()  # the first word is the type of the file system
    library = ctypes.CDLL(None, use_errno=True)
    if library.fstatfs(fd, facts) != 0:
        raise OSError(ctypes.get_errno(), "fstatfs failed")
    return facts[0]
