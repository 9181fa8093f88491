"""Handle of one replica: what every operation on it needs."""

from collections.abc import Callable

from agent.store.options import StoreOptions
from agent.store.trouble import StoreFailure
from agent.store.volumes.volume import Volume
from merkle.replica import ContainerId


class ReplicaHandle:
    """One replica on its volume. Failed calls are also reported to `on_trouble`."""

    def __init__(
        self,
        volume: Volume,
        options: StoreOptions,
        container_id: ContainerId,
        on_trouble: Callable[[StoreFailure], None],
    ) -> None:
        self._volume = volume
        self._options = options
        self.container_id = container_id
        self.on_trouble = on_trouble
        self._paths = volume.paths(container_id)
