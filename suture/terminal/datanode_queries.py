"""Calls one datanode, or all datanodes at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Final, Generic, TypeVar

from suture.client.cluster_client import ClusterClient
from suture.errors import SutureError
from suture.terminal.output import pluralize
from suture.terminal.selection import known_nodes, one_node
from suture.terminal.transient_refusals import until_free
from suture.terminal.typer_options import option
from suture.wire.clients.block_peer import Endpoint
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2

ASKED_AT_ONCE: Final = 16

NodeOption = Annotated[
    str | None, option("ID|HOST:PORT", "Query only this datanode; default: all.", "--datanode")
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatanodeReply(Generic[T]):
    """The response of a datanode, or the error of the call. `datanode` is the id of the datanode,
    or the address that was called."""

    datanode: str
    value: T | None
    error: str = ""
    cause: SutureError | None = None


def nodes_of(client: ClusterClient, datanode: str | None) -> list[tuple[str, str]]:
    """Return (name, address) of the given datanode, or of all datanodes if `datanode` is None.

    If `datanode` is an address, it is called to get its id, so that no SCM is needed. If it does
    not answer, the address is also the name. Raise RefusedError if the datanode is unknown.
    """
    if datanode is not None and ":" in datanode:
        try:
            peer = client.peer(Endpoint("", datanode))
            return [(until_free(datanode, peer.status).datanode_id, datanode)]
        except SutureError:
            return [(datanode, datanode)]
    nodes = known_nodes(client)
    wanted = nodes if datanode is None else [one_node(nodes, datanode)]
    return [(node.datanode_id, node.address) for node in wanted]


def query_all(
    client: ClusterClient, nodes: list[tuple[str, str]], question: Callable[[Peer], T]
) -> list[DatanodeReply[T]]:
    """Call datanodes at the same time, and return their responses. A busy datanode is called again.
    If a call fails, the reply has the error."""

    def ask(node: tuple[str, str]) -> DatanodeReply[T]:
        name, address = node
        try:
            datanode_id = "" if name == address else name
            peer = client.peer(Endpoint(datanode_id, address))
            return DatanodeReply(name, until_free(name, lambda: question(peer)))
        except SutureError as error:
            return DatanodeReply(name, None, str(error), error)

    if len(nodes) == 1:
        return [ask(nodes[0])]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, nodes))


def answered_text(answers: Sequence[DatanodeReply[T]]) -> str:
    """Return the number of datanodes that answered as text: `3 datanodes`, or `2 of 3
    datanodes`."""
    count = sum(not answer.error for answer in answers)
    everyone = pluralize(len(answers), "datanode")
    return everyone if count == len(answers) else f"{count} of {everyone}"


def fetch_status(
    peer: Peer,
) -> tuple[datanode_pb2.StatusResponse, datanode_pb2.ScrubStatusResponse]:
    """Return the status of one datanode, and the status of its scans."""
    return peer.status(), peer.scrub_status()
