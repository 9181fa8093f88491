"""Records the changes to a tree of directories, as the kernel reports them, while a test runs."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_MOVED = 0x2, 0x4, 0x8, 0xC0
IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_Q_OVERFLOW = 0x100, 0x200, 0x400, 0x4000
CHANGES = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED | IN_CREATE | IN_DELETE | IN_DELETE_SELF
EVENT = struct.Struct("iIII")
EVENTS_BYTES_MAX = 1024**2


@contextmanager
def changes(root: Path) -> Iterator[list[str]]:
    """Yield a list. At the end of the `with` block, it is filled with all changes below `root`
    during the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    seen: list[str] = []
    try:
        places = {}
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            watch = libc.inotify_add_watch(fd, os.fsencode(folder), CHANGES)
            assert watch >= 0, os.strerror(ctypes.get_errno())
            places[watch] = folder
        yield seen
        try:
            data = os.read(fd, EVENTS_BYTES_MAX)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, length = EVENT.unpack_from(data, at)
            name = data[at + EVENT.size : at + EVENT.size + length].rstrip(b"\0").decode()
            seen.append(f"{places.get(watch, root)}/{name}: {mask:#x}")
            at += EVENT.size + length
    finally:
        os.close(fd)
