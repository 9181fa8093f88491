"""The process-wide umask, which limits the modes of new files.

A daemon started by hand inherits the shell's umask. With umask 0, every user could change the
daemon's directories, and the next start rejects such a volume. With 0777, the daemon cannot use its
own files.
"""

import os
from typing import Final

DAEMON_UMASK: Final = 0o027  # as UMask= of the systemd units: the group may read, others nothing
OWNER: Final = 0o700
OTHERS_WRITE: Final = 0o002


def set_daemon_umask() -> None:
    """Give all files of a daemon the modes that its systemd unit would set."""
    os.umask(DAEMON_UMASK)


def bound_umask() -> None:
    """Clear the bits of the user's umask that deny the owner access to new files. Set the bit that
    prevents users outside the group from writing to them."""
    mask = os.umask(DAEMON_UMASK)
    os.umask((mask | OTHERS_WRITE) & ~OWNER)
