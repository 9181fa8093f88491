"""Rows of a plan as columns, and what is urgent."""

import numpy as np

from health.plan.plan_rows import (
    DELETE_PRIORITY,
    MISPLACED_PRIORITY,
    OUT_OF_SERVICE_PRIORITY,
    SCAN_PRIORITY,
    RaggedArray,
    concatenate_rows,
    rows_of,
)
from health.words import Action


def test_priorities_put_loss_before_routine_work() -> None:
    """The numbers are in rows that operators read. Below five they mean that data may still be
    lost.
    """
    assert (5, 6, 7, 8) == (
        OUT_OF_SERVICE_PRIORITY,
        MISPLACED_PRIORITY,
        DELETE_PRIORITY,
        SCAN_PRIORITY,
    )


def test_a_row_asks_for_nothing_that_it_does_not_say() -> None:
    """The row has no copies, no bytes, no force and no targets. One value stands for all rows."""
    rows = rows_of(Action.CLOSE, np.array([3, 5]), priority=4, reason="because")

    assert [4, 4] == rows.priority.tolist()
    assert ["because", "because"] == rows.reason.tolist()
    assert [0, 0] == rows.copies.tolist() == rows.bytes_estimated.tolist()
    assert [False, False] == rows.is_forced.tolist()
    for lists in (rows.sources, rows.targets, rows.indexes):
        assert ([0, 0], []) == (lists.sizes().tolist(), lists.values.tolist())


def test_rows_are_joined_with_their_lists() -> None:
    """
    Each row keeps its own numbers, also behind one that has none.
    """
    first = rows_of(
        Action.REPLICATE,
        np.array([1, 2]),
        priority=np.array([0, 1]),
        reason="few",
        sources=RaggedArray.of(np.array([0, 0]), np.array([7, 8]), 2),
        copies=2,
    )
    second = rows_of(
        Action.DELETE,
        np.array([9]),
        priority=7,
        reason="many",
        sources=RaggedArray.of(np.array([0]), np.array([4]), 1),
        is_forced=True,
        bytes_estimated=10,
    )

    rows = concatenate_rows([first, second])

    assert [1, 2, 9] == rows.container.tolist()
    assert [0, 1, 7] == rows.priority.tolist()
    assert [2, 2, 0] == rows.copies.tolist()
    assert [False, False, True] == rows.is_forced.tolist()
    assert [0, 0, 10] == rows.bytes_estimated.tolist()
    assert [2, 0, 1] == rows.sources.sizes().tolist()
    assert [7, 8, 4] == rows.sources.values.tolist()
