"""Whether a datanode has a volume open: nothing is repaired beneath one.

RocksDB locks the file LOCK of each database that it has open (fcntl); the kernel says so without
anything being written, whoever holds it and in whatever container of the system. Ozone has no lock
of its own on a data directory. A volume of schema V2 alone has no database that is always open, so
that no lock proves there that the datanode is stopped.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from agent.errors import Code, Refused

LOCK: Final = "LOCK"
_FLOCK: Final = struct.Struct("@hhqqi0q")  # struct flock of 64-bit Linux
_WHOLE_FILE: Final = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock_holder(database: Path) -> int | None:
    """Return the process that has a database open, 0 for one that cannot be seen from here; None
    for nobody, also where there is no database. Raises OSError."""
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
    """Return whether a database was ever opened here, so that its lock proves something."""
    return (database / LOCK).exists()


def check_stopped(databases: list[Path]) -> None:
    """Refuse while one of these databases is open. Raises Refused, OSError."""
    for database in databases:
        process_id = lock_holder(database)
        if process_id is not None:
            who = f"process {process_id}" if process_id else "another process"
            raise Refused(
                Code.VOLUME_IN_USE,
                f"{who} has {database} open: the datanode is running",
                hint="stop the datanode of this host first; the others go on",
            )
