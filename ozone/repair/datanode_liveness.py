"""Detects if a datanode has a volume open, because a repair must not run at the same time.

RocksDB locks the file LOCK of each open database (fcntl). A query of this lock writes nothing, and
shows a lock that any process or container holds. Ozone has no other lock on a data directory. A
volume with only schema V2 has no database that is always open. There, no lock can show that the
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
    """Return the pid of the process that has a database open.

    Return 0 if that process is not visible in this pid namespace, and None if the database is not
    open or does not exist. Raise OSError if the lock cannot be queried.
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
    """Return whether the directory of a database has the file LOCK.

    Only then does the lock show if a process has the database open.
    """
    return (database / LOCK).exists()


def check_stopped(databases: list[Path]) -> None:
    """Raise RefusedError if one of these databases is open.

    Raise OSError if this cannot be determined.
    """
    for database in databases:
        process_id = lock_holder(database)
        if process_id is not None:
            who = f"process {process_id}" if process_id else "another process"
            raise RefusedError(
                Code.VOLUME_IN_USE,
                f"cannot repair: the datanode is running: {who} has {database} open",
                hint="stop the datanode of this host first; others can run",
            )
