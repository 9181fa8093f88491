"""The service of a datanode that tells what its replicas were."""

import grpc

from agent.rpc.datanode.recovering import RecoveringService
from agent.rpc.v1 import datanode_pb2 as pb
from agent.rpc.wire import codec, reports


class TellingService(RecoveringService):
    """The handlers of `RecoveringService`, and the history of replicas."""

    def ListHistory(  # noqa: N802
        self, request: pb.ListHistoryRequest, context: grpc.ServicerContext
    ) -> pb.ListHistoryResponse:
        """Say what a replica was, the oldest first; the store bounds how much there is."""
        del context
        entries = self._store.history(codec.parse_container_id(request.container_id))
        return pb.ListHistoryResponse(entries=map(reports.history_message, entries))
