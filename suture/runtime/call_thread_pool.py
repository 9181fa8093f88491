"""A thread pool for gRPC calls, in which many calls may wait for their clients and few may work at
a time.

Each accepted call has its own thread. When its request is complete, the call takes one of a few
slots to work. It returns the slot while it waits for its client. A waiting thread costs about ten
kilobytes. Threads are started when they are first needed.

gRPC needs the future of a call only to get notified of its end. The futures of `ThreadPoolExecutor`
cost 27 Python calls per gRPC call; `CallCompletion` costs five.
"""

import time
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import structlog

LATE_S: Final = 5.0  # waiting time for a slot after which it is reported

_Work = tuple["CallCompletion", Callable[..., object], tuple[Any, ...]]


class CallCompletion:
    """The end of a call: the part of the interface of a future that `grpc.server` uses.

    A callback may be added while another thread ends the call. Then both threads run the callbacks
    in the list. A callback is removed from the list before it runs, so it runs once.
    """

    __slots__ = ("_callbacks", "_has_come")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], object]] = []
        self._has_come = False

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this object when the call ends. If it has already ended, call
        `callback` now."""
        self._callbacks.append(callback)
        if self._has_come:
            self.come()

    def come(self) -> None:
        """Record that the call has ended, and run the callbacks."""
        self._has_come = True
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class CallThreadPool(Executor):
    """A thread pool for `grpc.server`, with a limited number of slots for calls that work."""

    def __init__(
        self,
        slot_count: int,
        call_count_max: int,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a pool for at most `call_count_max` calls at a time, of which at most `slot_count`
        work and the others wait."""
        self._thread_count_max = max(slot_count, call_count_max)
        self._threads: list[Thread] = []
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle: SimpleQueue[None] = SimpleQueue()  # an entry per idle thread
        self._lacking = 0  # number of queued work items for which no thread was idle
        self._starting = Lock()
        self._is_shut = False
        self._free: SimpleQueue[None] = SimpleQueue()  # faster than a Semaphore
        for _ in range(slot_count):
            self._free.put(None)
        self._monotonic_s = monotonic_s
        self._tickets = count()
        self._waiting: dict[int, float] = {}  # start of each wait, by ticket; oldest first

    def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn` in a thread, and return its `CallCompletion`. Raise RuntimeError after
        `shutdown`, as executors do."""
        assert not kwargs, "gRPC passes arguments by their places"
        if self._is_shut:
            raise RuntimeError("cannot take calls after shutdown")
        ending = CallCompletion()
        self._work.put((ending, fn, args))
        try:
            self._idle.get_nowait()
        except Empty:
            self._start_one()
        return ending

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and end the threads after their running and queued calls."""
        with self._starting:
            self._is_shut = True
            threads = list(self._threads)
        if cancel_futures:
            self._drop_all()
        for _ in threads:
            self._work.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _drop_all(self) -> None:
        while True:
            try:
                dropped = self._work.get_nowait()
            except Empty:
                return
            if dropped is not None:
                dropped[0].come()

    def _start_one(self) -> None:
        """Start a thread for queued work. If the limit of threads is reached, or the host cannot
        start another thread, the work waits for the next idle thread."""
        with self._starting:
            if self._is_shut:
                return
            name = f"rpc_{len(self._threads)}"
            thread = Thread(target=self._run, name=name, daemon=True)
            try:
                if len(self._threads) < self._thread_count_max:
                    thread.start()
                    self._threads.append(thread)
                    return
            except RuntimeError as error:
                structlog.get_logger().error("rpc_thread_start_failed", reason=str(error))
            self._lacking += 1

    def _become_idle(self) -> None:
        """Record that this thread is idle. If queued work has no thread, this thread runs it
        instead."""
        if self._lacking:
            with self._starting:
                if self._lacking:
                    self._lacking -= 1
                    return
        self._idle.put(None)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            ending, call, arguments = work
            try:
                call(*arguments)
            except BaseException as error:  # noqa: BLE001 - gRPC answers for its calls: this is its own
                structlog.get_logger().error("rpc_thread_failed", exc_info=error)
            self._become_idle()  # first, because the caller may call again at once
            ending.come()
            del work, ending, call, arguments  # an idle thread keeps no reference to its last call

    def acquire(self) -> None:
        """Take a slot for the calling thread. Wait until a slot is free."""
        try:
            self._free.get_nowait()
        except Empty:
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        ticket = next(self._tickets)
        self._waiting[ticket] = self._monotonic_s()
        self._free.get()
        del self._waiting[ticket]

    def release(self) -> None:
        """Return a slot, so that a waiting call can take it."""
        self._free.put(None)

    @property
    def threads(self) -> tuple[Thread, ...]:
        """All threads that were started."""
        return tuple(self._threads)

    @property
    def waiting_count(self) -> int:
        """Number of calls that wait for a slot."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """A text for the status if a call has waited longer than `LATE_S` seconds for a slot; ""
        otherwise."""
        begun_s = next(iter(list(self._waiting.values())), None)
        late_s = 0.0 if begun_s is None else self._monotonic_s() - begun_s
        if late_s < LATE_S:
            return ""
        return f"{self.waiting_count} calls wait for a thread, the first for {late_s:.0f} s"
