"""The methods of a peer that a reconcile needs, whatever protocol it speaks."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from agent.rpc.calls.peer import TransferCost
from agent.rpc.v1 import container_pb2
from agent.rpc.wire.hashes import BlockRows
from merkle.checksum import U64s
from merkle.descent import BlockRange
from merkle.diff import in_scope, indexes_of
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId
from merkle.tree import Tree, TreeSummary, select_blocks


class ReplicaPeer(Protocol):
    """A holder of a replica (`agent.rpc.calls.peer.Peer`). Each method raises SutureError."""

    def summary(self, container_id: ContainerId, meter: TransferCost | None = None) -> TreeSummary:
        """Return the summary of its tree."""
        ...

    def ranges(
        self, container_id: ContainerId, starts: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, U64s]:
        """Return the summary, and the checksum of each range that begins at `starts`."""
        ...

    def blocks(
        self,
        container_id: ContainerId,
        ranges: Sequence[BlockRange] = (),
        meter: TransferCost | None = None,
    ) -> BlockRows:
        """Return a row per block and tombstone in `ranges`; all rows without `ranges`."""
        ...

    def chunks(
        self, container_id: ContainerId, block_ids: U64s, meter: TransferCost | None = None
    ) -> tuple[TreeSummary, Tree]:
        """Return the summary, and the tree of the named blocks."""
        ...

    def tree(self, container_id: ContainerId, meter: TransferCost | None = None) -> Tree:
        """Return its whole tree."""
        ...

    def block(
        self, container_id: ContainerId, block_id: BlockId, meter: TransferCost | None = None
    ) -> BlockData:
        """Return the metadata of one committed block."""
        ...

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its bytes, verified against the window checksums it came with."""
        ...

    def replica(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        """Return the report of its replica: its state, and the commit id that it claims."""
        ...


@runtime_checkable
class BatchReplicaPeer(Protocol):
    """A lender that serves several blocks or chunks in one call."""

    def named_blocks(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> Mapping[BlockId, BlockData]:
        """Return the metadata of the blocks that it can return in one call. Raise SutureError."""
        ...

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[tuple[BlockId, int]]
    ) -> Mapping[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
        """Return the chunks that it can return in one call, by block and offset, with bytes
        verified against the window checksums they came with. Raise SutureError."""
        ...


def answer_about_blocks(tree: Tree, ranges: Sequence[BlockRange]) -> BlockRows:
    """Return a lender's answer about its blocks in `ranges`, or all, from its tree."""
    chosen = in_scope(tree.block_ids, ranges or None)
    return BlockRows(
        tree.summary(),
        tree.block_ids[chosen],
        tree.block_checksums[chosen],
        tree.deleted[chosen],
    )


def answer_about_chunks(tree: Tree, block_ids: U64s) -> tuple[TreeSummary, Tree]:
    """Return a lender's answer about the chunks of the named blocks, from its tree."""
    indexes = indexes_of(tree.block_ids, block_ids)
    return tree.summary(), select_blocks(tree, np.sort(indexes[indexes >= 0]))
