"""Reports of failed store calls, which trigger checks of the volume or scans of the replica.

A failed read is the first sign of a failing disk, and a read by a client may fail days before the
next scan. The caller of the store receives the error in addition to the report.
"""

from dataclasses import dataclass

from merkle.replica import ContainerId
from suture.errors import Code, SutureError, VolumeFailed


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """A store call that failed.

    `is_disk` is True if the device or the index returned an error. It is False if the replica lacks
    data that it should have.
    """

    container_id: ContainerId
    is_disk: bool
    reason: str


def is_trouble(error: SutureError) -> bool:
    """Return whether a broken disk may have caused the error.

    Return False for a busy host or a full disk.
    """
    return isinstance(error, VolumeFailed) or error.code is Code.UNAVAILABLE
