"""Protocols of the runtime, for modules that may not own threads or locks."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from merkle.replica import ContainerId


class Leases(Protocol):
    """The right to change a container (`agent.leases`)."""

    def hold(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Hold the container's lease; raise UnavailableError(BUSY) after `timeout_s`."""
        ...

    def share(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Prevent changes of the container's chunks; raise UnavailableError(BUSY) after
        `timeout_s`.
        """
        ...

    def is_shared(self, container_id: ContainerId) -> bool:
        """Return whether the container is shared now."""
        ...


class Future(Protocol):
    """The result of work that an executor does."""

    def result(self) -> Any:  # the return value of the work
        """Wait for the result; raise what the work raised."""
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
"""Receives the bytes of work done beside clients, and returns when more may follow (`SharedPace`
in `agent.scan.throttle`); at once when the second argument returns True."""


def at_once(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
    """Return at once: a pace without a limit."""
