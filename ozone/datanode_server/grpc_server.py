"""The gRPC server through which Ozone's datanodes and clients access the agent's store.

The server listens on one address. It has the same limits on connections, calls and waits as the
agent's own server. A secure cluster needs two of these servers: one for requests with tokens, and
one for transfers of containers between datanodes.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor import ServiceDescriptor

from agent.host.protocol_servers import HostServices
from ozone.datanode_server.container_queries import ContainerCommands
from ozone.datanode_server.messages import MESSAGE_BYTES_MAX
from ozone.datanode_server.read_commands import ReadCommands
from ozone.datanode_server.write_commands import WriteCommands
from ozone.datanode_server.xceiver_service import VerifyToken, XceiverService
from suture.runtime.middleware import MiddlewareStack
from suture.runtime.tracing import TracingMiddleware
from suture.wire.mapping.rpc_services import method_handlers
from suture.wire.security.tls import Security
from suture.wire.server.blocked_calls import BlockedCallMiddleware
from suture.wire.server.budgeted import MemoryBudgetMiddleware
from suture.wire.server.limited_server import BoundServer, bind_server

ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX + 1024**2  # a chunk of 32 MiB and its envelope
COSTS: Final = {
    "send": 2 * MESSAGE_BYTES_MAX,  # the message in gRPC, and its content
    "upload": 48 * 1024**2,  # like Suture's ImportContainer
    "download": 8 * 1024**2,  # like Suture's ReadBlock
}


def bound_server(
    inside: HostServices,
    listen: str,
    services: Mapping[ServiceDescriptor, object],
    security: Security,
) -> BoundServer:
    """Bind the address `listen` (host:port), and return the server of these services.

    If the port is 0, use any free port. Raise RefusedError(INVALID_CONFIG) if this fails.
    """
    layers = (
        MemoryBudgetMiddleware(inside.memory, COSTS, inside.waits),
        BlockedCallMiddleware(inside.waits, inside.slots, inside.connections),
        TracingMiddleware(),
    )
    methods = MiddlewareStack(layers, inside.waits.sweep)
    for service, servicer in services.items():
        methods.add_service(service.full_name, method_handlers(service, [servicer]))
    return bind_server(
        methods,
        listen,
        inside.executor,
        limits=inside.limits,
        connections=inside.connections,
        security=security,
        message_bytes_max=MESSAGE_BYTES_MAX,
        answer_bytes_max=ANSWER_BYTES_MAX,
    )


def built_service(inside: HostServices, verify: VerifyToken) -> XceiverService:
    """Return the service through which Ozone's clients access the store of a host."""
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
