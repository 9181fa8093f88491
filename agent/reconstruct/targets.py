"""The replicas that are made: RECOVERING until all is written, then closed, or removed again.

create ─► cells and commits, stripe by stripe, all targets at once ─► close
   └────────────► any failure: what this run made is removed, and nothing else
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from agent.ec.rebuild_task import Account, Shard
from agent.errors import Code, SutureError, Unavailable
from agent.ports import Executor, Future
from agent.reconstruct.shard_peer import DialShard
from agent.rpc.wire import codec
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState

UNFINISHED: Final = frozenset({ReplicaState.RECOVERING, ReplicaState.UNHEALTHY})


class Targets:
    """The targets of one reconstruction. Belongs to the thread that coordinates."""

    def __init__(
        self,
        container_id: ContainerId,
        shards: Sequence[Shard],
        dial: DialShard,
        executor: Executor,
        account: Account,
    ) -> None:
        self.shards = {shard.index: shard for shard in shards}
        self._container_id = container_id
        self._peers = {shard.index: dial(shard.address) for shard in shards}
        self._executor = executor
        self._account = account
        self._made: list[int] = []
        self._writing: list[Future] = []

    def create(self) -> None:
        """Create every target. Raises Refused when one has a replica of this container."""
        for index, peer in self._peers.items():
            peer.create_shard(self._container_id, index)
            self._made.append(index)

    def write(
        self,
        block_id: BlockId,
        cells: Mapping[int, tuple[ChunkInfo, memoryview]],
        whole: Mapping[int, BlockData],
    ) -> None:
        """Begin to write a cell to each of some targets; commit the blocks that are whole with it.

        Waits for the cells before: those of one shard are written in their order.
        """
        self.flush()
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

    def commit(self, index: int, block: BlockData) -> None:
        """Commit a block; one without chunks is a shard that has nothing of its group."""
        self._peers[index].commit_block(self._container_id, index, block)

    def flush(self) -> None:
        """Wait until what was begun is durable. Raises what went wrong."""
        writing, self._writing = self._writing, []
        errors: list[SutureError] = []
        for future in writing:  # all of them: none may still be writing when we clean up
            try:
                future.result()
            except SutureError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self, bcsid: int) -> None:
        """Close every target: its tree is written, and it counts as a replica from here on."""
        self.flush()
        for peer in self._peers.values():
            state = peer.close_shard(self._container_id, bcsid)
            if state is not ReplicaState.CLOSED:
                raise Unavailable(
                    Code.UNAVAILABLE,
                    f"container {self._container_id} is {state} at {peer.address} after its close",
                )

    def remove(self) -> None:
        """Remove what this run made and did not finish; what cannot be reached expires there."""
        with suppress(SutureError):
            self.flush()
        for index in self._made:
            peer = self._peers[index]
            with suppress(SutureError):
                report = peer.replica(self._container_id)
                state = codec.parse_state(report.state, "answer.replica.state")
                if state not in UNFINISHED or report.replica_index != index:
                    continue
                peer.delete_shard(self._container_id)
