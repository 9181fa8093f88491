"""A peer as a reconcile sees it, whatever it speaks: what survey and fetch ask of one."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from agent.rpc.calls.peer import Meter
from agent.rpc.v1 import container_pb2
from agent.rpc.wire.hashes import BlockRows
from merkle.checksum import U64s
from merkle.descent import BlockRange
from merkle.diff import in_scope, indexes_of
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Summary, Tree, take


class Lender(Protocol):
    """One holder of a replica (`agent.rpc.calls.peer.Peer`). Each method raises SutureError."""

    def summary(self, container_id: ContainerId, meter: Meter | None = None) -> Summary:
        """Return the summary of its tree."""
        ...

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: Meter | None = None
    ) -> tuple[Summary, U64s]:
        """Return the summary, and the checksum of each range that begins at `starts`."""
        ...

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: Meter | None = None,
    ) -> BlockRows:
        """Return a row per block and tombstone in `ranges`, or of all."""
        ...

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: Meter | None = None
    ) -> tuple[Summary, Tree]:
        """Return the summary, and the tree of the named blocks."""
        ...

    def tree(self, container_id: ContainerId, meter: Meter | None = None) -> Tree:
        """Return its whole tree."""
        ...

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: Meter | None = None
    ) -> BlockData:
        """Return the metadata of one committed block."""
        ...

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: Meter | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, which have the window checksums it came with."""
        ...

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return what it reports about its replica: its state, and the commit id it claims."""
        ...


@runtime_checkable
class LendingSeveral(Protocol):
    """A lender that serves several blocks or chunks in one call."""

    def named_blocks(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> Mapping[BlockId, BlockData]:
        """Return the metadata of those that it can serve so. Raises SutureError."""
        ...

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> Mapping[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Return those that it can serve so, by block and offset, with their bytes, which have the
        window checksums they came with. Raises SutureError."""
        ...


def told_blocks(tree: Tree, ranges: Sequence[BlockRange]) -> BlockRows:
    """Return what a lender whose tree is here answers about its blocks in `ranges`, or all."""
    chosen = in_scope(tree.block_ids, ranges or None)
    return BlockRows(
        tree.summary(),
        tree.block_ids[chosen],
        tree.block_checksums[chosen],
        tree.deleted[chosen],
    )


def told_chunks(tree: Tree, block_ids: U64s) -> tuple[Summary, Tree]:
    """Return what such a lender answers about the chunks of the named blocks."""
    indexes = indexes_of(tree.block_ids, block_ids)
    return tree.summary(), take(tree, np.sort(indexes[indexes >= 0]))
