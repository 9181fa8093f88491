"""What is settled is not looked at again until a row about it changes."""

import numpy as np
import pytest

from merkle.replica import ReplicaState
from scm.state.facts import Allocation, Hold, Key, KeyBlock, Transaction
from scm.state.key_table import KeyTable
from scm.state.quiet_containers import Settled
from scm.state.replicas.replica_table import ReplicaTable
from scm.state.tables import (
    AllocationTable,
    ContainerTable,
    HoldTable,
    PendingTable,
    Table,
    TransactionTable,
)
from tests.support.control.scm_world import container, pending, replica


@pytest.mark.parametrize(
    ("first", "stop", "count_max", "expected"),
    [
        (1, 7, 9, [3, 5, 6]),
        (3, 7, 9, [3, 5, 6]),
        (4, 7, 2, [5, 6]),
        (6, 9, 9, [6, 7, 8]),
        (1, 7, 2, [3, 5]),
        (1, 7, 1, [3]),
        (1, 3, 9, []),
        (7, 7, 9, []),
    ],
)
def test_those_that_are_not_settled_are_found(
    first: int, stop: int, count_max: int, expected: list[int]
) -> None:
    """Also behind all that was ever marked, never at or behind the end, and not too many."""
    settled = Settled()
    settled.add(4)
    settled.add_all(np.array([1, 2]))

    assert expected == settled.missing(first, stop, count_max=count_max)


def test_an_id_that_is_nobodys_costs_nothing() -> None:
    """Datanodes may report containers of any number."""
    settled = Settled()
    settled.add(3)

    settled.discard_all(np.array([2**62, 3]))

    assert 2**62 not in settled
    assert 3 not in settled


ROWS = (
    (ContainerTable(), container(container_id=3)),
    (ReplicaTable(), replica("dn1", ReplicaState.CLOSED, container_id=3)),
    (PendingTable(), pending(9, container_id=3)),
    (AllocationTable(), Allocation(3, 1, 1, 10, "a")),
    (TransactionTable(), Transaction(1, 3, (1,), 0)),
    (KeyTable(), Key("k", 10, 0, (KeyBlock(3, 1, 1, 10),))),
    (HoldTable(), Hold(3, "", 0, "")),
)


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[table.name for table, _ in ROWS])
def test_any_row_about_a_container_unsettles_it(table: Table[object, object], row: object) -> None:
    """One that comes as well as one that goes; and no other container."""
    settled = Settled()
    table.settled.append(settled)
    states = []

    for value in (row, None):
        settled.add(2)
        settled.add(3)
        table.apply(table.key_of(row), value)
        states.append((2 in settled, 3 in settled))

    assert [(True, False)] * 2 == states
