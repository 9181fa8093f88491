"""The replicas that are made: RECOVERING until all is written, then closed, or removed again.

create ─► cells and commits, stripe by stripe, all targets at once ─► close
   └────────────► any failure: what this run made is removed, and nothing else
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from agent.ec.order import Account, Shard
from agent.errors import Code, SutureError, Unavailable
from agent.ports import Executor, Future
from agent.rpc.calls.channel import call
from agent.rpc.calls.peer import Peer
from agent.rpc.v1 import container_pb2, datanode_pb2
from agent.rpc.wire import codec
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId, ReplicaState

WRITE_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 300.0  # a tree of half a million blocks is built before the answer
UNFINISHED: Final = frozenset({ReplicaState.RECOVERING, ReplicaState.UNHEALTHY})


class Targets:
    """The targets of one reconstruction. Belongs to the thread that coordinates."""

    def __init__(
        self,
        container_id: ContainerId,
        shards: Sequence[Shard],
        dial: Callable[[str], Peer],
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
            request = datanode_pb2.CreateContainerRequest(
                container_id=self._container_id,
                replica_index=index,
                state=container_pb2.RECOVERING,
            )
            call(peer.stub.CreateContainer, request, timeout_s=WRITE_TIMEOUT_S)
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
            commit = whole.get(index)
            write = self._executor.submit(self._write, index, block_id, chunk, data, commit)
            self._writing.append(write)
            self._account.written_bytes += chunk.length_bytes

    def commit(self, index: int, block: BlockData) -> None:
        """Commit a block; one without chunks is a shard that has nothing of its group."""
        message = codec.block_message(self._container_id, block)
        call(
            self._peers[index].stub.PutBlock,
            datanode_pb2.PutBlockRequest(block=message),
            timeout_s=WRITE_TIMEOUT_S,
        )

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
            request = datanode_pb2.CloseContainerRequest(
                container_id=self._container_id, bcsid=bcsid, force=True
            )
            answer = call(peer.stub.CloseContainer, request, timeout_s=CLOSE_TIMEOUT_S)
            state = codec.parse_state(answer.replica.state, "answer.replica.state")
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
                request = datanode_pb2.DeleteContainerRequest(
                    container_id=self._container_id, force=True
                )
                call(peer.stub.DeleteContainer, request, timeout_s=WRITE_TIMEOUT_S)

    def _write(
        self,
        index: int,
        block_id: BlockId,
        chunk: ChunkInfo,
        data: memoryview,
        commit: BlockData | None,
    ) -> None:
        request = datanode_pb2.WriteChunkRequest(
            block_id=container_pb2.BlockId(
                container_id=self._container_id, local_id=block_id, replica_index=index
            ),
            chunk=codec.chunk_message(chunk),
            data=bytes(data),
        )
        if commit is not None:
            request.commit.CopyFrom(codec.block_message(self._container_id, commit))
        call(self._peers[index].stub.WriteChunk, request, timeout_s=WRITE_TIMEOUT_S)
