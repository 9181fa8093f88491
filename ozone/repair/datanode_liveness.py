"""Detects whether a datanode has a volume open, because nothing may be repaired then.

RocksDB locks the file LOCK of each open database (fcntl). The kernel reports the lock without any
write, whichever process or container holds it. Ozone has no lock of its own on a data directory. A
volume with schema V2 only has no database that is always open, so no lock proves there that the
datanode is stopped.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from suture.errors import Code, RefusedError

LOCK: Final = "LOCK"
_FLOCK: Final = struct.Struct("@hhqqi0q")  # struct flock of 64-bit Linux
_WHOLE_FILE: Final = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock_holder(database: Path) -> int | None:
    """Return the pid of the process that has a database open, 0 if it is not visible from here;
    None if it is not open, or does not exist. Raise OSError.
    """
    try:
        fd = os.open(database / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*_WHOLE_FILE))
    finally:
        os.close(fd)
    kind, _, _, _, process_id = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(0, process_id)


def has_lock(database: Path) -> bool:
    """Return True if a database was ever opened here, so that its lock is evidence."""
    return (database / LOCK).exists()


def check_stopped(databases: list[Path]) -> None:
    """Raise RefusedError while one of these databases is open, or OSError."""
    for database in databases:
        process_id = lock_holder(database)
        if process_id is not None:
            who = f"process {process_id}" if process_id else "another process"
            raise RefusedError(
                Code.VOLUME_IN_USE,
                f"cannot repair: the datanode is running: {who} has {database} open",
                hint="stop the datanode of this host first; others can run",
            )
