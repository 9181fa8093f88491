"""The lease for changes by a repair. A repair waits while another datanode copies the container."""

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
    """Changes of one replica by one repair. Each change holds the container's lease.

    A change that waits for the lease calls `must_stop` every `lease_timeout_s` seconds, and ends if
    the result is True.
    """

    store: ReplicaStore
    leases: Leases
    container_id: ContainerId
    lease_timeout_s: float
    must_stop: Callable[[], bool]

    @contextmanager
    def hold(self) -> Iterator[ReplicaRepair]:
        """Hold the lease for a `with` block, which receives the handle for repairs.

        While the container is being copied to another datanode, wait without a time limit. Raise
        UnavailableError(BUSY) if `must_stop` returns True, or if a task other than a copy holds the
        lease for `lease_timeout_s` seconds. Raise RefusedError if the replica no longer exists.
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
