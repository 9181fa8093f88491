"""Service suture.v1.Datanode of one storage host, composed of groups of handlers.

Handlers are thin. The codec checks whether a request is well-formed, and the store whether it is
allowed. `ErrorStatusMiddleware` converts errors to statuses. A group has the RPCs with the same
dependencies. The groups together have all RPCs of the service.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from agent.services.limits import DatanodeServerLimits
from suture.runtime.memory import UNLIMITED, MemoryBudget
from suture.runtime.middleware import MiddlewareStack
from suture.runtime.tracing import TracingMiddleware
from suture.wire.mapping.addressee import refusal_by
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
from suture.wire.server.budgeted import COSTS, MemoryBudgetMiddleware
from suture.wire.server.connections import Connections
from suture.wire.server.health_service import Health
from suture.wire.server.server_options import bind, server_options
from suture.wire.v1 import datanode_pb2, datanode_pb2_grpc

SERVICE: Final = datanode_pb2.DESCRIPTOR.services_by_name["Datanode"]
CALLS: Final = tuple(method.name for method in SERVICE.methods)


def composed(groups: Sequence[object]) -> datanode_pb2_grpc.DatanodeServicer:
    """Return a servicer with the RPCs of all groups. No two groups may have the same RPC."""
    servicer = datanode_pb2_grpc.DatanodeServicer()
    for call in CALLS:
        having = [group for group in groups if hasattr(group, call)]
        assert len(having) <= 1, f"{call} is in {having}"
        for group in having:
            setattr(servicer, call, getattr(group, call))
    return servicer


def codecs_of(groups: Sequence[object], name: str) -> dict[str, Callable[[Any], Any]]:
    """Return the groups' own `decoders` of requests, or `encoders` of responses, by the path of the
    RPC."""
    return {
        f"/{SERVICE.full_name}/{call}": convert
        for group in groups
        for call, convert in getattr(group, name, {}).items()
    }


@dataclass(frozen=True, slots=True)
class BuiltServer:
    """A server that is bound but not started."""

    server: grpc.Server
    port: int
    health: Health
    waits: BlockedCalls
    connections: Connections


def waits_of(limits: DatanodeServerLimits) -> BlockedCalls:
    """Return the register of calls that wait for their callers."""
    return BlockedCalls(limits.rpc_count_max, slow_s=limits.patience.slow_s)


def build_server(
    groups: Sequence[object],
    address: str,
    executor: Any,  # a concurrent.futures.ThreadPoolExecutor, provided by the runtime
    *,
    datanode_id: str,
    limits: DatanodeServerLimits,
    security: Security = LOOPBACK_ONLY,
    audit: Audit | None = None,
    slots: WorkerSlots | None = None,
    waits: BlockedCalls | None = None,
    memory: MemoryBudget = UNLIMITED,
    is_well: Callable[[], bool] = lambda: True,
    known: Callable[[], Iterable[str]] = tuple,
) -> BuiltServer:
    """Bind `address` (port 0 = any free port) and return the server of `groups`, which is not
    started.

    Calls for another datanode than `datanode_id` are refused. `executor` should have a thread for
    each admitted call; `slots` limits how many of them work at the same time. `memory` is the
    budget of all calls together. `known` returns the addresses of datanodes for which connections
    are reserved. `is_well` determines the result of the health service. Raise
    RefusedError(INVALID_CONFIG) if the address cannot be bound, or requires TLS.
    """
    connections = Connections(limits.connections_max, known=known)
    gate = AuthorizationMiddleware(
        audit,
        calls_per_s_max=limits.calls_per_s_max,
        knows_callers=security.certificates is not None,
        trust=connections.trust,
    )
    edge = ErrorStatusMiddleware(codecs_of(groups, "decoders"), codecs_of(groups, "encoders"))
    waits = waits or waits_of(limits)
    layers = (
        MemoryBudgetMiddleware(memory, COSTS, waits),
        BlockedCallMiddleware(waits, slots or UnlimitedSlots(), connections),
        TracingMiddleware(),
        edge,
        gate,
    )
    methods = MiddlewareStack(layers, waits.sweep, refusal=refusal_by(datanode_id))
    datanode_pb2_grpc.add_DatanodeServicer_to_server(  # type: ignore[no-untyped-call]
        composed(groups), methods
    )
    checks = Health([SERVICE.full_name], is_well)
    checks.add_to(methods)
    server = grpc.server(
        executor,
        handlers=[methods],
        options=server_options(
            min(limits.streams_max, share(limits.rpc_count_max)),
            limits.connections_max,
            patience=limits.patience,
        ),
        maximum_concurrent_rpcs=limits.rpc_count_max,
    )
    port = bind(server, address, security)
    connections.ports.add(port)
    return BuiltServer(server, port, checks, waits, connections)
