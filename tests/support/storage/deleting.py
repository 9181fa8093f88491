"""Deletes of blocks, as an order of the control plane carries them out."""

from collections.abc import Iterable

from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId


def remove_blocks(
    store: ReplicaStore, container_id: ContainerId, block_ids: Iterable[BlockId]
) -> int:
    """Delete blocks of a closed replica; return how many were there."""
    return len(store.free_blocks(container_id, set(block_ids)).checked().freed)
