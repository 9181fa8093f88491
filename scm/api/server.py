"""Builds the gRPC server for `ScmService`, with the limits per connection and caller."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from scm.api.datanode_wire import RECONCILE_BYTES_MAX
from scm.api.service import ANSWER_BYTES_MAX, ScmService
from suture.runtime.memory import UNLIMITED, MemoryBudget
from suture.runtime.middleware import MiddlewareStack
from suture.runtime.tracing import TracingMiddleware
from suture.wire.mapping.errors import ErrorStatusMiddleware
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.server.authorization import Audit, AuthorizationMiddleware
from suture.wire.server.blocked_calls import (
    BlockedCallMiddleware,
    BlockedCalls,
    UnlimitedSlots,
    WorkerSlots,
    share,
)
from suture.wire.server.budgeted import MemoryBudgetMiddleware
from suture.wire.server.connections import Connections
from suture.wire.server.health_service import Health
from suture.wire.server.server_options import PATIENCE, ConnectionLimits, bind, server_options
from suture.wire.v1 import scm_pb2, scm_pb2_grpc

SERVICE_NAME: Final = "suture.v1.Scm"
MESSAGE_BYTES_MAX: Final = 32 * 1024**2  # a page of 100,000 replicas, with room
COSTS: Final = {  # a request may be as large as allowed, and so may the answers of many methods
    method.name: 2 * MESSAGE_BYTES_MAX  # a message in gRPC, and its content
    for method in scm_pb2.DESCRIPTOR.services_by_name["Scm"].methods
}
RPC_COUNT_MAX: Final = 512  # calls running and waiting; more are refused with RESOURCE_EXHAUSTED
assert ANSWER_BYTES_MAX + RECONCILE_BYTES_MAX < MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ScmServerLimits:
    """Limits per connection and per caller."""

    streams_max: int = 128
    connections_max: int = 10_000
    calls_per_s_max: int = 0  # 0: no limit
    patience: ConnectionLimits = PATIENCE
    rpc_count_max: int = RPC_COUNT_MAX


@dataclass(frozen=True, slots=True)
class ScmServer:
    """A server whose address is bound and which is not started."""

    server: grpc.Server
    address: str  # with the port that was chosen
    health: Health
    waits: BlockedCalls
    connections: Connections


def build_server(
    service: ScmService,
    address: str,
    executor: Any,  # a concurrent.futures.Executor; grpc's types ask for a pool of threads
    *,
    security: Security = LOOPBACK_ONLY,
    audit: Audit | None = None,
    limits: ScmServerLimits | None = None,
    slots: WorkerSlots | None = None,
    memory: MemoryBudget = UNLIMITED,
    known: Callable[[], Iterable[str]] = tuple,
) -> ScmServer:
    """Bind `address` (port 0: any free port). The caller starts and stops the server. `known`
    returns the addresses of datanodes; connections are kept free for them.

    Raise RefusedError(INVALID_CONFIG) if the address cannot be bound, or if it requires TLS.
    """
    limits = limits or ScmServerLimits()
    waits = BlockedCalls(limits.rpc_count_max, slow_s=limits.patience.slow_s)
    connections = Connections(limits.connections_max, prefix="suture_scm", known=known)
    gate = AuthorizationMiddleware(
        audit,
        calls_per_s_max=limits.calls_per_s_max,
        knows_callers=security.certificates is not None,
        trust=connections.trust,
    )
    attended = BlockedCallMiddleware(waits, slots or UnlimitedSlots(), connections)
    methods = MiddlewareStack(
        [
            MemoryBudgetMiddleware(memory, COSTS, waits),
            attended,
            TracingMiddleware(),
            ErrorStatusMiddleware(),
            gate,
        ],
        waits.sweep,
    )
    scm_pb2_grpc.add_ScmServicer_to_server(service, methods)  # type: ignore[no-untyped-call]
    checks = Health([SERVICE_NAME])
    checks.add_to(methods)
    server = grpc.server(
        executor,
        handlers=[methods],
        options=server_options(
            min(limits.streams_max, share(limits.rpc_count_max)),
            limits.connections_max,
            message_bytes_max=MESSAGE_BYTES_MAX,
            patience=limits.patience,
        ),
        maximum_concurrent_rpcs=limits.rpc_count_max,
    )
    port = bind(server, address, security)
    connections.ports.add(port)
    host = address.rpartition(":")[0]
    return ScmServer(server, f"{host}:{port}", checks, waits, connections)
