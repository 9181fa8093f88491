"""The process-wide mask of the modes of new files.

A daemon started by hand has the umask of that shell. With 0 its directories could be changed by
every user, and the next start refuses such a volume; with 0777 it cannot use what it has made.
"""

import os
from typing import Final

DAEMON_UMASK: Final = 0o027  # as UMask= of the systemd units: group may read, others nothing
OWNER: Final = 0o700
OTHERS_WRITE: Final = 0o002


def set_daemon_umask() -> None:
    """Give all files of a daemon the modes that its systemd unit would give them."""
    os.umask(DAEMON_UMASK)


def bound_umask() -> None:
    """Keep the user's umask, except that the owner may use new files and others not change them."""
    mask = os.umask(DAEMON_UMASK)
    os.umask((mask | OTHERS_WRITE) & ~OWNER)
