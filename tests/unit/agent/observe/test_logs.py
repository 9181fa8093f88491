"""The log: what is said too often is dropped, counted, and told."""

import errno
import io
import json
import sys

import pytest
import structlog

from suture.observe.logs import EVENT_COUNT_MAX, WINDOW_S, RateLimitProcessor, configure


class Writes(io.StringIO):
    """A stream that keeps what each write was."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[str] = []

    def write(self, text: str) -> int:
        """Keep it."""
        self.each.append(text)
        return super().write(text)


def test_an_event_without_end_is_cut_and_counted() -> None:
    """The next window has the number of dropped events. Other events are not affected."""
    now_s = 0.0
    bounded = RateLimitProcessor(lambda: now_s)
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
    bounded = RateLimitProcessor(lambda: 0.0)

    for number in range(5_000):
        bounded(None, "info", {"event": f"name {number}"})

    assert len(bounded._seen) <= 1_000


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit log writes to the same stream under another lock: its line must not come between
    an event and the end of its line."""
    stream, before = Writes(), structlog.get_config()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        configure()
        structlog.get_logger().info("agent_stopped")
    finally:
        structlog.configure(**before)

    (line,) = stream.each
    assert line.endswith("}\n")


class Fills(Writes):
    """A stream of which the disk is full, until it is not."""

    is_full = True

    def write(self, text: str) -> int:
        """Refuse, or keep it."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_dropped_log_lines_are_counted_and_logged_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of the log has to see the gap, and a full disk raises in no caller."""
    stream, before = Fills(), structlog.get_config()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        configure()
        for _ in range(3):
            structlog.get_logger().info("agent_stopped")
        stream.is_full = False
        structlog.get_logger().info("agent_started")
        structlog.get_logger().info("agent_stopped")
    finally:
        structlog.configure(**before)

    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert ["log_lines_lost", "agent_started", "agent_stopped"] == [one["event"] for one in told]
    assert 3 == told[0]["line_count"]
    assert "ENOSPC" == told[0]["error"]
    assert told[0]["timestamp"]
    assert told[0]["level"]
