"""The audit log: who did what, to which container, and how it ended; one JSON object a line.

    {"event": "audit", "at": "...", "action": "DeleteReplicas", "result": "OK", "who": "ann", ...}

It goes to a file of its own, which may be rotated by renaming it, or to stderr beside the log of
the process, whatever the level of that is. Nothing is dropped, however much happens, except
refusals: who calls without permission must not be able to fill a disk.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

import structlog
from structlog.typing import EventDict

from agent.errors import Code, Refused
from agent.observe.logs import Bounded

FILE_MODE: Final = 0o640
REFUSALS: Final = frozenset({Code.PERMISSION_DENIED.value, Code.UNAUTHENTICATED.value})

log = structlog.get_logger("suture.audit")


class AuditLog:
    """Writes actions down. Safe to use from many threads at once."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the file, if there is one. Raise Refused(INVALID_CONFIG) if it cannot be written."""
        self._now_s = now_s
        self._bounded = Bounded(monotonic_s)
        self._handler = logging.StreamHandler() if path is None else _opened(path)

    def record(self, action: str, result: str, **facts: object) -> None:
        """Write down one action, and how it ended."""
        at = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        event: EventDict = {"event": "audit", "at": at, "action": action, "result": result, **facts}
        if result in REFUSALS:
            try:
                event = self._bounded(None, "", event)
            except structlog.DropEvent:
                return
        line = json.dumps(event, default=str)
        self._handler.handle(
            logging.LogRecord("suture.audit", logging.INFO, "", 0, line, None, None)
        )

    def close(self) -> None:
        """Write no more."""
        self._handler.close()


class _Handler(WatchedFileHandler):
    """Appends lines; a file that was renamed away is made anew."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say in the ordinary log what could not be written, and go on serving."""
        log.error("audit_not_written", path=self.baseFilename, line=record.getMessage())


def _opened(path: Path) -> WatchedFileHandler:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE))
        return _Handler(path, encoding="utf-8")
    except OSError as error:
        raise Refused(
            Code.INVALID_CONFIG, f"cannot write the audit log {path}: {error.strerror}"
        ) from error
