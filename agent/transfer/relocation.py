"""One replica from a retiring volume to another one of the same host, as it travels between hosts.

The bytes are read past the page cache, checked against their rows while they are written, and all
of it is durable before it is served from there. The caller holds the lease all the time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.errors import SutureError
from agent.ports import Executor
from agent.store.files.writebehind import Submit
from agent.store.index.facts import ReplicaFacts
from agent.store.operations.arrival import Announced, Arrival, Received
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import Arrived, Importer
from agent.transfer.outgoing import Export
from agent.transfer.parts import read_part
from merkle.checksum import Algorithm
from merkle.replica import ContainerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """What every move of this datanode uses."""

    store: ReplicaStore
    executor: Executor
    cluster_id: str
    datanode_id: str
    algorithm: Algorithm
    now_ms: Callable[[], int]

    def move(self, container_id: ContainerId, *, stop: Callable[[], bool]) -> Arrived:
        """Copy a replica and serve the copy. Raises SutureError: then nothing has changed.

        CHECKSUM_MISMATCH: there is damage that no scan has found yet.
        """
        export = Export(
            store=self.store,
            container_id=container_id,
            cluster_id=self.cluster_id,
            datanode_id=self.datanode_id,
            executor=self.executor,
            stop=stop,
        )
        importer = Importer(
            store=_Moved(self.store),
            leases=_Held(),
            executor=self.executor,
            cluster_id=self.cluster_id,
            algorithm=self.algorithm,
            now_ms=self.now_ms,
        )
        try:
            return importer.receive(map(read_part, export.stream()))
        except SutureError as error:
            raise (export.failure or error) from error


@dataclass(frozen=True, slots=True)
class _Moved:
    """A store in which a replica arrives that is there already, on a volume that retires."""

    store: ReplicaStore

    def begin_arrival(self, announced: Announced, submit: Submit | None = None) -> Arrival:
        """Reserve room on another volume. Its tree goes on where it is."""
        following = self.store.generation(announced.container_id) + 1
        return self.store.services.begin_move(replace(announced, generation=following), submit)

    def finish_arrival(self, arrival: Arrival, received: Received) -> ReplicaFacts:
        """Serve it from there."""
        return self.store.services.finish_move(arrival, received)


class _Held:
    """The lease, which the caller has already."""

    @contextmanager
    def hold(self, container_id: ContainerId, timeout_s: float = 0.0) -> Iterator[None]:
        """Go on."""
        del container_id, timeout_s
        yield

    share = hold

    def is_shared(self, container_id: ContainerId) -> bool:
        """Nobody asks."""
        del container_id
        return False
