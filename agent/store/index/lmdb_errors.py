"""Classification of index errors: a full disk, a busy host, or a broken volume."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from suture.errors import Code, SutureError, UnavailableError, VolumeFailed
from suture.runtime.durable import OUT_OF_SPACE, SHORT_OF_RESOURCES

DATA_FILE: Final = "data.mdb"  # LMDB's file name
LOCK_FILE: Final = "lock.mdb"
NEARLY_FULL_BYTES: Final = 4 * 1024**2


class MapFull(Exception):
    """Raised if a transaction needs a larger LMDB map."""


@contextmanager
def index_errors(path: Path) -> Iterator[None]:
    """Convert LMDB errors to SutureError, or to `MapFull`."""
    try:
        yield
    except lmdb.Error as error:
        raise store_error(error, path) from error


def store_error(error: lmdb.Error, path: Path) -> Exception:
    """Return `MapFull` if an LMDB error says that the map is full, and otherwise a SutureError."""
    return MapFull() if isinstance(error, lmdb.MapFullError) else _error_of(error, path)


def _error_of(error: lmdb.Error, path: Path) -> SutureError:
    message = f"{path}: {error}"
    if error.code in OUT_OF_SPACE or (error.code == errno.EIO and _is_nearly_full(path)):
        return UnavailableError(
            Code.DISK_OUT_OF_SPACE, message, hint="free space on the volume or add a volume"
        )
    if error.code in SHORT_OF_RESOURCES or isinstance(error, lmdb.ReadersFullError):
        return UnavailableError(Code.BUSY, message)
    return VolumeFailed(
        Code.UNABLE_TO_READ_METADATA_DB, message, hint="check the disk, then run suture fsck"
    )


def _is_nearly_full(path: Path) -> bool:
    """Return whether the disk is nearly full, or the index file has nearly reached its size limit.

    LMDB reports a short write as EIO. In these two cases, EIO does not mean that the disk is
    broken.
    """
    space = os.statvfs(path)
    file_bytes_max = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if space.f_bavail * space.f_frsize < NEARLY_FULL_BYTES:
        return True
    if file_bytes_max == resource.RLIM_INFINITY:
        return False
    return file_bytes_max - (path / DATA_FILE).stat().st_size < NEARLY_FULL_BYTES
