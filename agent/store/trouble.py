"""What callers of the store run into, told to those who look closer: checks and scans.

A read that fails is the first sign of a failing disk, and it is a client who meets it, days before
the next scan would. The caller still gets the error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from agent.errors import Code, SutureError, Unavailable, VolumeFailed
from merkle.replica import ContainerId

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One call that failed. `is_disk`: the device or the index answered with an error; otherwise
    the replica has not what it should have."""

    container_id: ContainerId
    is_disk: bool
    reason: str


class Troubled(Protocol):
    """Who is told."""

    on_trouble: Callable[[Trouble], None]


S = TypeVar("S", bound=Troubled)


def noticed(
    call: Callable[Concatenate[S, ContainerId, P], R],
) -> Callable[Concatenate[S, ContainerId, P], R]:
    """Let a method on one replica tell of its failures; they are raised all the same."""

    @wraps(call)
    def noticing(self: S, container_id: ContainerId, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(self, container_id, *args, **kwargs)
        except (Unavailable, VolumeFailed) as error:
            if is_trouble(error):
                is_disk = isinstance(error, VolumeFailed)
                self.on_trouble(Trouble(container_id, is_disk, str(error)))
            raise

    return noticing


def is_trouble(error: SutureError) -> bool:
    """Whether the disk is to blame; a busy host or a full disk is not."""
    return isinstance(error, VolumeFailed) or error.code is Code.UNAVAILABLE
