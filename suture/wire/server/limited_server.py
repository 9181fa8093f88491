"""Creates a gRPC server with limits on connections, calls, waiting calls and memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from suture.runtime.memory import UNLIMITED, MemoryBudget
from suture.runtime.middleware import MiddlewareStack
from suture.runtime.tracing import TracingMiddleware
from suture.wire.clients.channel import MESSAGE_BYTES_MAX
from suture.wire.mapping.errors import ErrorStatusMiddleware
from suture.wire.mapping.rpc_services import method_handlers
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.server.audit_handlers import AuditHandlers
from suture.wire.server.authorization import Audit, AuthorizationMiddleware, NullAudit
from suture.wire.server.blocked_calls import (
    BlockedCallMiddleware,
    BlockedCalls,
    UnlimitedSlots,
    WorkerSlots,
    share,
)
from suture.wire.server.budgeted import MemoryBudgetMiddleware
from suture.wire.server.connections import Connections
from suture.wire.server.health_service import HEALTH, Health
from suture.wire.server.server_options import PATIENCE, ConnectionLimits, bind, server_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one server. Calls beyond `rpc_count_max` fail with RESOURCE_EXHAUSTED at
    once."""

    rpc_count_max: int
    streams_max: int  # concurrent calls per connection; further calls wait or are refused
    connections_max: int
    calls_per_s_max: int = 0  # per caller; 0 = unlimited
    patience: ConnectionLimits = PATIENCE


class ServerParts(TypedDict, total=False):
    """Objects that a server gets from its process.

    `slots` limits the number of calls that work at the same time. `memory` is the memory limit of
    all calls together. `known` returns the addresses of datanodes, for which connections are
    reserved. `is_well` determines the result of the health service.
    """

    security: Security
    audit: Audit | None
    slots: WorkerSlots | None
    waits: BlockedCalls
    memory: MemoryBudget
    is_well: Callable[[], bool]
    known: Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class BoundServer:
    """A server that is bound to a port but not started. `address` contains the actual port."""

    server: grpc.Server
    address: str

    @property
    def port(self) -> int:
        """The port to which the server is bound."""
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class BuiltServer(BoundServer):
    """A bound server of one of Suture's services, with the objects that it uses."""

    health: Health
    waits: BlockedCalls
    connections: Connections


def build_limited_server(
    service: ServiceDescriptor,
    servicers: Sequence[object],
    address: str,
    executor: Any,  # a concurrent.futures.Executor; grpc's types ask for a pool of threads
    *,
    limits: ServerLimits,
    costs: Mapping[str, int],
    refusal: Callable[[Any], Any] | None = None,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    prefix: str = "suture",
    **parts: Unpack[ServerParts],
) -> BuiltServer:
    """Create a server of a service and bind it to `address` (port 0 = any free port). The server is
    not started.

    `servicers` have the methods of the service's RPCs (`method_handlers`). `executor` should have a
    thread for each accepted call. `costs` has the number of bytes of memory that a call needs, by
    method. `refusal` is passed to `MiddlewareStack`, and `prefix` is the beginning of the names of
    metrics. Raise RefusedError(INVALID_CONFIG) if the address cannot be bound, or requires TLS.
    """
    security = parts.get("security", LOOPBACK_ONLY)
    waits = parts.get("waits") or BlockedCalls(limits.rpc_count_max, slow_s=limits.patience.slow_s)
    connections = Connections(
        limits.connections_max, prefix=prefix, known=parts.get("known", tuple)
    )
    gate = AuthorizationMiddleware(
        parts.get("audit"),
        calls_per_s_max=limits.calls_per_s_max,
        knows_callers=security.certificates is not None,
        trust=connections.trust,
    )
    layers = (
        MemoryBudgetMiddleware(parts.get("memory", UNLIMITED), costs, waits),
        BlockedCallMiddleware(waits, parts.get("slots") or UnlimitedSlots(), connections),
        TracingMiddleware(),
        ErrorStatusMiddleware(),
        gate,
    )
    methods = MiddlewareStack(layers, waits.sweep, refusal=refusal)
    checks = Health([service.full_name], parts.get("is_well", lambda: True))
    own = [*servicers, AuditHandlers(parts.get("audit") or NullAudit())]
    for each, having in ((service, own), (HEALTH, [checks])):
        methods.add_service(each.full_name, method_handlers(each, having))
    bound = bind_server(
        methods,
        address,
        executor,
        limits=limits,
        connections=connections,
        security=security,
        message_bytes_max=message_bytes_max,
    )
    return BuiltServer(bound.server, bound.address, checks, waits, connections)


def bind_server(
    methods: MiddlewareStack,
    address: str,
    executor: Any,
    *,
    limits: ServerLimits,
    connections: Connections,
    security: Security,
    message_bytes_max: int,
    answer_bytes_max: int = 0,
) -> BoundServer:
    """Create a server of `methods` and bind it to `address`. The server is not started.

    `answer_bytes_max` must be given if responses may be longer than requests. Raise
    RefusedError(INVALID_CONFIG) if the address cannot be bound, or requires TLS.
    """
    server = grpc.server(
        executor,
        handlers=[methods],
        options=server_options(
            min(limits.streams_max, share(limits.rpc_count_max)),
            limits.connections_max,
            message_bytes_max=message_bytes_max,
            answer_bytes_max=answer_bytes_max,
            patience=limits.patience,
        ),
        maximum_concurrent_rpcs=limits.rpc_count_max,
    )
    port = bind(server, address, security)
    connections.ports.add(port)
    return BoundServer(server, f"{address.rpartition(':')[0]}:{port}")
