"""The service of a datanode that takes another replica's word because a person says so."""

from collections.abc import Callable
from typing import Any

import grpc

from agent.errors import Code, Refused
from agent.rpc.datanode.telling import TellingService
from agent.rpc.v1 import datanode_pb2 as pb
from agent.rpc.wire import codec

Trust = Callable[[pb.TrustReplicaRequest, Callable[[], bool]], pb.TrustReplicaResponse]
"""Show, or carry out, what trusting a replica changes; ends early when the callable says so."""


class TrustingService(TellingService):
    """The handlers of `TellingService`, and an operator's decision between replicas."""

    def __init__(self, *arguments: Any, trust: Trust, **options: Any) -> None:
        """The rest is as in `TellingService`."""
        super().__init__(*arguments, **options)
        self._trust = trust

    def TrustReplica(  # noqa: N802
        self, request: pb.TrustReplicaRequest, context: grpc.ServicerContext
    ) -> pb.TrustReplicaResponse:
        """Make the replica here what the trusted one is, or say what that would change."""
        codec.parse_container_id(request.container_id)
        if not request.trusted_datanode_id or not request.trusted_address:
            raise Refused(Code.MALFORMED_REQUEST, "trusted_datanode_id, trusted_address: not set")
        return self._trust(request, lambda: not context.is_active())
