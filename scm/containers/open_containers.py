"""Sessions of writers: the allocation of blocks in containers, and the commits of keys.

A container is open for one session at a time. Its bcsids (block commit sequence ids) are therefore
the history of one writer: a replica with a higher bcsid has everything that a replica with a lower
bcsid has.

A container is sealed, that is, it accepts no new blocks, when it is full, when one of its datanodes
is not reachable, or when its writer reports a failed replica. It is closed when all its allocated
blocks are committed, when its session requests the close, or when it has been idle for a while. If
no other datanodes are available, it continues without the failed replica, as long as a majority of
its replicas accepts writes.

An open container reserves the space that it may still need, so a small cluster has space for few
open containers. If there is no space for another one, a session takes over a container without
uncommitted blocks from another session. The other session gets its next block in another container.
If all open containers have uncommitted blocks, the session must wait (BUSY).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import structlog

from scm.cluster import lifecycle
from scm.cluster.allocate import choose_nodes
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.containers.block_deletion import BlockDeletion
from scm.state.database import StateChange
from scm.state.entities import (
    Allocation,
    Container,
    ContainerState,
    Key,
    block_bytes_max,
    replica_bytes,
)
from suture.ec.scheme import parse_scheme
from suture.errors import Code, RefusedError, UnavailableError, size_text

BLOCKS_PER_CONTAINER_MAX: Final = 1_000_000
SEALED_IDLE_MS: Final = 30_000  # idle time of a sealed container that waits for commits
RENEWALS: Final = 4  # renewals per session timeout: three may be lost

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class AllocatedBlock:
    """A block allocated to a writer, and the datanodes to which the writer must write it."""

    allocation: Allocation
    datanode_ids: tuple[str, ...]


class WriterSessions(ControlComponent):
    """Allocates and commits blocks, and ends sessions of writers.

    Callers must hold the control plane's lock. This class sets containers that must be closed to
    CLOSING; another component sends the close commands.
    """

    def __init__(self, basis: DecisionContext, deletions: BlockDeletion) -> None:
        super().__init__(basis)
        self._deletions = deletions
        self._active_at_s: dict[int, float] = {}

    @property
    def renew_ms(self) -> int:
        """Return the interval in ms at which a session must call to keep its containers open."""
        return self._sealed_idle_ms // RENEWALS

    @property
    def _sealed_idle_ms(self) -> int:
        return min(SEALED_IDLE_MS, self._options.session_idle_ms)

    def allocate(
        self,
        change: StateChange,
        client_id: str,
        sizes: Sequence[int],
        names: Sequence[str] = (),
        *,
        scheme: str = "",
    ) -> list[AllocatedBlock]:
        """Allocate one block per size to a session, in the order of the sizes.

        Allocate all or none. `names` are the keys that the writer will store in the blocks. With a
        `scheme`, the blocks are block groups of erasure-coded containers.

        Raise RefusedError(KEY_EXISTS) if one of the keys exists, before the writer writes any data.
        Raise RefusedError(INVALID_WRITE_SIZE) if a block is larger than a container. Raise
        UnavailableError(NOT_ENOUGH_NODES) if too few datanodes have space, and
        UnavailableError(BUSY) while other sessions use all the space.
        """
        self._renew(client_id)
        for name in names:
            if self._state.keys.get(name) is not None:
                raise _key_exists(name)
        bytes_max = block_bytes_max(scheme, self._options.container_bytes_max)
        for size_bytes in sizes:
            if size_bytes > bytes_max:
                raise RefusedError(
                    Code.INVALID_WRITE_SIZE,
                    f"cannot allocate a block of {size_text(size_bytes)} ({size_bytes} bytes): "
                    f"a container has at most {size_text(bytes_max)} ({bytes_max} bytes)",
                    hint="split the data into several blocks",
                    block_bytes_max=bytes_max,
                )
        return [self._allocate_block(change, client_id, size_bytes, scheme) for size_bytes in sizes]

    def commit(
        self,
        change: StateChange,
        client_id: str,
        keys: Sequence[Key],
        *,
        may_replace: bool,
        failed: Sequence[tuple[int, str]],
    ) -> list[int]:
        """Record keys whose blocks a writer has stored on datanodes.

        Return the ids of the closed containers. Either all keys are recorded, or none. A repeated
        commit has no effect; a client repeats a commit if the response was lost. A commit without
        keys renews the session. `failed` are the replicas to which the writer failed to write, as
        pairs of container id and datanode id.

        Raise RefusedError(KEY_EXISTS) if a key exists and `may_replace` is False. Raise
        RefusedError(CONTAINER_NOT_OPEN) if the container of a block was closed. Raise
        RefusedError(BLOCK_NOT_COMMITTED) if a block is not allocated to the session.
        """
        self._renew(client_id)
        touched: set[int] = set()
        for container_id, datanode_id in failed:
            self._leave_behind(change, client_id, container_id, datanode_id)
            touched.add(container_id)
        for key in keys:
            touched |= self._commit_key(change, client_id, key, may_replace=may_replace)
        self._note_success(touched, {datanode_id for _container_id, datanode_id in failed})
        return self._close_settled(change, touched)

    def _renew(self, client_id: str) -> None:
        """Renew all containers of a session, so that they are not closed as idle.

        The writer of a large key writes to its first container early and commits it only with the
        last one. Without the renewal, the first container would be closed in the meantime.
        """
        now_s = self._clock.monotonic_s()
        for container in self._state.containers.open_of(client_id) if client_id else ():
            self._active_at_s[container.container_id] = now_s

    def finish(self, change: StateChange, client_id: str, *, close: bool) -> list[int]:
        """End a session. Return the ids of the containers that it had open.

        A container is closed now if `close` is True, if it has uncommitted blocks, or if it is
        sealed. Otherwise, it remains open, and another session continues to write to it.
        """
        containers = self._state.containers.open_of(client_id)
        for container in containers:
            owes = self._state.allocations.has_any(container.container_id)
            if close or owes or container.is_sealed:
                self.end(change, container, "writer finished")
            else:
                change.put(self._state.containers, replace(container, client_id=""))
        return [container.container_id for container in containers]

    def end(self, change: StateChange, container: Container, reason: str) -> None:
        """Change the state of an open container to CLOSING. `reason` is shown to operators."""
        change.on_commit(lambda: self._active_at_s.pop(container.container_id, None))
        closing = lifecycle.end_writes(container, reason, now_ms=self._clock.wall_ms())
        if closing is not container:
            change.put(self._state.containers, closing)
            change.on_commit(
                lambda: _log.info(
                    "container_closing", container_id=container.container_id, reason=reason
                )
            )

    def end_idle(self, change: StateChange) -> list[int]:
        """Change containers that have been idle for too long to CLOSING. Return their ids."""
        now_s = self._clock.monotonic_s()
        ended = []
        containers = self._state.containers.open_all()
        still_open = {container.container_id for container in containers}
        for container_id in self._active_at_s.keys() - still_open:
            del self._active_at_s[container_id]
        for container in containers:
            active_at_s = self._active_at_s.setdefault(container.container_id, now_s)
            is_sealed = container.is_sealed or not self._is_well(container) or _is_short(container)
            allowed_ms = self._sealed_idle_ms if is_sealed else self._options.session_idle_ms
            if (now_s - active_at_s) * 1000 > allowed_ms:
                self.end(change, container, "no writer asked for it for too long")
                ended.append(container.container_id)
        return ended

    def _allocate_block(
        self, change: StateChange, client_id: str, size_bytes: int, scheme: str
    ) -> AllocatedBlock:
        taken_bytes = replica_bytes(scheme, size_bytes)
        container = self._container_for(change, client_id, taken_bytes, scheme)
        grown = replace(
            container,
            allocated_bytes=container.allocated_bytes + taken_bytes,
            allocated_bcsid=container.allocated_bcsid + 1,
        )
        allocation = Allocation(
            container_id=grown.container_id,
            local_id=change.next_id("next_local_id"),
            bcsid=grown.allocated_bcsid,
            size_bytes=size_bytes,
            client_id=client_id,
        )
        change.put(self._state.containers, grown)
        change.put(self._state.allocations, allocation)
        self._active_at_s[grown.container_id] = self._clock.monotonic_s()
        return AllocatedBlock(allocation, grown.pipeline)

    def _container_for(
        self, change: StateChange, client_id: str, taken_bytes: int, scheme: str
    ) -> Container:
        for container in self._state.containers.open_of(client_id):
            if container.is_sealed or container.scheme != scheme:
                continue
            if self._takes(container, taken_bytes):
                return container
            change.put(self._state.containers, replace(container, is_sealed=True))
            self._close_settled(change, {container.container_id})
        for container in self._state.containers.open_of(""):  # released by a finished session
            if _is_short(container) and not self._goes_on(container):
                self.end(change, container, "a replica was left behind")
            elif container.scheme == scheme and self._takes(container, taken_bytes):
                return replace(container, client_id=client_id)
        try:
            return self._new_container(change, client_id, scheme)
        except UnavailableError as error:
            return self._container_of_others(change, client_id, taken_bytes, scheme, error)

    def _container_of_others(
        self,
        change: StateChange,
        client_id: str,
        taken_bytes: int,
        scheme: str,
        no_room: UnavailableError,
    ) -> Container:
        """Take over a container of another session, the longest idle first. Return the container.

        Only containers without uncommitted blocks are taken over. If none fits, such containers are
        closed one by one until there is space for a new container. Raise UnavailableError(BUSY) if
        the uncommitted blocks of other sessions are the only obstacle, otherwise raise `no_room`.
        """
        opened = [one for one in self._state.containers.open_all() if one.client_id != client_id]
        opened.sort(key=lambda one: (self._active_at_s.get(one.container_id, 0), one.container_id))
        has_any = self._state.allocations.has_any
        settled = [one for one in opened if not has_any(one.container_id)]
        for container in settled:
            is_fit = container.scheme == scheme and not container.is_sealed
            if is_fit and self._takes(container, taken_bytes):
                return replace(container, client_id=client_id)
        for container in settled:
            self.end(change, container, "another session needed its room")
            with suppress(UnavailableError):
                return self._new_container(change, client_id, scheme)
        needed_bytes = self._options.container_bytes_max
        free = [replace(one, scheduled_bytes=0) for one in self._cases.candidates()]
        roomy_count = sum(one.has_room(needed_bytes) for one in free)
        if len(settled) == len(opened) or roomy_count < self._replica_count(scheme):
            raise no_room
        raise UnavailableError(
            Code.BUSY,
            f"cannot open another container of {size_text(needed_bytes)}: {len(opened)} are "
            "open for other sessions",
            hint="try again later, add space, or lower container_bytes_max",
        ) from no_room

    def _takes(self, container: Container, taken_bytes: int) -> bool:
        return (
            container.allocated_bytes + taken_bytes <= self._options.container_bytes_max
            and container.allocated_bcsid < BLOCKS_PER_CONTAINER_MAX
            and self._is_well(container)
            and (not _is_short(container) or self._goes_on(container))
        )

    def _goes_on(self, container: Container) -> bool:
        """Return True if a container accepts more blocks although one of its replicas failed.

        It does so only if there are too few other datanodes, because a new container would then
        also have a replica on the failed datanode. Each block written during the failure would need
        a new container, and each of these containers would have to be closed, copied and repaired
        later.
        """
        if container.scheme or not _has_majority(container):
            return False
        willing = [c for c in self._cases.candidates() if not self._nodes.is_avoided(c.datanode_id)]
        return len(willing) < container.replication_factor

    def _note_success(self, container_ids: set[int], failed_ids: set[str]) -> None:
        for container_id in container_ids:
            container = self._state.containers.get(container_id)
            for node in () if container is None else container.pipeline:
                if node not in failed_ids:
                    self._nodes.write_succeeded(node)

    def _is_well(self, container: Container) -> bool:
        return all(self._nodes.is_reachable(node) for node in container.pipeline)

    def _replica_count(self, scheme: str) -> int:
        return parse_scheme(scheme).shard_count if scheme else self._options.replication_factor

    def _new_container(self, change: StateChange, client_id: str, scheme: str) -> Container:
        count = self._replica_count(scheme)
        container_id = change.next_id("next_container_id")
        while self._state.replicas.of(container_id):
            # A datanode has data under this id that this state does not contain, perhaps because
            # the state was restored from a backup. Two containers under one id would be mixed
            # permanently.
            container_id = change.next_id("next_container_id")
        pipeline = choose_nodes(
            self._cases.candidates(),
            count=count,
            needed_bytes=self._options.container_bytes_max,
            container_id=container_id,
        )
        change.on_commit(
            lambda: _log.info(
                "container_allocated", container_id=container_id, datanode_ids=pipeline
            )
        )
        return Container(
            container_id=container_id,
            state=ContainerState.OPEN,
            replication_factor=count,
            sequence_id=0,
            state_since_ms=self._clock.wall_ms(),
            pipeline=tuple(pipeline),
            client_id=client_id,
            scheme=scheme,
        )

    def _commit_key(
        self, change: StateChange, client_id: str, key: Key, *, may_replace: bool
    ) -> set[int]:
        known = self._state.keys.get(key.name)
        if known is not None and known.blocks == key.blocks:
            return set()
        if known is not None and not may_replace:
            raise _key_exists(key.name)
        for block in key.blocks:
            allocation = self._allocation(client_id, key.name, block.container_id, block.local_id)
            if (allocation.bcsid, True) != (
                block.bcsid,
                block.length_bytes <= allocation.size_bytes,
            ):
                raise RefusedError(
                    Code.MALFORMED_REQUEST,
                    f"block {block.local_id} of key {key.name} has bcsid {block.bcsid} and "
                    f"{block.length_bytes} bytes, allocated were bcsid {allocation.bcsid} and "
                    f"{allocation.size_bytes} bytes",
                )
            self._finish_commit(change, allocation, block.length_bytes)
        if known is not None:
            self._deletions.retire(change, [known])
        change.put(self._state.keys, key)
        return {block.container_id for block in key.blocks}

    def _allocation(
        self, client_id: str, key_name: str, container_id: int, local_id: int
    ) -> Allocation:
        allocation = self._state.allocations.get((container_id, local_id))
        if allocation is not None and allocation.client_id == client_id:
            return allocation
        container = self._state.containers.get(container_id)
        if container is None:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"cannot commit key {key_name}: container {container_id} does not exist",
                container_id=container_id,
            )
        if container.state is not ContainerState.OPEN:
            raise RefusedError(
                Code.CONTAINER_NOT_OPEN,
                f"cannot commit key {key_name}: container {container_id} was closed before "
                f"block {local_id} was committed ({container.close_reason or container.state})",
                hint="write the key again",
                container_id=container_id,
            )
        raise RefusedError(
            Code.BLOCK_NOT_COMMITTED,
            f"cannot commit key {key_name}: block {local_id} of container {container_id} is "
            f"not allocated to session {client_id}, or is already committed",
            container_id=container_id,
        )

    def _finish_commit(
        self, change: StateChange, allocation: Allocation, length_bytes: int
    ) -> None:
        container = self._state.containers.get(allocation.container_id)
        assert container is not None, "an allocation never outlives its container"
        stored_bytes = replica_bytes(container.scheme, length_bytes)
        change.put(
            self._state.containers,
            replace(
                container,
                sequence_id=max(container.sequence_id, allocation.bcsid),
                committed_bytes=container.committed_bytes + stored_bytes,
                committed_count=container.committed_count + 1,
            ),
        )
        change.remove(self._state.allocations, (allocation.container_id, allocation.local_id))
        self._active_at_s[container.container_id] = self._clock.monotonic_s()

    def _leave_behind(
        self, change: StateChange, client_id: str, container_id: int, datanode_id: str
    ) -> None:
        container = self._state.containers.get(container_id)
        if container is None:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"cannot record a failed replica: container {container_id} does not exist",
                container_id=container_id,
            )
        if container.state is not ContainerState.OPEN or container.client_id != client_id:
            return  # already closing, or no longer this session's
        if datanode_id not in container.pipeline:
            if _is_short(container):
                return  # a session reports all its failed replicas each time
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"container {container_id} has no replica on datanode {datanode_id}",
                container_id=container_id,
            )
        self._nodes.write_failed(datanode_id)
        change.on_commit(
            lambda: _log.warning(
                "replica_dropped_by_writer", container_id=container_id, datanode_id=datanode_id
            )
        )
        left = tuple(node for node in container.pipeline if node != datanode_id)
        short = replace(container, pipeline=left)
        # A failed replica gets no later block: its commit id would then cover the missed blocks.
        can_go_on = not container.is_sealed and self._goes_on(short)
        change.put(
            self._state.containers, short if can_go_on else replace(container, is_sealed=True)
        )

    def _close_settled(self, change: StateChange, container_ids: set[int]) -> list[int]:
        """Change those of the containers to CLOSING that are sealed and have no uncommitted blocks.

        Return their ids.
        """
        closed = []
        for container_id in sorted(container_ids):
            container = self._state.containers.get(container_id)
            if (
                container is not None
                and container.state is ContainerState.OPEN
                and container.is_sealed
                and not self._state.allocations.has_any(container_id)
            ):
                self.end(change, container, "full, or a replica was left behind")
                closed.append(container_id)
        return closed


def _has_majority(container: Container) -> bool:
    """Return True if any majority of the remaining replicas is also a majority of all replicas."""
    return len(container.pipeline) // 2 >= container.replication_factor // 2


def _is_short(container: Container) -> bool:
    """Return True if an open container continues although one of its replicas failed."""
    return not container.scheme and len(container.pipeline) < container.replication_factor


def _key_exists(name: str) -> RefusedError:
    return RefusedError(Code.KEY_EXISTS, f"key {name} exists", hint="overwrite it with --replace")
