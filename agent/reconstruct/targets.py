"""Targets of a reconstruction: the datanodes that receive the rebuilt shards.

A target shard is in state RECOVERING until all data is written. Then the shard is closed. Cells and
commits are written stripe by stripe to all targets concurrently, and small blocks in batches. If a
step fails, the shards that this reconstruction has created are removed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState
from suture.ec.rebuild_task import RebuildStats, ShardLocation
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.ports import Executor, Future
from suture.wire.clients.replica_peer import DialShard
from suture.wire.clients.shard_writer import WholeBlock
from suture.wire.mapping import codec

TOGETHER_COUNT_MAX: Final = 256  # small blocks per target that are committed together
TOGETHER_BYTES_MAX: Final = 4 * 1024**2  # small blocks that wait, for all targets together
UNFINISHED: Final = frozenset({ReplicaState.RECOVERING, ReplicaState.UNHEALTHY})


class RebuildTargets:
    """The target shards of one reconstruction. Only one thread may call the methods."""

    def __init__(
        self,
        container_id: ContainerId,
        shards: Sequence[ShardLocation],
        dial: DialShard,
        executor: Executor,
        account: RebuildStats,
    ) -> None:
        self.shards = {shard.index: shard for shard in shards}
        self._container_id = container_id
        self._peers = {shard.index: dial(shard) for shard in shards}
        self._executor = executor
        self._account = account
        self._made: list[int] = []
        self._writing: list[Future] = []
        self._waiting: dict[int, list[WholeBlock]] = {}  # small blocks, by shard index
        self._waiting_bytes = 0

    def create(self) -> None:
        """Create all target shards. Raise RefusedError if a target already has a replica of the
        container."""
        for index, peer in self._peers.items():
            peer.create_shard(self._container_id, index)
            self._made.append(index)

    def write(
        self,
        block_id: BlockId,
        cells: Mapping[int, tuple[ChunkInfo, memoryview]],
        whole: Mapping[int, BlockData],
    ) -> None:
        """Start to write the cells of one stripe to the targets, after all earlier writes have
        finished.

        `cells` has a chunk and its data for each shard index. `whole` has the record of the block
        for each shard whose data is complete with these cells; this record is committed with the
        cells. The cells of one shard must be written in order. Raise the first error of the earlier
        writes.
        """
        self._wait()
        for index, (chunk, data) in cells.items():
            write = self._executor.submit(
                self._peers[index].write_cell,
                self._container_id,
                index,
                block_id,
                chunk,
                data,
                whole.get(index),
            )
            self._writing.append(write)
            self._account.written_bytes += chunk.length_bytes

    def add(self, blocks: Mapping[int, WholeBlock]) -> None:
        """Add a small block for each shard index in `blocks` to the next batch.

        The batch is written when it is large enough, or when the targets are closed.
        """
        for index, (block, data) in blocks.items():
            self._waiting.setdefault(index, []).append((block, data))
            self._waiting_bytes += len(data)
            self._account.written_bytes += len(data)
        is_many = any(len(waiting) >= TOGETHER_COUNT_MAX for waiting in self._waiting.values())
        if is_many or self._waiting_bytes >= TOGETHER_BYTES_MAX:
            self._send()

    def _send(self) -> None:
        """Wait for earlier writes, then start to write the batch of small blocks."""
        self._wait()
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for index, blocks in waiting.items():
            peer = self._peers[index]
            write = self._executor.submit(peer.write_blocks, self._container_id, index, blocks)
            self._writing.append(write)

    def _wait(self) -> None:
        """Wait until the targets have synced all earlier writes. Raise the first error."""
        writing, self._writing = self._writing, []
        errors: list[SutureError] = []
        for future in writing:  # wait for all, so that none is still writing during cleanup
            try:
                future.result()
            except SutureError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self, bcsid: int) -> None:
        """Write the remaining blocks, and close all target shards. The SCM then counts them as
        replicas.

        Raise UnavailableError if a shard is not CLOSED afterwards.
        """
        self._send()
        self._wait()
        for peer in self._peers.values():
            state = peer.close_shard(self._container_id, bcsid)
            if state is not ReplicaState.CLOSED:
                raise UnavailableError(
                    Code.UNAVAILABLE,
                    f"container {self._container_id} is {state} on {peer.address} after its close",
                )

    def remove(self) -> None:
        """Remove the unfinished shards of this reconstruction.

        Shards on unreachable datanodes are not removed. Their datanodes delete them after a
        timeout.
        """
        with suppress(SutureError):
            self._wait()
        for index in self._made:
            peer = self._peers[index]
            with suppress(SutureError):
                report = peer.replica(self._container_id)
                state = codec.parse_state(report.state, "answer.replica.state")
                if state not in UNFINISHED or report.replica_index != index:
                    continue
                peer.delete_shard(self._container_id)
