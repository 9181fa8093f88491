"""Builds the server of the service suture.v1.Datanode from several groups of handlers.

A group has the handlers that need the same objects, and each RPC of the service belongs to one
group. Handlers contain little code: the codec checks whether a request is well-formed, the store
checks whether the request is allowed, and `ErrorStatusMiddleware` converts errors to gRPC statuses.
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
    """Bind `address`, and return a server with the handlers in `groups` (see
    `build_limited_server`).

    The server refuses calls that are addressed to another datanode than `datanode_id`.
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
