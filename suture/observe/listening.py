"""The line on stdout that announces a serving daemon, for scripts and test harnesses."""

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
    """Write one line of JSON to stdout: event `listening`, the bound addresses, and `facts`.

    If the write fails (full disk, closed pipe), the function logs the error and points stdout at
    /dev/null. The server is already serving and must not end because of a message.
    """
    line = versioned({"event": "listening", "address": address, "web": web, **facts})
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: a closed sys.stdout
        _log.warning("listening_line_write_failed", address=address, error=str(error))
        _discard_stdout()


def _discard_stdout() -> None:
    """Point descriptor 1 at /dev/null, because the interpreter would fail to flush stdout at
    exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
