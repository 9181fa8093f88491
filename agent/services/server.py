"""Service suture.v1.Datanode of one storage host, composed of groups of handlers.

Handlers are thin. The codec checks whether a request is well-formed. The store checks whether the
request is allowed. `ErrorStatusMiddleware` converts errors to gRPC statuses. A group contains the
RPCs with the same dependencies, and each RPC of the service is in one group.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from agent.services.limits import DatanodeServerLimits
from suture.wire.mapping.addressee import refusal_by
from suture.wire.mapping.rpc_services import DATANODE
from suture.wire.server.budgeted import COSTS
from suture.wire.server.limited_server import BuiltServer, ServerParts, build_limited_server


def build_server(
    groups: Sequence[object],
    address: str,
    executor: Any,  # a concurrent.futures.ThreadPoolExecutor, provided by the runtime
    *,
    datanode_id: str,
    limits: DatanodeServerLimits,
    **parts: Unpack[ServerParts],
) -> BuiltServer:
    """Bind `address` and return the server of `groups` (`build_limited_server`).

    Calls for another datanode than `datanode_id` are refused.
    """
    return build_limited_server(
        DATANODE,
        groups,
        address,
        executor,
        limits=limits,
        costs=COSTS,
        refusal=refusal_by(datanode_id),
        **parts,
    )
