"""Calls of clients: allocate blocks, and commit, look up and list keys."""

from collections.abc import Collection, Sequence
from typing import Final

from scm.api.call_values import AllocatedBlockInfo, ContainerLocation
from scm.api.calls.components import ControlPlaneComponents
from scm.api.views import key_containers
from scm.state.database import StateChange
from scm.state.entities import Key
from scm.state.state_access import locked, state_change
from suture.errors import Code, RefusedError, UnavailableError

PAGE_BLOCKS_MAX: Final = 100_000  # blocks on a page: 2 MB, built well within a deadline


class ClientCalls:
    """Calls of clients.

    Each call holds the lock, and makes at most one atomic change of the state.
    """

    def __init__(self, parts: ControlPlaneComponents) -> None:
        self.access = parts.access
        self._parts = parts
        self.renew_ms = parts.writers.renew_ms

    @state_change
    def allocate(
        self,
        change: StateChange,
        client_id: str,
        sizes: Sequence[int],
        names: Sequence[str] = (),
        *,
        scheme: str = "",
    ) -> list[AllocatedBlockInfo]:
        """Allocate one block per size to a writer. Return the blocks in the order of the sizes.

        `names` are the keys that the writer stores in the blocks. `scheme` is the erasure code of
        the containers; it is empty for full copies. The datanodes of an erasure-coded block are in
        the order of their shard indexes.
        """
        self._refuse_in_safe_mode("no block is allocated")
        containers_before = {
            c.container_id for c in self._parts.state.containers.open_of(client_id)
        }
        promises = self._parts.writers.allocate(change, client_id, sizes, names, scheme=scheme)
        self._parts.observer.update_containers(
            change, containers_before
        )  # a full container may be closing now
        return [
            AllocatedBlockInfo(
                promise.allocation.container_id,
                promise.allocation.local_id,
                promise.allocation.bcsid,
                self._parts.endpoints(promise.datanode_ids),
            )
            for promise in promises
        ]

    @state_change
    def commit(
        self,
        change: StateChange,
        client_id: str,
        keys: Sequence[Key],
        *,
        may_replace: bool,
        failed: Sequence[tuple[int, str]],
    ) -> None:
        """Record keys with their blocks. Record all of them or none.

        `failed` are the replicas, as container id and datanode id, to which the writer failed to
        write.
        """
        now_ms = self._parts.clock.wall_ms()
        stamped = [
            key if key.created_at_ms else Key(key.name, key.size_bytes, now_ms, key.blocks)
            for key in keys
        ]
        if keys:  # failed replicas alone may be reported at any time
            self._refuse_in_safe_mode("no key is written")
        closing = self._parts.writers.commit(
            change, client_id, stamped, may_replace=may_replace, failed=failed
        )
        self._parts.observer.update_containers(change, closing)

    @state_change
    def finish(self, change: StateChange, client_id: str, *, close: bool) -> list[int]:
        """End a writer's session. Return the ids of the containers that it had open."""
        container_ids = self._parts.writers.finish(change, client_id, close=close)
        self._parts.observer.update_containers(change, container_ids)
        return container_ids

    @locked
    def lookup(self, name: str) -> tuple[Key, list[ContainerLocation]]:
        """Return a key, and the locations of its containers.

        Raise RefusedError(KEY_NOT_FOUND) if the key does not exist. Raise RefusedError(KEY_LOST) if
        an operator has marked a container of the key as lost.
        """
        key = self._parts.state.keys.get(name)
        if key is None:
            raise RefusedError(Code.KEY_NOT_FOUND, f"no key {name}")
        lost = self._parts.state.forgotten.lost_of(key)
        if lost:
            named = ", ".join(map(str, lost))
            raise RefusedError(
                Code.KEY_LOST,
                f"key {name} is lost: its data was in container {named}, which was marked as lost",
                hint="store it again with --replace, or remove the key",
            )
        return key, [self._located(container_id) for container_id in key_containers(key)]

    def _located(self, container_id: int) -> ContainerLocation:
        container = self._parts.state.containers.get(container_id)
        if container is None:
            return ContainerLocation(container_id, (), "", 0)
        endpoints, equal_count = self._parts.read_preference.locations(container)
        return ContainerLocation(container_id, endpoints, container.scheme, equal_count)

    def list_keys(
        self, *, prefix: str, start_after: str, count: int, container_ids: Collection[int] = ()
    ) -> tuple[list[Key], str]:
        """Return a page of keys, sorted by name, and the name after which the next page begins.

        The name is empty on the last page. The page has fewer than `count` keys if the keys have
        many blocks. With `container_ids`, keys without a block in these containers are left out of
        the page.
        """
        with self.access.lock:
            keys = self._parts.state.keys.page(
                prefix=prefix, start_after=start_after, count=count + 1
            )
        page = _bounded(keys[:count])
        next_start_after = page[-1].name if len(keys) > len(page) else ""
        wanted = frozenset(container_ids)
        return [
            key
            for key in page
            if not wanted or any(block.container_id in wanted for block in key.blocks)
        ], next_start_after

    @locked
    def lost_of(self, key: Key) -> list[int]:
        """Return the containers of a key that an operator has marked as lost.

        Return an empty list if the key is not lost.
        """
        return self._parts.state.forgotten.lost_of(key)

    def _refuse_in_safe_mode(self, what: str) -> None:
        gate = self._parts.safe_mode.reevaluate()
        if not gate.is_open:
            raise UnavailableError(
                Code.SAFE_MODE,
                f"in safe mode {what}: {gate.reason}",
                hint="suture scm safemode shows the missing reports; --leave ends safe mode",
            )


def _bounded(keys: list[Key]) -> list[Key]:
    """Return the first keys of the list that together have at most PAGE_BLOCKS_MAX blocks.

    The result always includes the first key.
    """
    block_count = 0
    for number, key in enumerate(keys):
        block_count += len(key.blocks)
        if number and block_count > PAGE_BLOCKS_MAX:
            return keys[:number]
    return keys
