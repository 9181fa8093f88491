"""The audit log: one JSON object per line with the caller, the action, the container and the
result.

    {"event": "audit", "at": "...", "action": "DeleteReplicas", "result": "OK", "who": "ann", ...}

The audit log is written to its own file, or to stderr together with the process log, whatever the
log level is. When the file is full, it is rotated (audit.jsonl, audit.jsonl.1, ...) and the oldest
file is removed. An external tool may also rotate the file by renaming it. The rate of entries about
refused calls is limited, and more entries are dropped. Otherwise, callers without permission could
fill the files, so that older entries are removed. All other entries are written.
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

from suture.errors import Code, RefusedError
from suture.observe.logs import RateLimitProcessor

FILE_MODE: Final = 0o640
FILE_BYTES_MAX: Final = 64 * 1024**2  # about 200,000 actions
KEPT_COUNT: Final = 15  # with the current file, 1 GiB in total
TEXT_CHARACTERS_MAX: Final = 1_000  # maximum length of one fact, which may come from another host
REFUSALS: Final = frozenset({Code.PERMISSION_DENIED.value, Code.UNAUTHENTICATED.value})

log = structlog.get_logger("suture.audit")


class AuditLog:
    """Writes the audit log to a file or to stderr. Thread-safe."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """Open the file `path`; None = write to stderr. Raise RefusedError(INVALID_CONFIG) if the
        file cannot be written."""
        self.path = path
        self._now_s = now_s
        self._bounded = RateLimitProcessor(monotonic_s)
        self._handler: logging.Handler = (
            logging.StreamHandler() if path is None else _opened(path, file_bytes_max)
        )

    def record(self, action: str, result: str, **facts: object) -> None:
        """Write a line about one action and its result. A line about a refused call may be dropped
        because of the rate limit."""
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
        """Close the file."""
        self._handler.close()


class _Handler(RotatingFileHandler):
    """Appends lines to the file of the audit log. If the file was renamed, a new file is
    created."""

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line to the file of the audit log. If the file was renamed, create a new one."""
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
        """Log that a line of the audit log could not be written, and continue."""
        log.error("audit_write_failed", path=self.baseFilename, line=record.getMessage())

    def _is_renamed(self) -> bool:
        if self.stream is None:  # the rotation failed; the next line opens the file again
            return False
        ours = os.fstat(self.stream.fileno())
        try:
            named = Path(self.baseFilename).stat(follow_symlinks=False)
        except FileNotFoundError:
            return True
        return (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino)

    def _open(self) -> TextIOWrapper:
        """Open the file for appending. Only its owner and group have access to a new file. A
        symbolic link is not followed."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, FILE_MODE), "a", encoding="utf-8")


def _opened(path: Path, file_bytes_max: int) -> _Handler:
    try:
        return _Handler(path, maxBytes=file_bytes_max, backupCount=KEPT_COUNT, encoding="utf-8")
    except OSError as error:
        raise RefusedError(
            Code.INVALID_CONFIG, f"cannot write the audit log {path}: {error.strerror}"
        ) from error


def _cut(value: object) -> object:
    is_long = isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX
    return f"{str(value)[:TEXT_CHARACTERS_MAX]}..." if is_long else value
