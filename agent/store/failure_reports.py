"""Failures met by callers of the store, forwarded to checks and scans.

A failed read is the first sign of a failing disk, and a client meets it days before the next scan.
The caller still gets the error.
"""

from dataclasses import dataclass

from merkle.replica import ContainerId
from suture.errors import Code, SutureError, VolumeFailed


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """A failed call. `is_disk` means that the device or the index returned an error; otherwise the
    replica lacks data that it should have."""

    container_id: ContainerId
    is_disk: bool
    reason: str


def is_trouble(error: SutureError) -> bool:
    """Return whether the disk is at fault; a busy host or a full disk is not."""
    return isinstance(error, VolumeFailed) or error.code is Code.UNAVAILABLE
