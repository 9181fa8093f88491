"""Interfaces for modules that must not create threads or locks themselves."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from merkle.replica import ContainerId


class Leases(Protocol):
    """Locks on containers. A thread may change a container while it holds the container's lease
    (`agent.leases`)."""

    def hold(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Hold the lease of a container during the `with` block. Raise UnavailableError(BUSY) after
        `timeout_s` seconds."""
        ...

    def share(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Prevent changes of a container's chunks during the `with` block. Raise
        UnavailableError(BUSY) after `timeout_s` seconds."""
        ...

    def is_shared(self, container_id: ContainerId) -> bool:
        """Return True if a thread shares the lease of the container now."""
        ...


class Future(Protocol):
    """The result of a function that an executor runs."""

    def result(self) -> Any:  # returns the result of the work
        """Wait for the result of the function and return it. If the function raised an exception,
        raise it."""
        ...

    def cancel(self) -> bool:
        """Cancel the function if it has not begun."""
        ...


class Executor(Protocol):
    """Runs functions concurrently, like `concurrent.futures.ThreadPoolExecutor`."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future:
        """Start `work(*arguments)` and return its future."""
        ...


Pace: TypeAlias = Callable[[int, Callable[[], bool]], None]
"""A rate limiter for background work. It is called with the number of bytes that were processed and
a function. It returns when more may be processed, or at once if the function returns True.
`SharedPace` in `agent.scan.throttle` is a rate limiter."""


def together(*paces: Pace) -> Pace:
    """Return a rate limiter (`Pace`) that calls several rate limiters, one after the other."""

    def pace(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
        for one in paces:
            one(length_bytes, is_interrupted)

    return pace


def at_once(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
    """Do not wait. This is the rate limiter (`Pace`) for work without a limit."""
