"""Deletes blocks in the way in which a command of the control plane is executed."""

from collections.abc import Iterable

from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId


def remove_blocks(
    store: ReplicaStore, container_id: ContainerId, block_ids: Iterable[BlockId]
) -> int:
    """Delete blocks of a closed replica; return how many of them existed."""
    return len(store.free_blocks(container_id, set(block_ids)).checked().freed)
