"""What is settled is not looked at again until a row about it changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.state.container_queues import (
    MARKED_MAX,
    ContainerBitmap,
    DirtyContainers,
    PriorityContainerQueue,
)
from scm.state.entities import Allocation, DeleteTransaction, Hold, Key, KeyBlock
from scm.state.replicas.replica_table import ReplicaTable
from scm.state.table import Table
from scm.state.tables.container_table import ContainerTable
from scm.state.tables.key_table import KeyTable
from scm.state.tables.pending_table import PendingTable
from scm.state.tables.small_tables import AllocationTable, HoldTable, TransactionTable
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
def test_unsettled_containers_are_found(
    first: int, stop: int, count_max: int, expected: list[int]
) -> None:
    """The unsettled ids include those beyond all that were ever marked. The end and the maximum
    count are respected.
    """
    settled = ContainerBitmap()
    settled.add(4)
    settled.add_all(np.array([1, 2]))

    assert expected == settled.missing(first, stop, count_max=count_max)


def test_an_id_that_is_nobodys_costs_nothing() -> None:
    """Datanodes may report containers of any number."""
    settled = ContainerBitmap()
    settled.add(3)

    settled.discard_all(np.array([2**62, 3]))

    assert 2**62 not in settled
    assert 3 not in settled


@given(st.lists(st.lists(st.integers(1, 9)) | st.integers(0, 4)))
def test_due_containers_are_taken_once_in_order(
    steps: list[list[int] | int],
) -> None:
    """Lists are added and a number of ids is taken, as with a dict of the waiting ids."""
    due, model = PriorityContainerQueue(), dict[int, None]()
    for step in steps:
        if isinstance(step, list):
            due.add(step)
            model.update(dict.fromkeys(sorted(step)))
        else:
            first = list(model)[:step]
            assert first == due.pop(step)
            for number in first:
                del model[number]
        assert (len(model), bool(model)) == (len(due), bool(due))
    assert list(model) == due.pop(99)


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 9))) | st.integers(0, 4), max_size=20)
)
def test_urgent_containers_are_taken_first(steps: list[tuple[bool, list[int]] | int]) -> None:
    """This holds whether they waited before or not, in the order in which they became urgent.
    Each still waits once.
    """
    due, urgent, others = PriorityContainerQueue(), dict[int, None](), set[int]()
    for step in [*steps, 99]:
        match step:
            case (True, list(ids)):
                due.add_all(np.array(ids, np.int64), is_urgent=True)
                urgent.update(dict.fromkeys(sorted(ids)))
                others.difference_update(ids)
            case (False, list(ids)):
                due.add(ids)
                others |= set(ids) - urgent.keys()
            case int(count):
                taken = due.pop(count)
                first, rest = taken[: len(urgent)], taken[len(urgent) :]
                assert list(urgent)[:count] == first
                assert min(count, len(urgent) + len(others)) == len(taken)
                assert len(set(rest)) == len(rest)
                assert set(rest) <= others
                others.difference_update(rest)
                urgent = dict.fromkeys(list(urgent)[count:])
        assert len(urgent) + len(others) == len(due)


def test_an_id_of_any_size_waits() -> None:
    """Such an id has no mark, so no memory is used for the ids before it."""
    due = PriorityContainerQueue()
    due.add([2**62, 3, MARKED_MAX])
    due.add([3])

    assert [3, MARKED_MAX, 2**62] == due.pop(9)
    due.add_all(np.array([2**62]), is_urgent=True)
    due.add([4])
    assert [2**62, 4] == due.pop(9)
    assert not due


@given(
    st.lists(st.integers(1, 9) | st.lists(st.integers(1, 9))),
    st.sets(st.integers(1, 12) | st.just(2**62)),
)
def test_changed_containers_are_returned_once(
    changes: list[int | list[int]], among: set[int]
) -> None:
    """The containers are added one by one, or many at once."""
    stirred, expected = DirtyContainers(), set[int]()
    for change in changes:
        if isinstance(change, list):
            stirred.discard_all(np.array(change, np.int64))
            expected.update(change)
        else:
            stirred.discard(change)
            expected.add(change)

    assert bool(changes) == bool(stirred)
    if among:
        assert expected & among == stirred.pop(among)
    else:
        assert expected == set(stirred.pop_all().tolist())
    assert not stirred
    assert set() == stirred.pop(among)


ROWS = (
    (ContainerTable(), container(container_id=3)),
    (ReplicaTable(), replica("dn1", ReplicaState.CLOSED, container_id=3)),
    (PendingTable(), pending(9, container_id=3)),
    (AllocationTable(), Allocation(3, 1, 1, 10, "a")),
    (TransactionTable(), DeleteTransaction(1, 3, (1,), 0)),
    (KeyTable(), Key("k", 10, 0, (KeyBlock(3, 1, 1, 10),))),
    (HoldTable(), Hold(3, "", 0, "")),
)


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[table.name for table, _ in ROWS])
def test_any_row_about_a_container_unsettles_it(table: Table[object, object], row: object) -> None:
    """A new row and a removed one do, and no other container is affected."""
    settled = ContainerBitmap()
    table.settled.append(settled)
    states = []

    for value in (row, None):
        settled.add(2)
        settled.add(3)
        table.apply(table.key_of(row), value)
        states.append((2 in settled, 3 in settled))

    assert [(True, False)] * 2 == states
