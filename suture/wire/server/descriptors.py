"""The limit of open files of the process, and the number of connections that it allows."""

import resource
from contextlib import suppress
from typing import Final

import structlog

DESCRIPTORS_MAX: Final = 2**20  # more than connections and files can use, if there is no hard limit

log = structlog.get_logger()


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return the new limit.

    Call the function before there are connections. The soft limit of 1,024 exists for programs that
    use select(2) (systemd's NEWS 240), which this program does not use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int:
    """Return the maximum number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def connections_that_fit(wanted: int, *, server_count: int = 1) -> int:
    """Return the maximum number of connections of each of `server_count` servers, at most `wanted`.
    Half of the descriptors is reserved for files."""
    fitting = limit() // 2 // server_count
    if fitting >= wanted:
        return wanted
    log.warning("connections_max_lowered", wanted=wanted, used=fitting, open_files_max=limit())
    return fitting
