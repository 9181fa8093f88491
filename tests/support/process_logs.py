"""Reading the logs of processes that are still running."""

import json
from pathlib import Path
from typing import Any


def log_lines(path: Path) -> list[str]:
    """Return the complete lines of a log. A last line that the process has not written completely
    is left out."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def log_events(path: Path, name: str | None = None) -> list[dict[str, Any]]:
    """Return the events in a log, which has a JSON object per line. If `name` is given, return only
    the events with this name. Raise JSONDecodeError if a complete line is not JSON."""
    events = [json.loads(line) for line in log_lines(path)]
    return [event for event in events if name in {None, event["event"]}]
