"""Sets the umask of the process, which limits the modes of new files.

A daemon that is started by hand inherits the shell's umask. With the umask 0, every user could
change the daemon's directories, and the next start rejects such a volume. With 0777, the daemon
cannot use its own files.
"""

import os
from typing import Final

DAEMON_UMASK: Final = 0o027  # as UMask= of the systemd units: the group may read, others nothing
OWNER: Final = 0o700
OTHERS_WRITE: Final = 0o002


def set_daemon_umask() -> None:
    """Set the umask that the systemd units set, so that a daemon creates its files with the same
    modes."""
    os.umask(DAEMON_UMASK)


def bound_umask() -> None:
    """Adjust the umask of the user: the owner always has access to new files, and users outside the
    group cannot write to them."""
    mask = os.umask(DAEMON_UMASK)
    os.umask((mask | OTHERS_WRITE) & ~OWNER)
