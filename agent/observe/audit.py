"""The audit log: who did what, to which container, and how it ended; one JSON object a line.

    {"event": "audit", "at": "...", "action": "DeleteReplicas", "result": "OK", "who": "ann", ...}

It goes to a file of its own, or to stderr beside the log of the process, whatever the level of that
is. A file is put aside when it is full, and the oldest is removed: audit.jsonl, audit.jsonl.1, ...;
it may also be rotated from outside, by renaming it. Nothing is dropped, except refusals: who calls
without permission must not be able to push what counts out of the files.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import structlog
from structlog.typing import EventDict

from agent.errors import Code, Refused
from agent.observe.logs import Bounded

FILE_MODE: Final = 0o640
FILE_BYTES_MAX: Final = 64 * 1024**2  # some 200,000 actions
KEPT_COUNT: Final = 15  # 1 GiB with the one that is written
TEXT_CHARACTERS_MAX: Final = 1_000  # of one fact, which may come from another host
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
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """Open the file, if there is one. Raise Refused(INVALID_CONFIG) if it cannot be written."""
        self._now_s = now_s
        self._bounded = Bounded(monotonic_s)
        self._handler: logging.Handler = (
            logging.StreamHandler() if path is None else _opened(path, file_bytes_max)
        )

    def record(self, action: str, result: str, **facts: object) -> None:
        """Write down one action, and how it ended."""
        at = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        event: EventDict = {"event": "audit", "at": at, "action": action, "result": result}
        event.update({name: _cut(value) for name, value in facts.items()})
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


class _Handler(RotatingFileHandler):
    """Appends lines; a file that was renamed away is made again."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line to the file that has the name now."""
        try:
            if self._is_renamed():
                former, self.stream = self.stream, self._open()
                if former is not None:
                    former.close()
        except OSError:
            self.handleError(record)
            return
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say in the ordinary log what could not be written, and go on serving."""
        log.error("audit_not_written", path=self.baseFilename, line=record.getMessage())

    def _is_renamed(self) -> bool:
        if self.stream is None:  # rotating it failed; the next line opens it again
            return False
        ours = os.fstat(self.stream.fileno())
        try:
            named = Path(self.baseFilename).stat(follow_symlinks=False)
        except FileNotFoundError:
            return True
        return (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino)

    def _open(self) -> TextIOWrapper:
        """Open the file for ourselves and our group, and never through a link."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, FILE_MODE), "a", encoding="utf-8")


def _opened(path: Path, file_bytes_max: int) -> _Handler:
    try:
        return _Handler(path, maxBytes=file_bytes_max, backupCount=KEPT_COUNT, encoding="utf-8")
    except OSError as error:
        raise Refused(
            Code.INVALID_CONFIG, f"cannot write the audit log {path}: {error.strerror}"
        ) from error


def _cut(value: object) -> object:
    is_long = isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX
    return f"{str(value)[:TEXT_CHARACTERS_MAX]}..." if is_long else value
