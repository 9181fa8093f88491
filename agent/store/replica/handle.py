"""Handle of one replica: what every operation on it needs."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.store.files.layout import ReplicaPaths
from agent.store.options import StoreOptions
from agent.store.trouble import StoreFailure
from agent.store.volumes.volume import Volume
from merkle.replica import ContainerId


@dataclass(eq=False)
class ReplicaHandle:
    """One replica on its volume. Failed calls of a client are also reported to `on_trouble`."""

    volume: Volume
    options: StoreOptions
    container_id: ContainerId
    on_trouble: Callable[[StoreFailure], None]

    @property
    def paths(self) -> ReplicaPaths:
        """The replica's files."""
        return self.volume.paths(self.container_id)
