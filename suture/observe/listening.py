"""Prints the line on stdout that says that a daemon serves calls, for scripts and tests."""

import json
import os
import sys
from collections.abc import Sequence

import structlog

from suture.observe.json_schema import versioned

_log = structlog.get_logger()


def announce_listening(
    address: str, *, web: str, **facts: str | int | bool | Sequence[str]
) -> None:
    """Print one line of JSON to stdout: the event `listening`, the addresses, and `facts`.

    If the line cannot be written (full disk, closed pipe), the function logs the error and
    redirects stdout to /dev/null, so that the running server does not end.
    """
    line = versioned({"event": "listening", "address": address, "web": web, **facts})
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: a closed sys.stdout
        _log.warning("listening_line_write_failed", address=address, error=str(error))
        _discard_stdout()


def _discard_stdout() -> None:
    """Redirect descriptor 1 to /dev/null. Otherwise, the interpreter would fail to flush stdout at
    exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
