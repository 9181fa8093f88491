"""Handler of the RPC by which an operator decides between replicas that contradict each other."""

from collections.abc import Callable

from grpc import ServicerContext as Context

from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb

Trust = Callable[[pb.TrustReplicaRequest, Callable[[], bool]], pb.TrustReplicaResponse]
"""Function that makes the local replica equal to the replica of a peer that the operator trusts.

In a dry run, the function only returns the changes that it would make. It ends early if its
callable argument returns True.
"""


class TrustHandlers:
    """Handler of TrustReplica."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def TrustReplica(
        self, request: pb.TrustReplicaRequest, context: Context
    ) -> pb.TrustReplicaResponse:
        """Make the local replica equal to the replica of the peer that the operator trusts.

        In a dry run, only return the changes that this would make.
        """
        codec.parse_container_id(request.container_id)
        if not request.trusted_datanode_id or not request.trusted_address:
            raise RefusedError(
                Code.MALFORMED_REQUEST, "trusted_datanode_id, trusted_address: not set"
            )
        return self._trust(request, lambda: not context.is_active())
