"""Logging of all processes: one JSON object per line on stderr, which journald collects.

Uncaught exceptions of any thread and messages of libraries are logged in the same form. Only a
crash of the interpreter itself is not logged. `suture.observe.events` lists the events.
"""

import errno
import io
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

import structlog
from structlog.typing import EventDict

# gRPC reads this when it is imported, which is after this module. It writes plain text, and by
# default a line for each connection without a certificate, so a port scan would fill the journal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

WINDOW_S: Final = 10.0
EVENT_COUNT_MAX: Final = 100  # per event and window
NAME_COUNT_MAX: Final = 1_000
EVENT_CHARACTERS_MAX: Final = 100
MESSAGE_CHARACTERS_MAX: Final = 2_000

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class RateLimitProcessor:
    """Limits the number of lines of each log event. The next line after the limit has the number of
    dropped lines.

    Without the limit, a failing disk could log an error in each of a million reads and flood the
    journal. If several threads reach the limit at the same time, one more line may be logged.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._seen: dict[str, tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Return the event, with the number of lines that were dropped before it. Raise DropEvent
        if the event is over its limit."""
        name = str(event.get("event"))[:EVENT_CHARACTERS_MAX]
        now_s = self._now_s()
        since_s, count = self._seen.get(name, (now_s, 0))
        if now_s - since_s >= WINDOW_S:
            if count > EVENT_COUNT_MAX:
                event["dropped_before_count"] = count - EVENT_COUNT_MAX
            since_s, count = now_s, 0
        if name not in self._seen and len(self._seen) >= NAME_COUNT_MAX:
            self._seen.clear()
        self._seen[name] = (since_s, count + 1)
        if count >= EVENT_COUNT_MAX:
            raise structlog.DropEvent
        return event


class _StderrSink:
    """A file object that writes to the current `sys.stderr`.

    If a line cannot be written (full disk, closed pipe), the line is counted, and no error is
    raised, so that the caller continues. The next line that succeeds is preceded by a line with the
    count. The count is approximate if several threads write.
    """

    def __init__(self) -> None:
        self._lost_count = 0
        self._why = ""

    def write(self, line: str) -> None:
        """Write a line. If it cannot be written, count it."""
        try:
            if self._lost_count:
                _put(self._format_line())
                self._lost_count = 0
            _put(line)
        except (OSError, ValueError) as error:  # ValueError if stderr was closed
            self._lost_count += 1
            number = error.errno if isinstance(error, OSError) else None
            self._why = errno.errorcode.get(number or 0, str(error))

    def flush(self) -> None:
        """Do nothing, because `write` flushes each line."""

    def _format_line(self) -> str:
        told = {
            "event": "log_lines_lost",
            "level": "warning",
            "line_count": self._lost_count,
            "error": self._why,
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        return f"{json.dumps(told)}\n"


def _put(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def configure(level: str = "info") -> None:
    """Log the events at `level` and above to stderr. Called once, at the start of a process."""
    outlet = _StderrSink()
    structlog.configure(
        processors=[
            RateLimitProcessor(time.monotonic),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: structlog.WriteLogger(outlet),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def redirect_stderr() -> None:
    """Log Python warnings, uncaught exceptions and messages of libraries as events. Called by
    daemons.

    From now on, stderr has no buffer. A line that cannot be written (full disk, closed pipe) would
    stay in the buffer, and the process would end with exit code 120.
    """
    stderr = sys.stderr
    if stderr is sys.__stderr__ and stderr is not None:
        unbuffered = io.FileIO(stderr.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(
            unbuffered, "utf-8", errors="backslashreplace", write_through=True
        )
    sys.excepthook = _died
    threading.excepthook = lambda facts: _died(
        facts.exc_type, facts.exc_value, facts.exc_traceback, facts.thread
    )
    sys.unraisablehook = lambda facts: _died(
        facts.exc_type, facts.exc_value, facts.exc_traceback, where=str(facts.object)
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_FromLibraries()], force=True)
    logging.captureWarnings(True)


def _died(
    kind: type[BaseException],
    error: BaseException | None,
    trace: TracebackType | None,
    thread: threading.Thread | None = None,
    *,
    where: str = "",
) -> None:
    """Log an uncaught exception, except KeyboardInterrupt and SystemExit."""
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    structlog.get_logger().error(
        "uncaught_exception",
        thread=thread.name if thread else "main",
        where=where,
        exc_info=(kind, error or kind(), trace),
    )


class _FromLibraries(logging.Handler):
    """Logs the messages of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one message of a library."""
        structlog.get_logger().log(
            record.levelno,
            "library_message",
            library=record.name,
            message=record.getMessage()[:MESSAGE_CHARACTERS_MAX],
            exc_info=record.exc_info,
        )
