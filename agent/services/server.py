"""Service suture.v1.Datanode of one storage host, composed of groups of handlers.

Handlers are thin. The codec checks whether a request is well-formed, and the store whether it is
allowed. `ErrorStatusMiddleware` converts errors to statuses. A group has the RPCs with the same
dependencies. The groups together have all RPCs of the service.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Unpack

from agent.services.limits import DatanodeServerLimits
from suture.wire.mapping.addressee import refusal_by
from suture.wire.mapping.errors import ErrorStatusMiddleware
from suture.wire.server.budgeted import COSTS
from suture.wire.server.limited_server import BuiltServer, ServerParts, build_limited_server
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
        partial(datanode_pb2_grpc.add_DatanodeServicer_to_server, composed(groups)),
        SERVICE.full_name,
        address,
        executor,
        limits=limits,
        costs=COSTS,
        edge=ErrorStatusMiddleware(codecs_of(groups, "decoders"), codecs_of(groups, "encoders")),
        refusal=refusal_by(datanode_id),
        **parts,
    )
