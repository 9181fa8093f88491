"""The loop that runs a worker in a thread, handles its errors, stops it and reports its status.

A worker does one unit of work per call of `step`. The result of `step` determines when the loop
calls it again:

    Busy         at once
    RetryAfter   after `delay_s`, or when the worker is woken
    Backoff      after `delay_s`, even if the worker is woken
    Idle         when the worker is woken, at the latest after `idle_s`
    NoMoreWork   never

If `step` raises an exception, the loop counts it, stores it as `last_error`, logs it, pauses, and
continues. The pause grows with each failure. Loops are the only places with `except Exception`
(docs/ARCHITECTURE.md).
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import structlog

from suture.runtime.backoff import backoff_s
from suture.runtime.clock import Clock, SystemClock

IDLE_S_DEFAULT: Final = 5.0
BACKOFF_MIN_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
QUIET_MAX_S: Final = 300.0  # a worker without progress for longer hangs, or lists a huge directory
ERROR_TEXT_MAX: Final = 500  # characters of `last_error`, which is sent in status messages

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Busy:
    """Result of a worker's step: there is more work now."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Result of a worker's step: there is more work after `delay_s` seconds. The worker may be
    woken earlier."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Backoff:
    """Result of a worker's step: there is more work after `delay_s` seconds. The worker is not
    woken earlier."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Result of a worker's step: there is no work until the worker is woken."""


@dataclass(frozen=True, slots=True)
class NoMoreWork:
    """Result of a worker's step: there will never be work again, so the loop ends."""


Step = Busy | RetryAfter | Backoff | Idle | NoMoreWork


class Worker(Protocol):
    """Does one unit of work per call of `step`. After a stop request, a running `step` must return
    within a bounded time."""

    @property
    def name(self) -> str:
        """A short, unique name, which is used for the thread, the metric and the status line."""
        ...

    def step(self) -> Step:
        """Do one unit of work. Return when the loop should call `step` again."""
        ...


class WorkerState(StrEnum):
    """The state of a worker loop."""

    CREATED = "created"
    WORKING = "working"
    WAITING = "waiting"
    BACKING_OFF = "backing off"
    DONE = "done"
    STOPPED = "stopped"
    DEAD = "dead"  # the loop's thread ended without a stop request


ENDED: Final = frozenset({WorkerState.DONE, WorkerState.STOPPED})


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of a worker loop for operators. `quiet_s` is the number of seconds since its last
    progress."""

    name: str
    state: WorkerState
    step_count: int
    error_count: int
    last_error: str
    quiet_s: float

    def is_stalled(self, quiet_max_s: float) -> bool:
        """Return True if the thread of the loop died, or if a running loop made no progress for
        more than `quiet_max_s` seconds."""
        if self.state is WorkerState.DEAD:
            return True
        return self.state not in {*ENDED, WorkerState.CREATED} and self.quiet_s > quiet_max_s


class ProgressMarker:
    """Records the progress of a long step. The step must call `mark` after every read."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._beat_at_s = self._clock.monotonic_s()

    def mark(self) -> None:
        """Record that the step has made progress now."""
        self._beat_at_s = self._clock.monotonic_s()

    def quiet_s(self) -> float:
        """Return the seconds since the last call of `mark`."""
        return self._clock.monotonic_s() - self._beat_at_s


class WakeEvent:
    """An event that wakes a waiting worker. It is created before the worker, and passed to the
    worker, to its loop, and to each component that submits work."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_rung = False

    def set(self) -> None:
        """End the current wait of the worker. If the worker is not waiting, its next wait ends at
        once."""
        if self._is_rung:
            return  # already set; a burst calls this thousands of times
        with self._condition:
            self._is_rung = True
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until `set` is called, at most `timeout_s` seconds. Reset the event, and return True
        if `set` was called."""
        with self._condition:
            rung = self._condition.wait_for(lambda: self._is_rung, timeout=timeout_s)
            self._is_rung = False
        return rung


class WorkerLoop:
    """Runs one worker in its own thread until the worker is done or stopped."""

    def __init__(
        self,
        worker: Worker,
        *,
        clock: Clock | None = None,
        pulse: ProgressMarker | None = None,
        bell: WakeEvent | None = None,
        idle_s: float = IDLE_S_DEFAULT,
    ) -> None:
        self._worker = worker
        self._clock = clock or SystemClock()
        self._pulse = pulse or ProgressMarker(self._clock)
        self._idle_s = idle_s
        self._bell = bell or WakeEvent()
        self._stopping = threading.Event()
        self._is_resting = False
        self._state = WorkerState.CREATED
        self._step_count = 0
        self._error_count = 0
        self._errors_in_a_row = 0
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name=worker.name, daemon=True)

    def start(self) -> None:
        """Start the thread. The method may be called only once."""
        self._thread.start()

    def wake(self) -> None:
        """Wake the worker, because there is work."""
        self._bell.set()

    def request_stop(self) -> None:
        """Request that the loop ends after the current step. The method does not wait."""
        self._stopping.set()
        self._bell.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, at most `timeout_s` seconds. Return True if it has
        ended."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> WorkerStatus:
        """Return the status of the loop for operators."""
        state = self._state
        if self._thread.ident is not None and not self._thread.is_alive() and state not in ENDED:
            state = WorkerState.DEAD
        return WorkerStatus(
            self._worker.name,
            state,
            self._step_count,
            self._error_count,
            self._last_error,
            self._pulse.quiet_s(),
        )

    def run_step(self) -> float | None:
        """Run one step. Return the seconds to wait before the next step, or None after the last
        step.

        The method is public so that tests can run the steps of a worker without a thread.
        """
        self._state = WorkerState.WORKING
        self._is_resting = False  # a failed worker may be woken again
        self._pulse.mark()
        try:
            wish = self._worker.step()
        except Exception as error:  # noqa: BLE001 - the one place; it is counted, logged, paused
            return self._handle_exception(error)
        self._step_count += 1
        self._errors_in_a_row = 0
        self._pulse.mark()
        self._is_resting = isinstance(wish, Backoff)
        match wish:
            case Busy():
                return 0.0
            case RetryAfter(delay_s) | Backoff(delay_s):
                self._state = WorkerState.WAITING
                return delay_s
            case Idle():
                self._state = WorkerState.WAITING
                return self._idle_s
            case NoMoreWork():
                self._state = WorkerState.DONE
                return None

    def _handle_exception(self, error: Exception) -> float:
        self._error_count += 1
        self._errors_in_a_row += 1
        self._last_error = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
        self._state = WorkerState.BACKING_OFF
        delay_s = backoff_s(self._errors_in_a_row, first_s=BACKOFF_MIN_S, longest_s=BACKOFF_MAX_S)
        log.error(
            "worker_step_failed",
            worker=self._worker.name,
            error=self._last_error,
            error_count=self._error_count,
            retry_in_s=delay_s,
            exc_info=error if self._errors_in_a_row == 1 else None,  # only for the first of several
        )
        return delay_s

    def _run(self) -> None:
        while not self._stopping.is_set():
            delay_s = self.run_step()
            if delay_s is None:
                return
            if delay_s > 0:
                self._wait(delay_s)
        self._state = WorkerState.STOPPED

    def _wait(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds in short pieces, so that the watchdog sees progress during a
        long wait."""
        deadline_s = self._clock.monotonic_s() + delay_s
        while True:
            self._pulse.mark()
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return
            piece_s = min(left_s, IDLE_S_DEFAULT)
            what_ends_it = self._stopping if self._is_resting else self._bell
            if what_ends_it.wait(piece_s) or self._stopping.is_set():
                return


class WorkerLoops:
    """All worker loops of the process, which are started, monitored and stopped together."""

    def __init__(self, loops: Iterable[WorkerLoop] = ()) -> None:
        self._loops = list(loops)

    def add(self, loop: WorkerLoop) -> None:
        """Add a loop that was not started yet."""
        self._loops.append(loop)

    def start(self) -> None:
        """Start all loops."""
        for loop in self._loops:
            loop.start()

    def stop(self, deadline_s: float, clock: Clock | None = None) -> tuple[str, ...]:
        """Request that all loops stop, and wait at most `deadline_s` seconds. Return the names of
        the loops that are still running."""
        clock = clock or SystemClock()
        for loop in self._loops:
            loop.request_stop()
        end_s = clock.monotonic_s() + deadline_s
        return tuple(
            loop.status().name
            for loop in self._loops
            if not loop.join(max(0.0, end_s - clock.monotonic_s()))
        )

    def status(self) -> tuple[WorkerStatus, ...]:
        """Return the status of every loop."""
        return tuple(loop.status() for loop in self._loops)

    def stalled(self, quiet_max_s: float) -> tuple[str, ...]:
        """Return the names of the loops that make no progress. While there are any, no watchdog
        signal is sent."""
        return tuple(status.name for status in self.status() if status.is_stalled(quiet_max_s))
