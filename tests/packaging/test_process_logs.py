"""Reading a log while its process writes it."""

from json import JSONDecodeError
from pathlib import Path

import pytest

from tests.support.process_logs import log_events


def test_a_line_under_way_is_none_yet(tmp_path: Path) -> None:
    """A reader may see only the beginning of a line longer than a page."""
    log = tmp_path / "log"
    log.write_text('{"event": "a"}\n{"event": "b", "why": "' + "x" * 4096)
    before = log_events(log)
    with log.open("a") as rest:
        rest.write('"}\n')

    assert [{"event": "a"}] == before
    assert ["b"] == [event["event"] for event in log_events(log, "b")]


def test_a_whole_line_that_is_no_event_is_an_error(tmp_path: Path) -> None:
    """Only what is under way is left out."""
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n")

    with pytest.raises(JSONDecodeError):
        log_events(log)
