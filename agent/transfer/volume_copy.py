"""Copies a replica from a retiring volume to another volume of the same host.

The data is read past the page cache, and verified against its rows while it is written. The copy is
synced before it is served. The caller holds the container's lease during the complete move.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from agent.store.files.writebehind import Submit
from agent.store.index.facts import ReplicaFacts
from agent.store.operations.replica_import import ImportSpec, ImportVerdict, ReplicaImport
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import ImportResult, ReplicaImporter
from agent.transfer.outgoing import ReplicaExport
from agent.transfer.parts import read_part
from merkle.replica import ContainerId
from suture.errors import SutureError
from suture.runtime.ports import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCopier:
    """Moves replicas between the volumes of this datanode."""

    store: ReplicaStore
    executor: Executor
    now_ms: Callable[[], int]

    def move(self, container_id: ContainerId, *, stop: Callable[[], bool]) -> ImportResult:
        """Copy a replica to another volume, and serve the copy instead of the original.

        Raise SutureError if this fails; nothing is then changed. The code CHECKSUM_MISMATCH means
        that the replica has damage that no scan has found yet.
        """
        export = ReplicaExport(
            store=self.store,
            container_id=container_id,
            executor=self.executor,
            stop=stop,
        )
        importer = ReplicaImporter(
            store=self.store,
            target=_MoveTarget(self.store),
            leases=_AlreadyLeased(),
            executor=self.executor,
            now_ms=self.now_ms,
        )
        try:
            return importer.receive(map(read_part, export.stream()))
        except SutureError as error:
            raise (export.failure or error) from error


@dataclass(frozen=True, slots=True)
class _MoveTarget:
    """Accepts an imported replica although the same store still has the original on a retiring
    volume."""

    store: ReplicaStore

    def begin_arrival(self, announced: ImportSpec, submit: Submit | None = None) -> ReplicaImport:
        """Reserve space for the copy on another volume.

        The generation, which is the version number of the tree, is increased by one.
        """
        following = self.store.generation(announced.container_id) + 1
        return self.store.services.begin_move(replace(announced, generation=following), submit)

    def finish_arrival(self, arrival: ReplicaImport, received: ImportVerdict) -> ReplicaFacts:
        """Commit the copy, and serve it instead of the original."""
        return self.store.services.finish_move(arrival, received)


class _AlreadyLeased:
    """Replacement for the container leases, for a caller that already holds the container's
    lease."""

    @contextmanager
    def hold(self, container_id: ContainerId, timeout_s: float = 0.0) -> Iterator[None]:
        """Do nothing, because the caller holds the lease."""
        del container_id, timeout_s
        yield

    share = hold

    def is_shared(self, container_id: ContainerId) -> bool:
        """Return False, because the caller already holds the container's lease."""
        del container_id
        return False
