"""Reading the logs of processes that are still running."""

import json
from pathlib import Path
from typing import Any


def log_lines(path: Path) -> list[str]:
    """Return the lines of a log that are written whole: the last one may be under way, and a
    reader then sees only its first pages."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def log_events(path: Path, name: str | None = None) -> list[dict[str, Any]]:
    """Return the events of a log, each a JSON object on a line; only those of a name if one is
    given. Raises JSONDecodeError if a whole line is anything else."""
    events = [json.loads(line) for line in log_lines(path)]
    return [event for event in events if name in {None, event["event"]}]
