"""Failures met by callers of the store, forwarded to checks and scans.

A failed read is the first sign of a failing disk, and a client meets it days before the next scan.
The caller still gets the error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from agent.errors import Code, SutureError, UnavailableError, VolumeFailed
from merkle.replica import ContainerId

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """A failed call. `is_disk` means that the device or the index returned an error; otherwise the
    replica lacks data that it should have."""

    container_id: ContainerId
    is_disk: bool
    reason: str


class FailureListener(Protocol):
    """A handle of a replica, with a callback for failures."""

    container_id: ContainerId
    on_trouble: Callable[[StoreFailure], None]


S = TypeVar("S", bound=FailureListener)


def reports_failures(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a method on one replica so that it reports its failures; they are raised as well."""

    @wraps(call)
    def noticing(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(self, *args, **kwargs)
        except (UnavailableError, VolumeFailed) as error:
            if is_trouble(error):
                is_disk = isinstance(error, VolumeFailed)
                self.on_trouble(StoreFailure(self.container_id, is_disk, str(error)))
            raise

    return noticing


def is_trouble(error: SutureError) -> bool:
    """Return whether the disk is at fault; a busy host or a full disk is not."""
    return isinstance(error, VolumeFailed) or error.code is Code.UNAVAILABLE
