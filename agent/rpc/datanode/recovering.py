"""The service of a datanode on which reconstructions may make replicas.

A RECOVERING replica belongs to the run that created it: what writes to it shows that the run lives.
"""

from typing import Any, Protocol

import grpc

from agent.rpc.datanode.server import DatanodeService
from agent.rpc.v1 import container_pb2
from agent.rpc.v1 import datanode_pb2 as pb
from agent.rpc.wire import codec
from merkle.replica import ContainerId


class Recoveries(Protocol):
    """The replicas that reconstructions are making here (`agent.host.recoveries`)."""

    def create(self, container_id: ContainerId, replica_index: int) -> None:
        """Create a RECOVERING replica. The container's lease is held. Raise SutureError."""
        ...

    def wrote(self, container_id: int) -> None:
        """Note a write to a container."""
        ...

    def closed(self, container_id: int) -> None:
        """Note that a container was closed."""
        ...


class RecoveringService(DatanodeService):
    """The handlers of `DatanodeService`, and RECOVERING replicas."""

    def __init__(self, *arguments: Any, recoveries: Recoveries, **options: Any) -> None:
        """The rest is as in `DatanodeService`."""
        super().__init__(*arguments, **options)
        self._recoveries = recoveries

    def CreateContainer(  # noqa: N802
        self, request: pb.CreateContainerRequest, context: grpc.ServicerContext
    ) -> pb.CreateContainerResponse:
        """Create a replica, empty and open, or RECOVERING for a reconstruction."""
        if request.state != container_pb2.RECOVERING:
            return super().CreateContainer(request, context)
        container_id = codec.parse_container_id(request.container_id)
        index = codec.parse_replica_index(request.replica_index)
        with self._hold(container_id, context):
            self._recoveries.create(container_id, index)
        return pb.CreateContainerResponse()

    def WriteChunk(  # noqa: N802
        self, request: pb.WriteChunkRequest, context: grpc.ServicerContext
    ) -> pb.WriteChunkResponse:
        """Write one chunk; a reconstruction that writes is alive."""
        answer = super().WriteChunk(request, context)
        self._recoveries.wrote(request.block_id.container_id)
        return answer

    def PutBlock(  # noqa: N802
        self, request: pb.PutBlockRequest, context: grpc.ServicerContext
    ) -> pb.PutBlockResponse:
        """Commit a block; a reconstruction that commits is alive."""
        answer = super().PutBlock(request, context)
        self._recoveries.wrote(request.block.block_id.container_id)
        return answer

    def CloseContainer(  # noqa: N802
        self, request: pb.CloseContainerRequest, context: grpc.ServicerContext
    ) -> pb.CloseContainerResponse:
        """Close the replica; what a reconstruction made is read again soon."""
        answer = super().CloseContainer(request, context)
        self._recoveries.closed(request.container_id)
        return answer
