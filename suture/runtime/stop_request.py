"""A request to stop or to reload, for which the main thread waits. A signal or a thread sets it.

A `threading.Event` is not suitable, for two reasons. First, CPython runs the handler of a signal
between two bytecodes of the main thread. A signal just before the thread waits for a lock does not
wake the thread. Second, a handler that calls `Event.set` while the main thread is in `Event.wait`
waits forever for the event's own lock. In this module, the interpreter's C handler writes to a pipe
instead, so no signal is lost (the "self-pipe trick", D. J. Bernstein; `signal.set_wakeup_fd`).
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from suture.runtime.exit_codes import exit_code_of

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
DRAIN_BYTES: Final = 4096


class StopRequest:
    """A request to stop, for which a thread can wait. It cannot be reset."""

    def __init__(self) -> None:
        self._is_set = False
        self._is_reload_wanted = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)

    def on_signals(self, *, force_after: int = 2) -> None:
        """Set the request on SIGTERM and SIGINT, and request a reload on SIGHUP.

        After `force_after` signals SIGTERM or SIGINT, the process ends at once. Call the method
        from the main thread. A signal that the parent process ignored remains ignored, which nohup
        requires.
        """
        seen = 0

        def handle(number: int, _frame: FrameType | None) -> None:
            nonlocal seen
            seen += 1
            self.set()
            if seen >= force_after:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)

        def handle_reload(_number: int, _frame: FrameType | None) -> None:
            self._is_reload_wanted = True

        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handle if number in STOP_SIGNALS else handle_reload)

    def set(self) -> None:
        """Request a stop. The method may be called by a signal handler and by every thread."""
        self._is_set = True
        with contextlib.suppress(BlockingIOError):  # a full pipe also wakes the reader
            os.write(self._writing, b"\0")

    def is_set(self) -> bool:
        """Return True if a stop was requested."""
        return self._is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a stop is requested, at most `timeout_s` seconds. Return True if a stop was
        requested. Only one thread may wait."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_set:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            if self._poll.poll(None if left_s is None else left_s * 1000):
                os.read(self._reading, DRAIN_BYTES)  # the byte may be from another signal
        return self._is_set

    def wait_or_reload(self) -> bool:
        """Wait until a stop or a reload is requested. Return True for a stop and False for a
        reload. Several requests for a reload at the same time count as one."""
        while not self._is_set:
            if self._is_reload_wanted:
                self._is_reload_wanted = False
                return False
            self._poll.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(self._reading, DRAIN_BYTES)
        return True


def run_server(app: Callable[..., object], stop: StopRequest | None) -> None:
    """Run the command line of a server until `stop` is set, and exit with its exit code.

    If `stop` is None, the signals SIGTERM and SIGINT stop the server.
    """
    if stop is None:
        stop = StopRequest()
        stop.on_signals()
    try:
        app(obj=stop)
    except SystemExit as end:
        sys.exit(exit_code_of(end.code))
