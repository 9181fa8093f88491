"""Changes of a container in the pauses between copies; a copy needs an unchanged replica."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from agent.store.operations.repair import ReplicaRepair
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.errors import UnavailableError
from suture.runtime.ports import Leases


@dataclass(frozen=True, slots=True)
class ReplicaChanges:
    """Changes of one replica by one repair, each under the lease of its container.

    `must_stop` is called every `lease_timeout_s` of a wait for the lease.
    """

    store: ReplicaStore
    leases: Leases
    container_id: ContainerId
    lease_timeout_s: float
    must_stop: Callable[[], bool]

    @contextmanager
    def hold(self) -> Iterator[ReplicaRepair]:
        """Hold the lease; wait while the container is copied to another datanode, however long.

        Raise UnavailableError(BUSY) if `must_stop` returns True, or if a task other than a copy
        keeps the lease for `lease_timeout_s`. Raise RefusedError if the replica is gone.
        """
        while True:
            with ExitStack() as held:
                try:
                    held.enter_context(self.leases.hold(self.container_id, self.lease_timeout_s))
                except UnavailableError:
                    if not self.leases.is_shared(self.container_id) or self.must_stop():
                        raise
                    continue
                yield self.store.repair(self.container_id)
                return
