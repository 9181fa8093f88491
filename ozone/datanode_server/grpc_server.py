"""The server for Ozone's datanodes and clients: one address, on the agent's own store.

It has the limits of the agent's own server on connections, calls and waits. In a secure cluster
there are two: one for requests with tokens, and one for containers between datanodes.
"""

from collections.abc import Sequence
from typing import Any, Final

import grpc

from agent.host.protocol_servers import HostServices
from ozone.datanode_server.container_queries import ContainerCommands
from ozone.datanode_server.messages import MESSAGE_BYTES_MAX
from ozone.datanode_server.read_commands import ReadCommands
from ozone.datanode_server.write_commands import WriteCommands
from ozone.datanode_server.xceiver_service import VerifyToken, XceiverService
from suture.runtime.middleware import MiddlewareStack
from suture.runtime.tracing import TracingMiddleware
from suture.wire.security.tls import Security
from suture.wire.server.blocked_calls import BlockedCallMiddleware, share
from suture.wire.server.budgeted import MemoryBudgetMiddleware
from suture.wire.server.server_options import bind, server_options

ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX + 1024**2  # a chunk of 32 MiB and its envelope
COSTS: Final = {
    "send": 2 * MESSAGE_BYTES_MAX,  # a message as gRPC has it, and its content
    "upload": 48 * 1024**2,  # as ImportContainer
    "download": 8 * 1024**2,  # as ReadBlock
}


class OzoneGrpcServer:
    """Serves Ozone's datanode protocol (agent.host.protocol_servers.ProtocolServer)."""

    def __init__(
        self,
        inside: HostServices,
        listen: str,
        services: Sequence[grpc.GenericRpcHandler],
        security: Security,
    ) -> None:
        """Bind `listen` (host:port; port 0 = any free port). Raise RefusedError(INVALID_CONFIG) if
        this fails.

        `services` are Ozone's services at this address: their calls are limited like all others
        (suture.wire.server.blocked_calls).
        """
        limits = inside.limits
        self._server = grpc.server(
            inside.executor,
            handlers=[
                MiddlewareStack(
                    [
                        MemoryBudgetMiddleware(inside.memory, COSTS, inside.waits),
                        BlockedCallMiddleware(inside.waits, inside.slots, inside.connections),
                        TracingMiddleware(),
                    ],
                    inside.waits.sweep,
                    others=services,
                )
            ],
            options=server_options(
                min(limits.streams_max, share(limits.rpc_count_max)),
                limits.connections_max,
                message_bytes_max=MESSAGE_BYTES_MAX,
                answer_bytes_max=ANSWER_BYTES_MAX,
                patience=limits.patience,
            ),
            maximum_concurrent_rpcs=limits.rpc_count_max,
        )
        self.port = bind(self._server, listen, security)
        inside.connections.ports.add(self.port)
        self.address = f"{listen.rpartition(':')[0]}:{self.port}"

    def start(self) -> None:
        """Start serving."""
        self._server.start()

    def stop(self, grace_s: float) -> Any:
        """Reject new calls, and give running ones a grace period; return an object to wait for."""
        return self._server.stop(grace_s)


def built_service(inside: HostServices, verify: VerifyToken) -> XceiverService:
    """Return the service on a host's store."""
    return XceiverService(
        [
            ContainerCommands(inside.store),
            ReadCommands(inside.store, on_read=inside.on_read),
            WriteCommands(
                inside.store,
                inside.leases,
                inside.recoveries,
                inside.audit,
                lease_timeout_s=inside.limits.lease_timeout_s,
            ),
        ],
        inside.store,
        datanode_id=inside.store.datanode_id,
        calls_per_s_max=inside.limits.calls_per_s_max,
        verify=verify,
    )
