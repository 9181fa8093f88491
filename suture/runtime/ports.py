"""Protocols of the runtime, for modules that may not create threads or locks themselves."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from merkle.replica import ContainerId


class Leases(Protocol):
    """Locks on containers: a thread may change a container while it holds the container's lease
    (`agent.leases`)."""

    def hold(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Hold the container's lease during the body. Raise UnavailableError(BUSY) after
        `timeout_s`."""
        ...

    def share(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Prevent changes of the container's chunks during the body. Raise UnavailableError(BUSY)
        after `timeout_s`."""
        ...

    def is_shared(self, container_id: ContainerId) -> bool:
        """Return whether any thread shares the container's lease now."""
        ...


class Future(Protocol):
    """The future result of a function that an executor runs."""

    def result(self) -> Any:  # returns the result of the work
        """Wait for the result. Raise the exception of the function if it raised one."""
        ...

    def cancel(self) -> bool:
        """Cancel the work if it has not begun."""
        ...


class Executor(Protocol):
    """Runs work concurrently, as a `concurrent.futures.ThreadPoolExecutor` does."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future:
        """Start `work(*arguments)`."""
        ...


Pace: TypeAlias = Callable[[int, Callable[[], bool]], None]
"""A rate limiter. Its first argument is the number of bytes of background work done. The call
returns when more work may follow, or at once if the second argument returns True. `SharedPace` in
`agent.scan.throttle` is one."""


def together(*paces: Pace) -> Pace:
    """Return a rate limiter (`Pace`) that waits for each of the rate limiters `paces` in turn."""

    def pace(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
        for one in paces:
            one(length_bytes, is_interrupted)

    return pace


def at_once(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
    """Do not wait. This is the rate limiter (`Pace`) of work without a limit."""
