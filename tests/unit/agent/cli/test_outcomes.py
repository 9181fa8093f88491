"""Outcomes of orders, which the control plane tells page by page."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from suture.terminal.outcomes import newest_outcomes, outcomes_in
from suture.wire.v1 import scm_pb2

PAGE_MAX = 3


class Keeper:
    """Keeps outcomes, and tells so many at once."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = sorted(ids, reverse=True)
        self.call_count = 0

    def list_outcomes(self, request: scm_pb2.ListOutcomesRequest) -> scm_pb2.ListOutcomesResponse:
        """Answer as the control plane does; each order is about the container of its last digit."""
        self.call_count += 1
        before = request.before_command_id
        older = [number for number in self.ids if not before or number < before]
        outcomes = [
            scm_pb2.Outcome(
                datanode_id=f"dn{number % 2}",
                status=scm_pb2.CommandStatus(command_id=number, container_id=number % 10),
            )
            for number in older[: min(request.count, PAGE_MAX)]
        ]
        return scm_pb2.ListOutcomesResponse(outcomes=outcomes)


def asking(keeper: Keeper) -> Any:
    """Return a client of it."""
    return SimpleNamespace(scm=keeper)


def ids(outcomes: Sequence[scm_pb2.Outcome]) -> list[int]:
    """Return whose outcomes these are."""
    return [outcome.status.command_id for outcome in outcomes]


def test_outcomes_of_all_pages_are_read() -> None:
    """The outcomes are newest first and none is repeated. Those of one container come from all
    pages.
    """
    keeper = Keeper(range(1, 32))

    found = newest_outcomes(asking(keeper), lambda _: True)

    assert list(range(31, 0, -1)) == ids(found)
    assert [24, 14, 4] == ids(outcomes_in(asking(keeper), 4))


def test_no_more_pages_are_read_than_it_takes() -> None:
    """The count limits the matching outcomes, and not those examined."""
    keeper = Keeper(range(1, 32))

    found = newest_outcomes(asking(keeper), lambda o: o.datanode_id == "dn0", count=2)

    assert [30, 28] == ids(found)
    assert 2 == keeper.call_count
