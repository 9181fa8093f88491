"""Tracks whether changes of the state can be written to the disk.

An almost full disk accepts small changes between large ones that fail. Therefore, the state counts
as writable again only after QUIET_S seconds without a failure. The problem is logged once, and not
at each change.
"""

import time
from collections.abc import Callable
from typing import Final

import lmdb
import structlog

from suture.errors import Code, UnavailableError

QUIET_S: Final = 60.0

_log = structlog.get_logger("suture.scm")


class Writability:
    """Records whether changes of the state can be written to the disk, and why not.

    Callers must hold the control plane's lock. `trouble` may be read without the lock.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._failed_at_s = 0.0
        self.trouble = ""
        """The reason why changes are rejected. It is empty if they are accepted."""

    def record_failure(self, error: str) -> None:
        """Record that a change of the state could not be written to the disk."""
        if not self.trouble:
            _log.error("state_write_failed", error=error)
        self.trouble = error
        self._failed_at_s = self._monotonic_s()

    def succeeded(self) -> None:
        """Record that a change of the state was written to the disk."""
        if self.trouble and self._monotonic_s() - self._failed_at_s >= QUIET_S:
            self.trouble = ""
            _log.info("state_write_recovered")


def refusal_of(error: lmdb.Error | OSError) -> UnavailableError:
    """Return the error to raise for a change that could not be written because of `error`."""
    if isinstance(error, lmdb.MapFullError):
        hint = "restart with a larger lmdb_map_bytes"
        return UnavailableError(
            Code.DISK_OUT_OF_SPACE, "cannot write the state: its database is full", hint=hint
        )
    # Not DISK_OUT_OF_SPACE even for a full disk: with this code, a client retries until the SCM has
    # space.
    hint = (
        "free space on the disk of the state" if isinstance(error, lmdb.DiskError | OSError) else ""
    )
    return UnavailableError(Code.UNAVAILABLE, f"the state cannot be written: {error}", hint=hint)
