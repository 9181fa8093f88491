"""Checks that a call has reached the datanode that the caller intended.

An address does not identify a datanode. After a reinstallation, behind NAT, or if two hosts have
the same `advertise`, another datanode may answer at the address (issue 49). A caller that knows the
datanode's id sends it in a header. A datanode with another id refuses the call before its handler
runs.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc

from suture.errors import Code, RefusedError
from suture.wire.mapping.errors import to_status

ADDRESSEE_HEADER: Final = "suture-datanode-id"

Metadata = Iterable[tuple[str, str | bytes]] | None


def refusal_by(own_id: str) -> Callable[[Metadata], Any]:
    """Return a function that checks the headers of calls to the datanode `own_id`. The function
    returns the handler that refuses the call, or None if the call is accepted."""

    def refusal(metadata: Metadata) -> Any:
        for name, value in metadata or ():
            if name == ADDRESSEE_HEADER and value != own_id:
                return _refusing(own_id, str(value))
        return None

    return refusal


def _refusing(own_id: str, wanted_id: str) -> Any:
    """Return a handler that refuses calls of every method. It does not read the messages of the
    call."""
    from grpc_status import rpc_status  # imported late, because clients need only the header's name

    def refuse(_requests: object, context: grpc.ServicerContext) -> None:
        error = RefusedError(
            Code.WRONG_DATANODE,
            f"this is datanode {own_id}, the call is for datanode {wanted_id}",
            hint="check for two datanodes with one address, or a reinstalled host: compare "
            "suture scm nodes with node.advertise of both",
            datanode_id=own_id,
        )
        context.abort_with_status(rpc_status.to_status(to_status(error)))

    return grpc.stream_stream_rpc_method_handler(refuse)
