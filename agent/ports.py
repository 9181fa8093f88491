"""What those who may not own threads or locks need of the runtime that does."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from merkle.replica import ContainerId


class Leases(Protocol):
    """The right to change a container (`agent.runtime.lease`)."""

    def hold(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Hold the container's lease; raise Unavailable(BUSY) after `timeout_s`."""
        ...

    def share(
        self, container_id: ContainerId, timeout_s: float = ...
    ) -> AbstractContextManager[None]:
        """Keep the container's chunks as they are; raise Unavailable(BUSY) after `timeout_s`."""
        ...

    def is_shared(self, container_id: ContainerId) -> bool:
        """Return whether somebody shares the container now."""
        ...


class Future(Protocol):
    """The result of work that an executor does."""

    def result(self) -> Any:  # what the work returned
        """Wait for the result; raise what the work raised."""
        ...

    def cancel(self) -> bool:
        """Take the work back if it has not begun."""
        ...


class Executor(Protocol):
    """Runs work side by side; a `concurrent.futures.ThreadPoolExecutor` is one."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future:
        """Begin `work(*arguments)`."""
        ...


Pace: TypeAlias = Callable[[int, Callable[[], bool]], None]
"""Told of so many bytes of work beside clients, returns when more may follow (`SharedPace` in
`agent.scan.throttle`); at once when the second argument says that the work is to end."""


def at_once(length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
    """Go on: nobody is waited for."""
