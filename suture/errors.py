"""All errors that functions raise on purpose, classified by what the caller must do.

    SutureError
    ├─ UnavailableError  retry later; conditions may change       -> UNAVAILABLE and similar
    ├─ RefusedError      do not retry unchanged; invalid request  -> INVALID_ARGUMENT and similar
    │  ├─ KeyNotFound    there is no such key
    │  ├─ KeyExists      the key exists, and the put had no `replace`
    │  ├─ KeyLost        an operator marked a container of the key as lost
    │  └─ KeyReplaced    the key was replaced during a read: discard what was read
    └─ VolumeFailed      stop using this volume                   -> INTERNAL
       └─ BlockFailed    leave this block's files alone, continue with other blocks

Corruption is not an error but a value, `scanner.finding.ScanFinding`, because finding corruption is
the agent's job. A broken invariant is an `assert`: the task fails with a stack trace and is
counted.

`code` is stable. It appears as the wire's `ErrorInfo.reason`, in the CLI's JSON, and as a label of
metrics. Messages are lower case, name the facts with units, and have no full stop; `hint` tells an
operator what to do.

The client raises ValueError or TypeError before any request if an argument can never be valid. It
raises OSError if a local file cannot be read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

_KIB: Final = 1024
EXTRAS: Final = {  # package -> the extra that installs it
    "pyarrow": "scm",
    "rocksdict": "ozone",
    "gssapi": "ozone-secure",
}


class Code(StrEnum):
    """Stable names of errors. If Ozone has a result code for the same error, its name is used."""

    # RefusedError
    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    CONTAINER_NOT_FOUND = "CONTAINER_NOT_FOUND"
    CONTAINER_EXISTS = "CONTAINER_EXISTS"
    CONTAINER_NOT_OPEN = "CONTAINER_NOT_OPEN"
    UNCLOSED_CONTAINER_IO = "UNCLOSED_CONTAINER_IO"
    INVALID_CONTAINER_STATE = "INVALID_CONTAINER_STATE"
    DELETE_ON_OPEN_CONTAINER = "DELETE_ON_OPEN_CONTAINER"
    DELETE_ON_NON_EMPTY_CONTAINER = "DELETE_ON_NON_EMPTY_CONTAINER"
    NO_SUCH_BLOCK = "NO_SUCH_BLOCK"
    BCSID_MISMATCH = "BCSID_MISMATCH"
    UNKNOWN_BCSID = "UNKNOWN_BCSID"
    UNABLE_TO_FIND_CHUNK = "UNABLE_TO_FIND_CHUNK"
    INVALID_WRITE_SIZE = "INVALID_WRITE_SIZE"
    OVERLAPPING_CHUNK = "OVERLAPPING_CHUNK"
    CHUNK_GAP = "CHUNK_GAP"
    CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
    NO_SUCH_ALGORITHM = "NO_SUCH_ALGORITHM"
    BLOCK_NOT_COMMITTED = "BLOCK_NOT_COMMITTED"
    WRONG_DATANODE = "WRONG_DATANODE"
    WRONG_CLUSTER = "WRONG_CLUSTER"
    STALE_TERM = "STALE_TERM"
    DEADLINE_PASSED = "DEADLINE_PASSED"
    INELIGIBLE = "INELIGIBLE"
    KEY_NOT_FOUND = "KEY_NOT_FOUND"
    KEY_EXISTS = "KEY_EXISTS"
    KEY_LOST = "KEY_LOST"  # one of the key's containers was declared lost
    KEY_REPLACED = "KEY_REPLACED"  # the key was replaced while it was read
    STALE_PLAN = "STALE_PLAN"
    NOT_PROVEN = "NOT_PROVEN"  # no other datanode has proved that it has the data to delete
    INVALID_CONFIG = "INVALID_CONFIG"
    UNAUTHENTICATED = "UNAUTHENTICATED"  # the certificate has no identity, or is no longer valid
    PERMISSION_DENIED = "PERMISSION_DENIED"  # the role in the certificate does not permit the call
    VOLUME_IN_USE = "VOLUME_IN_USE"
    INCONSISTENT_VOLUME = "INCONSISTENT_VOLUME"
    CONTAINER_INTERNAL_ERROR = "CONTAINER_INTERNAL_ERROR"  # a defect of the server; see its log
    # UnavailableError
    DISK_OUT_OF_SPACE = "DISK_OUT_OF_SPACE"
    BUSY = "BUSY"
    UNAVAILABLE = "UNAVAILABLE"
    NOT_ENOUGH_NODES = "NOT_ENOUGH_NODES"
    NOT_LEADER = "NOT_LEADER"
    SAFE_MODE = "SAFE_MODE"
    CANCELLED = "CANCELLED"
    # VolumeFailed
    IO_EXCEPTION = "IO_EXCEPTION"
    UNABLE_TO_READ_METADATA_DB = "UNABLE_TO_READ_METADATA_DB"


class SutureError(Exception):
    """Base class of all errors of Suture. Only its subclasses are raised."""

    def __init__(self, code: Code, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.facts = {name: str(value) for name, value in facts.items()}


class UnavailableError(SutureError):
    """Raised for a failure that may be temporary. The caller may try again later."""


class RefusedError(SutureError):
    """Raised for an invalid request. The caller must not repeat the request unchanged."""


class VolumeFailed(SutureError):
    """Raised if a volume has failed. The caller must stop using it."""


class BlockFailed(VolumeFailed):
    """Raised if the files of one block fail, because the disk has a bad sector or another object is
    at the path.

    The volume is suspect but not failed, so work on other blocks continues.
    """


def size_text(count_bytes: float) -> str:
    """Return a number of bytes as text in binary units, such as `5.0 GiB`."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < _KIB:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} TiB"


def missing_extra(error: ModuleNotFoundError, who: str, *, extra: str = "") -> RefusedError:
    """Return the error for a feature (`who`) that needs an optional package which is not installed.

    The message names the extra (optional dependencies of `pip install`) that installs the package.
    `extra` is its name if several extras have the package. If no extra has the package, raise
    `error` again.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return RefusedError(
        Code.INELIGIBLE,
        f"{who} needs the package {package}, which is not installed",
        hint=f"pip install 'suture[{extra or EXTRAS[package]}]'"
        + (", or install the package suture-verify" if EXTRAS[package] == "scm" else ""),
    )


class KeyNotFound(RefusedError):
    """Raised if no key has this name."""


class KeyExists(RefusedError):
    """Raised if the key exists, and the put did not allow to replace it."""


class KeyLost(RefusedError):
    """Raised if an operator has marked a container with data of the key as lost."""


class KeyReplaced(RefusedError):
    """Raised if the key was replaced while it was read. The caller must discard the data and start
    again."""


KINDS: Final[dict[Code, type[RefusedError]]] = {
    Code.KEY_NOT_FOUND: KeyNotFound,
    Code.KEY_EXISTS: KeyExists,
    Code.KEY_LOST: KeyLost,
    Code.KEY_REPLACED: KeyReplaced,
}


@contextmanager
def by_kind() -> Iterator[None]:
    """Raise each SutureError of the `with` block as the subclass for its code, such as KeyNotFound,
    if there is one."""
    try:
        yield
    except SutureError as error:
        kind = KINDS.get(error.code)
        if kind is None or isinstance(error, kind):
            raise
        raise kind(error.code, str(error), hint=error.hint, **error.facts) from error
