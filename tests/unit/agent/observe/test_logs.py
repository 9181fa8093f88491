"""The log: what is said too often is dropped, counted, and told."""

import pytest
import structlog

from agent.observe.logs import EVENT_COUNT_MAX, WINDOW_S, Bounded


def test_an_event_without_end_is_cut_and_counted() -> None:
    """The next window tells how many were dropped; other events are not touched."""
    now_s = 0.0
    bounded = Bounded(lambda: now_s)
    for _ in range(EVENT_COUNT_MAX):
        bounded(None, "info", {"event": "read_failed"})

    for _ in range(7):
        with pytest.raises(structlog.DropEvent):
            bounded(None, "info", {"event": "read_failed"})
    other = bounded(None, "info", {"event": "agent_stopped"})
    now_s = WINDOW_S
    told = bounded(None, "info", {"event": "read_failed"})

    assert {"event": "agent_stopped"} == other
    assert {"event": "read_failed", "dropped_before_count": 7} == told


def test_names_are_bounded() -> None:
    """A defect that makes names up does not fill the memory."""
    bounded = Bounded(lambda: 0.0)

    for number in range(5_000):
        bounded(None, "info", {"event": f"name {number}"})

    assert len(bounded._seen) <= 1_000
