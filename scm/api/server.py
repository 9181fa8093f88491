"""Creates the gRPC server of `ScmService`, with limits per connection and per caller."""

from dataclasses import dataclass
from typing import Any, Final, Unpack

from scm.api.datanode_wire import RECONCILE_BYTES_MAX
from scm.api.service import ANSWER_BYTES_MAX, ScmService
from suture.wire.mapping.rpc_services import SCM
from suture.wire.server.limited_server import (
    BuiltServer,
    ServerLimits,
    ServerParts,
    build_limited_server,
)

MESSAGE_BYTES_MAX: Final = 32 * 1024**2  # a page of 100,000 replicas, with room
COSTS: Final = {  # a request may be as large as allowed, and so may the answers of many methods
    method.name: 2 * MESSAGE_BYTES_MAX  # a message in gRPC, and its content
    for method in SCM.methods
}
RPC_COUNT_MAX: Final = 512  # calls running and waiting; more are refused with RESOURCE_EXHAUSTED
assert ANSWER_BYTES_MAX + RECONCILE_BYTES_MAX < MESSAGE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ScmServerLimits(ServerLimits):
    """Limits of the control plane's gRPC server."""

    rpc_count_max: int = RPC_COUNT_MAX
    streams_max: int = 128
    connections_max: int = 10_000


def build_server(
    service: ScmService,
    address: str,
    executor: Any,  # a concurrent.futures.Executor; grpc's types ask for a pool of threads
    *,
    limits: ScmServerLimits | None = None,
    **parts: Unpack[ServerParts],
) -> BuiltServer:
    """Bind `address` and return the gRPC server of the control plane (`build_limited_server`)."""
    return build_limited_server(
        SCM,
        [service],
        address,
        executor,
        limits=limits or ScmServerLimits(),
        costs=COSTS,
        message_bytes_max=MESSAGE_BYTES_MAX,
        prefix="suture_scm",
        **parts,
    )
