"""Replacements for `threading`, `time` and `concurrent.futures`, based on fibers.

Each replacement has the library's interface, limited to what the product uses.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

from tools.simulation.simulated_os.fibers import Fiber, ProcessDied, Scheduler

Limit = float
Seconds = float | None


class Lock:
    """Replacement for `threading.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: Fiber | None = None

    def acquire(self, blocking: bool = True, timeout: Limit = -1) -> bool:
        """Acquire the lock; return True if that was possible in time."""
        if self._holder is not None:
            if not blocking:
                return False
            limit_s = None if timeout < 0 else timeout
            if not self._scheduler.block(lambda: self._holder is None, limit_s):
                return False
        self._holder = self._scheduler.current
        return True

    def release(self) -> None:
        """Release the lock."""
        self._holder = None

    def locked(self) -> bool:
        """Return True if the lock is held."""
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """Replacement for `threading.RLock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: Limit = -1) -> bool:
        """Acquire the lock, which the calling fiber may hold already; return True if that was
        possible in time."""
        if self._holder is not self._scheduler.current and not super().acquire(blocking, timeout):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Undo one `acquire`; release the lock after the last."""
        self._depth -= 1
        if not self._depth:
            self._holder = None

    def let_go(self) -> int:
        """Release the lock completely; return how often it was acquired."""
        depth, self._depth = self._depth, 0
        self._holder = None
        return depth

    def take_back(self, depth: int) -> None:
        """Acquire the lock `depth` times, after `let_go`."""
        super().acquire()
        self._depth = depth


class Condition:
    """Replacement for `threading.Condition`."""

    def __init__(self, scheduler: Scheduler, lock: Lock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or RLock(scheduler)
        self._waiting: list[list[bool]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: Seconds = None) -> bool:
        """Wait until notified; return True if the notification came in time."""
        token = [False]
        self._waiting.append(token)
        depth = self._lock.let_go() if isinstance(self._lock, RLock) else 0
        if not isinstance(self._lock, RLock):
            self._lock.release()
        try:
            return self._scheduler.block(lambda: token[0], timeout)
        finally:
            if token in self._waiting:
                self._waiting.remove(token)
            self._reenter(depth)

    def _reenter(self, depth: int) -> None:
        while True:
            try:
                if isinstance(self._lock, RLock):
                    self._lock.take_back(depth)
                else:
                    self._lock.acquire()
            except ProcessDied:  # its process is dead, and so are all threads that could notice
                if isinstance(self._lock, RLock):
                    self._lock._depth = depth
                self._lock._holder = self._scheduler.current
            return

    def wait_for(self, predicate: Callable[[], bool], timeout: Seconds = None) -> bool:
        """Wait until a condition is true; return whether it is."""
        until_s = None if timeout is None else self._scheduler.now_s + timeout
        while not predicate():
            left_s = None if until_s is None else until_s - self._scheduler.now_s
            if left_s is not None and left_s <= 0:
                return predicate()
            self.wait(left_s)
        return True

    def notify(self, n: int = 1) -> None:
        """Wake up to `n` waiters."""
        for token in self._waiting[:n]:
            token[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Wake all waiters."""
        self.notify(len(self._waiting))


class Event:
    """Replacement for `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False

    def is_set(self) -> bool:
        """Return True if the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event, and wake all waiters."""
        self._is_set = True

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    def wait(self, timeout: Seconds = None) -> bool:
        """Wait until the event is set; return False if the timeout came first."""
        return self._scheduler.block(lambda: self._is_set, timeout)


class Thread:
    """A thread like `threading.Thread`; it belongs to the process of its creator."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., object],
        name: str = "",
        args: tuple[Any, ...] = (),
    ) -> None:
        self._scheduler = scheduler
        self._target, self._args = target, args
        self.name = name or "thread"
        self._fiber: Fiber | None = None

    @property
    def ident(self) -> int | None:
        """A unique number; None before the start of the thread."""
        return None if self._fiber is None else self._fiber.number

    def start(self) -> None:
        """Start the thread as a fiber."""

        def run() -> None:
            self._target(*self._args)

        self._fiber = self._scheduler.spawn(self.name, run)

    def is_alive(self) -> bool:
        """Return True if the thread was started and has not ended."""
        return self._fiber is not None and not self._fiber.has_ended

    def join(self, timeout: Seconds = None) -> None:
        """Wait for the end of the thread."""
        self._scheduler.block(lambda: not self.is_alive(), timeout)


class Executor:
    """Replacement for `ThreadPoolExecutor`: it limits concurrency, and starts work in the order of
    submission."""

    def __init__(self, scheduler: Scheduler, max_workers: int = 4, name: str = "pool") -> None:
        self._scheduler = scheduler
        self._room = max_workers
        self._name = name
        self._count = 0
        self._waiting: deque[Future[Any]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> "Future[Any]":
        """Run work in a new fiber when a worker is free; return its future."""
        future: Future[Any] = Future()
        self._count += 1
        self._waiting.append(future)

        def run() -> None:  # a task may wait for one that was submitted before it
            try:
                self._scheduler.block(lambda: self._room > 0 and self._waiting[0] is future)
            finally:
                self._waiting.remove(future)
            self._room -= 1
            try:
                if future.set_running_or_notify_cancel():
                    self._finish(future, work, args, named)
            finally:
                self._room += 1
                self._count -= 1

        self._scheduler.spawn(self._name, run)
        return future

    def _finish(
        self, future: "Future[Any]", work: Callable[..., Any], args: Any, named: Any
    ) -> None:
        try:
            result = work(*args, **named)
        except Exception as error:  # noqa: BLE001 - who asked is told
            future.set_exception(error)
        else:
            future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the running tasks."""
        del cancel_futures
        if wait:
            self._scheduler.block(lambda: self._count == 0)
