"""Handle of one replica: its volume, the options of the store, and a callback for disk failures."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from agent.store.failure_reports import StoreFailure, is_trouble
from agent.store.files.layout import ReplicaPaths
from agent.store.options import StoreOptions
from agent.store.volumes.volume import Volume
from merkle.replica import ContainerId
from suture.errors import UnavailableError, VolumeFailed

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class ReplicaHandle:
    """A replica on its volume.

    `on_trouble` is called when a call of a client fails because of the disk.
    """

    volume: Volume
    options: StoreOptions
    container_id: ContainerId
    on_trouble: Callable[[StoreFailure], None]

    @property
    def paths(self) -> ReplicaPaths:
        """Paths of the replica's files."""
        return self.volume.paths(self.container_id)


S = TypeVar("S", bound=ReplicaHandle)


def reports_failures(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a method so that it reports a disk failure to `on_trouble`.

    The wrapped method then raises the error.
    """

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
