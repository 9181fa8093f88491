"""Handlers of the RPCs that create, write, close and delete replicas.

A change needs the container's lease. A handler acquires the lease only after it has received the
request completely, and holds it only while it changes the store. Therefore, a slow or dead client
never blocks a lease. A replica in state RECOVERING belongs to the reconstruction that created it.
While data is written to this replica, the reconstruction counts as running.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Protocol

from grpc import ServicerContext as Context

from agent.services import report_messages
from agent.services.limits import DatanodeServerLimits
from agent.store.files.writebehind import Submit
from agent.store.operations.block_batch_write import NewBlocks
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockData, ContainerId
from suture.errors import Code, UnavailableError
from suture.runtime.ports import Leases
from suture.wire.mapping import codec, new_blocks_message
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

CREATED: Final = frozenset({container_pb2.REPLICA_STATE_UNSPECIFIED, container_pb2.OPEN})


class RecoveryTracker(Protocol):
    """Records which replicas are being reconstructed here (see
    `agent.host.recovering_replicas`)."""

    def create(self, container_id: ContainerId, replica_index: int) -> None:
        """Create a replica in state RECOVERING. The caller must hold the container's lease.

        Raise SutureError if the container already has a replica or a reconstruction on this
        datanode.
        """
        ...

    def record_write(self, container_id: int) -> None:
        """Record that data was written to the container."""
        ...

    def closed(self, container_id: int) -> None:
        """Record that the container was closed."""
        ...


@dataclass(eq=False)
class WriteHandlers:
    """Handlers of CreateContainer, WriteChunk, PutBlock, WriteBlocks, CloseContainer,
    DeleteContainer.

    `recoveries` is None if no reconstruction may create a replica on this datanode. `submit`
    executes writes of data in another thread.
    """

    store: ReplicaStore
    leases: Leases
    _: KW_ONLY
    limits: DatanodeServerLimits
    recoveries: RecoveryTracker | None = None
    submit: Submit | None = None

    def __post_init__(self) -> None:
        self.decoders: Mapping[str, Callable[[bytes], Any]] = {
            "WriteBlocks": new_blocks_message.decode
        }

    def CreateContainer(
        self, request: pb.CreateContainerRequest, context: Context
    ) -> pb.CreateContainerResponse:
        """Create an empty replica in state OPEN, or in state RECOVERING for a reconstruction."""
        container_id = codec.parse_container_id(request.container_id)
        index = codec.parse_replica_index(request.replica_index)
        recoveries = self.recoveries if request.state == container_pb2.RECOVERING else None
        if recoveries is None and request.state not in CREATED:
            raise codec.malformed("state", f"no replica is created here in state {request.state}")
        with self._hold(container_id, context):
            if recoveries is None:
                self.store.create_container(container_id, replica_index=index)
            else:
                recoveries.create(container_id, index)
        return pb.CreateContainerResponse()

    def WriteChunk(self, request: pb.WriteChunkRequest, context: Context) -> pb.WriteChunkResponse:
        """Write one chunk. If the request contains a commit, also commit the block of the chunk."""
        container_id, block_id = codec.parse_block_key(request.block_id, "block_id")
        chunk = codec.parse_written_chunk(request.chunk, "chunk")
        block = None
        if request.HasField("commit"):
            owner, block = parse_commit(request.commit, "commit")
            if (owner, block.block_id) != (container_id, block_id):
                raise codec.malformed("commit.block_id", "is not the block of this chunk")
        with self._hold(container_id, context):
            self.store.writer(container_id).write_chunk(block_id, chunk, request.data, commit=block)
        self._note_write(container_id)
        return pb.WriteChunkResponse()

    def PutBlock(self, request: pb.PutBlockRequest, context: Context) -> pb.PutBlockResponse:
        """Commit a block whose chunks are all written."""
        container_id, block = parse_commit(request.block, "block")
        with self._hold(container_id, context):
            self.store.writer(container_id).put_block(block)
        self._note_write(container_id)
        return pb.PutBlockResponse()

    def WriteBlocks(self, requests: Iterator[Any], context: Context) -> pb.WriteBlocksResponse:
        """Write new blocks of one container, and return the number of committed blocks.

        A request is a stream of messages. The blocks that are complete after a message are
        committed before the next message is read.
        """
        owner: ContainerId | None = None
        new: NewBlocks | None = None
        count = 0
        try:
            for request in requests:
                for piece, data in new_blocks_message.parse(request):
                    if new is None:
                        owner = piece.container_id
                        new = self.store.begin_blocks(owner, self.submit)
                    if piece.container_id != owner:
                        raise codec.malformed("blocks.block_id", "is of another container")
                    new.add_chunks(piece.block, data, is_whole=piece.is_whole)
                if owner is not None and new is not None and new.whole_count:
                    with self._hold(owner, context):
                        count += new.commit()
                    self._note_write(owner)
            if new is not None and new.is_cut_off:
                raise codec.malformed("blocks", "the stream ended before its last block")
        finally:
            if new is not None:
                new.discard()
        return pb.WriteBlocksResponse(block_count=count)

    def CloseContainer(
        self, request: pb.CloseContainerRequest, context: Context
    ) -> pb.CloseContainerResponse:
        """Close the replica and build its checksum tree. Return the report of the replica."""
        container_id = codec.parse_container_id(request.container_id)
        bcsid = codec.parse_bcsid(request.bcsid, "bcsid")
        with self._hold(container_id, context):
            facts = self.store.close_container(container_id, bcsid=bcsid, force=request.force)
        if self.recoveries is not None:
            self.recoveries.closed(container_id)
        return pb.CloseContainerResponse(replica=report_messages.replica_report(facts))

    def DeleteContainer(
        self, request: pb.DeleteContainerRequest, context: Context
    ) -> pb.DeleteContainerResponse:
        """Delete the replica.

        Raise RefusedError if the replica is open or not empty, unless the request sets `force`.
        """
        container_id = codec.parse_container_id(request.container_id)
        with self._hold(container_id, context):
            self.store.delete_container(container_id, force=request.force)
        return pb.DeleteContainerResponse()

    def _note_write(self, container_id: ContainerId) -> None:
        """Record that data was written to the replica, because a running reconstruction may own the
        replica."""
        if self.recoveries is not None:
            self.recoveries.record_write(container_id)

    def _hold(self, container_id: ContainerId, context: Context) -> AbstractContextManager[None]:
        """Return a context manager that holds the container's lease.

        It waits for the lease until the caller's deadline, at most `lease_timeout_s`. Raise
        UnavailableError(CANCELLED) if the caller has disconnected.
        """
        remaining_s = context.time_remaining()
        timeout_s = self.limits.lease_timeout_s
        if remaining_s is not None:
            timeout_s = min(timeout_s, remaining_s)
        if not context.is_active():
            raise UnavailableError(Code.CANCELLED, "the caller disconnected")
        return self.leases.hold(container_id, timeout_s)


def parse_commit(message: container_pb2.BlockData, where: str) -> tuple[ContainerId, BlockData]:
    """Return the container id and the block of a commit. Raise RefusedError if the commit is
    invalid."""
    return codec.parse_block(message, where, parse=codec.parse_written_chunk)
