"""Queries to datanodes, one or all of them concurrently, and the wait for what is refused only for
the moment, by a datanode or by the SCM."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import typer

from suture.client.cluster_client import ClusterClient
from suture.errors import Code, SutureError, UnavailableError
from suture.terminal.output import pluralize, print_waiting_once
from suture.terminal.selection import known_nodes, one_node
from suture.wire.clients.channel import PATIENCE_S, retry_while
from suture.wire.clients.peer import Endpoint, Peer
from suture.wire.v1 import datanode_pb2

ASKED_AT_ONCE: Final = 16
THE_SCM: Final = "the control plane"
BUSY: Final = frozenset({Code.BUSY, Code.SAFE_MODE})
PASSING: Final = BUSY | {Code.UNAVAILABLE}
"""Codes of a decision that may be another one soon. A whole call that fails with UNAVAILABLE is not
repeated if it changes something, because it may have had its effect."""
ITEM_FIELDS: Final = ("container_ids", "datanode_ids", "rows")  # of requests to the SCM

NodeOption = Annotated[
    str | None,
    typer.Option("--datanode", metavar="ID|HOST:PORT", help="One datanode only; default: all."),
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatanodeReply(Generic[T]):
    """A datanode, by id or by the dialled address, and its answer or the error."""

    datanode: str
    value: T | None
    error: str = ""
    cause: SutureError | None = None


def nodes_of(client: ClusterClient, datanode: str | None) -> list[tuple[str, str]]:
    """Return (name, address) of one datanode or of all. Raise RefusedError for an unknown one.

    An address is dialled as given, because nothing else may be known without an SCM.
    """
    if datanode is not None and ":" in datanode:
        return [(datanode, datanode)]
    nodes = known_nodes(client)
    wanted = nodes if datanode is None else [one_node(nodes, datanode)]
    return [(node.datanode_id, node.address) for node in wanted]


def query_all(
    client: ClusterClient, nodes: list[tuple[str, str]], question: Callable[[Peer], T]
) -> list[DatanodeReply[T]]:
    """Query datanodes concurrently, a busy one again; an error counts as an answer."""

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


def until_free(
    whom: str,
    question: Callable[[], T],
    *,
    codes: Collection[Code] = BUSY,
    timeout_s: float = PATIENCE_S,
) -> T:
    """Return the answer of a datanode or of the SCM, asked again while it refuses with one of
    `codes`; print once that it does."""
    return retry_while(
        question,
        codes=codes,
        must_end=lambda: False,
        waits=print_waiting_once(whom),
        timeout_s=timeout_s,
    )


def until_decided(submit: Callable[[Any], T], request: Any) -> T:
    """Return the SCM's answer to a request about several containers, datanodes or rows of a plan.

    Items that are refused only for the moment are submitted again, without the others. After
    `PATIENCE_S` their last refusals are their decisions.
    """
    answer: Any = None
    left: list[int] = []

    def once() -> None:
        nonlocal answer, left
        is_part = len(left) > 0 and len(_decisions(answer)) == _item_count(request)
        part = submit(_part(request, left) if is_part else request)
        if is_part and len(_decisions(part)) == len(left):
            for index, decision in zip(left, _decisions(part), strict=True):
                _decisions(answer)[index].CopyFrom(decision)
        else:
            answer = part  # a request that is carried out as a whole is refused as a whole
        decisions = _decisions(answer)
        left = [index for index, one in enumerate(decisions) if one.code in PASSING]
        if left:
            raise _PassingRefusal(decisions, left)

    try:
        until_free(THE_SCM, once)
    except _PassingRefusal:
        pass
    except SutureError as error:
        if answer is None:
            raise
        for index in left:  # they may have been decided, but the answer was lost
            _decisions(answer)[index].code = error.code
            _decisions(answer)[index].message = str(error)
    decided: T = answer
    return decided


class _PassingRefusal(UnavailableError):
    """Some items are refused for the moment."""

    def __init__(self, decisions: Sequence[Any], left: Sequence[int]) -> None:
        first = decisions[left[0]]
        is_container = "container_id" in first.DESCRIPTOR.fields_by_name
        name = f"container {first.container_id}" if is_container else first.datanode_id
        super().__init__(
            Code.BUSY,
            f"{len(left)} of {len(decisions)} are refused for the moment; "
            f"{name}: {first.code}: {first.message}",
        )


def _item_count(request: Any) -> int:
    return max(len(getattr(request, name, ())) for name in ITEM_FIELDS)


def _part(request: Any, indexes: Sequence[int]) -> Any:
    """Return a copy of a request with some of its items, and their fingerprints."""
    part = type(request)()
    part.CopyFrom(request)
    for name in (*ITEM_FIELDS, "worlds"):
        given = list(getattr(request, name, ()))
        if given:
            part.ClearField(name)
            getattr(part, name).extend(given[index] for index in indexes)
    return part


def _decisions(answer: Any) -> Sequence[Any]:
    """Return the decisions in an answer, one per item; none if the request has no items."""
    decisions: Sequence[Any] = getattr(answer, "decisions", ())
    return decisions or getattr(answer, "containers", ())


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
