"""Retries requests that a datanode or the SCM refuses only temporarily."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

from suture.errors import Code, SutureError, UnavailableError
from suture.terminal.output import print_waiting_once
from suture.wire.clients.channel import PATIENCE_S, retry_while

THE_SCM: Final = "the control plane"
BUSY: Final = frozenset({Code.BUSY, Code.SAFE_MODE})
TRANSIENT: Final = BUSY | {Code.UNAVAILABLE}
"""Codes of a refusal of a single item that may be temporary. If a complete call that changes
something fails with UNAVAILABLE, it is not retried, because the server may have carried it out."""
ITEM_FIELDS: Final = ("container_ids", "datanode_ids", "rows")  # list fields of SCM requests

T = TypeVar("T")


def until_free(
    server: str,
    question: Callable[[], T],
    *,
    codes: Collection[Code] = BUSY,
    timeout_s: float = PATIENCE_S,
) -> T:
    """Call `question`, which calls a datanode or the SCM, and return its result. Retry while it
    fails with one of `codes`. Print once on stderr that the command waits for `server`."""
    return retry_while(
        question,
        codes=codes,
        must_end=lambda: False,
        waits=print_waiting_once(server),
        timeout_s=timeout_s,
    )


def until_decided(submit: Callable[[Any], T], request: Any) -> T:
    """Submit a request about several containers, datanodes or rows of a plan to the SCM, and return
    the answer.

    Items that the SCM refuses temporarily are submitted again, without the other items. If such an
    item is still refused after `PATIENCE_S` seconds, the answer has its last refusal.
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
            answer = part  # a request that is carried out in one step is refused as a whole, too
        decisions = _decisions(answer)
        left = [index for index, one in enumerate(decisions) if one.code in TRANSIENT]
        if left:
            raise _TransientRefusal(decisions, left)

    try:
        until_free(THE_SCM, once)
    except _TransientRefusal:
        pass
    except SutureError as error:
        if answer is None:
            raise
        for index in left:  # the SCM may have decided these items, but its answer was lost
            _decisions(answer)[index].code = error.code
            _decisions(answer)[index].message = str(error)
    decided: T = answer
    return decided


class _TransientRefusal(UnavailableError):
    """Raised to retry a request, because the SCM refuses some of its items temporarily."""

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
    """Return a copy of a request with only the items at the positions `indexes`, and their
    fingerprints."""
    part = type(request)()
    part.CopyFrom(request)
    for name in (*ITEM_FIELDS, "worlds"):
        given = list(getattr(request, name, ()))
        if given:
            part.ClearField(name)
            getattr(part, name).extend(given[index] for index in indexes)
    return part


def _decisions(answer: Any) -> Sequence[Any]:
    """Return the decisions in an answer, one per item. Return an empty list if the request has no
    items."""
    decisions: Sequence[Any] = getattr(answer, "decisions", ())
    return decisions or getattr(answer, "containers", ())
