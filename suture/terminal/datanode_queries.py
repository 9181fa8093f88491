"""Queries to one datanode, or to all datanodes concurrently."""

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
    """The answer of a datanode, or the error of the call. The datanode is named by its id, or by
    the address that was called."""

    datanode: str
    value: T | None
    error: str = ""
    cause: SutureError | None = None


def nodes_of(client: ClusterClient, datanode: str | None) -> list[tuple[str, str]]:
    """Return the name and address of one datanode or of all. Raise RefusedError for an unknown
    datanode.

    If `datanode` is an address, it is used as given, so that no SCM is needed. The datanode returns
    its own id; if it does not answer, the address is also the name.
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
    """Query datanodes concurrently; retry a busy datanode. An error is returned as the answer of
    its datanode."""

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
    """Return how many datanodes answered: `3 datanodes`, or `2 of 3 datanodes`."""
    count = sum(not answer.error for answer in answers)
    everyone = pluralize(len(answers), "datanode")
    return everyone if count == len(answers) else f"{count} of {everyone}"


def fetch_status(
    peer: Peer,
) -> tuple[datanode_pb2.StatusResponse, datanode_pb2.ScrubStatusResponse]:
    """Return the status and the scans of one datanode."""
    return peer.status(), peer.scrub_status()
