"""The threads of calls: many may wait for their callers, few work at once.

A call has a thread from its first byte on, whatever its caller does then. So there is one for every
call that is let in, and a call that has its request takes one of a few slots for as long as it
works; it gives the slot back while it waits for its caller. A thread that only waits costs some
ten kilobytes, and is made when it is first needed.

gRPC asks nothing of a call's future but when it has ended. `ThreadPoolExecutor` makes one that can
be awaited, cancelled and has a result: 27 calls of Python for each call of gRPC, beside five here.
"""

import time
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

import structlog

LATE_S: Final = 5.0  # a call that found no slot for so long is a reason to say so

_Work = tuple["Ending", Callable[..., object], tuple[Any, ...]]


class Ending:
    """The end of a call: as much of a future as `grpc.server` uses.

    Whoever adds a callback and the thread that ends the call may race: both run what is in the
    list, and each callback leaves it once.
    """

    __slots__ = ("_callbacks", "_has_come")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], object]] = []
        self._has_come = False

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Have `callback` called with this when the call has ended, or now."""
        self._callbacks.append(callback)
        if self._has_come:
            self.come()

    def come(self) -> None:
        """Call what waits for it."""
        self._has_come = True
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class CallThreads(Executor):
    """A pool for `grpc.server`, and the slots of what it runs."""

    def __init__(
        self,
        slot_count: int,
        call_count_max: int,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let `slot_count` calls work at once, of `call_count_max` that are there."""
        self._thread_count_max = max(slot_count, call_count_max)
        self._threads: list[Thread] = []
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle: SimpleQueue[None] = SimpleQueue()  # one for each thread that nothing waits for
        self._lacking = 0  # so much work waits though there is no idle thread
        self._starting = Lock()
        self._is_shut = False
        self._free: SimpleQueue[None] = SimpleQueue()  # a Semaphore takes ten times as long
        for _ in range(slot_count):
            self._free.put(None)
        self._monotonic_s = monotonic_s
        self._tickets = count()
        self._waiting: dict[int, float] = {}  # since when, by ticket; the oldest first

    def submit(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> Any:
        """Have a thread call `fn`; return the `Ending` of that.

        Raise RuntimeError after `shutdown`, as executors do.
        """
        assert not kwargs, "gRPC passes arguments by their places"
        if self._is_shut:
            raise RuntimeError("cannot take calls after shutdown")
        ending = Ending()
        self._work.put((ending, fn, args))
        try:
            self._idle.get_nowait()
        except Empty:
            self._start_one()
        return ending

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; end the threads when what they have is done, or begun."""
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
        """Start a thread for work that no idle one takes. Where none can be had, as many are there
        as there may be or as the host has, the work waits for the next thread that is through."""
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
                structlog.get_logger().error("rpc_thread_not_started", reason=str(error))
            self._lacking += 1

    def _become_idle(self) -> None:
        """Note that a thread is through with its work, unless other work waits for just that."""
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
            self._become_idle()  # before anybody hears of the end, and calls again
            ending.come()
            del work, ending, call, arguments  # an idle thread keeps nothing of its last call

    def take(self) -> None:
        """Wait for a slot."""
        try:
            self._free.get_nowait()
        except Empty:
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        ticket = next(self._tickets)
        self._waiting[ticket] = self._monotonic_s()
        self._free.get()
        del self._waiting[ticket]

    def give(self) -> None:
        """Give a slot back."""
        self._free.put(None)

    @property
    def threads(self) -> tuple[Thread, ...]:
        """All threads that were made."""
        return tuple(self._threads)

    @property
    def waiting_count(self) -> int:
        """How many calls wait for a slot."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """Why nothing may be answered now; "" while calls find their slots."""
        begun_s = next(iter(list(self._waiting.values())), None)
        late_s = 0.0 if begun_s is None else self._monotonic_s() - begun_s
        if late_s < LATE_S:
            return ""
        return f"{self.waiting_count} calls wait for a thread, the first for {late_s:.0f} s"
