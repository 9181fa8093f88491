"""The lock of the state, and two decorators for methods that acquire it.

- `@state_change` acquires the lock, begins a change, commits it, and writes the audit log.
- `@locked` acquires the lock, for reads and for changes of facts in memory.

Callers of a method without a decorator must hold the control plane's lock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from scm.state import audit_trail
from scm.state.database import StateChange, StateDatabase
from scm.state.timed_lock import MeteredLock
from suture.wire.server.authorization import Audit

P = ParamSpec("P")
R = TypeVar("R")


class StateAccess:
    """The lock of the state, and the changes that are made under this lock."""

    def __init__(
        self, state: StateDatabase, audit: Audit, held: Callable[[float, float], object]
    ) -> None:
        """Create the lock of `state`.

        After each hold of the lock, `held` is called with its duration and its CPU time in seconds.
        """
        self._state = state
        self._audit = audit
        self.lock = MeteredLock(held)

    @contextmanager
    def change(self) -> Iterator[StateChange]:
        """Acquire the lock and yield a change of the state.

        At the end, commit it and write the audit log.
        """
        with self.lock, self._state.change() as change:
            yield change
        audit_trail.write(self._audit, change.notes)


class HasAccess(Protocol):
    """An object with methods that are decorated with `@state_change` or `@locked`."""

    @property
    def access(self) -> StateAccess:
        """Return the lock of the state."""


S = TypeVar("S", bound=HasAccess)


def state_change(
    method: Callable[Concatenate[S, StateChange, P], R],
) -> Callable[Concatenate[S, P], R]:
    """Decorate a method, so that it gets a new change of the state as its first argument.

    The lock is held while the method runs. The change is durable when the method returns.
    """

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.access.change() as change:
            return method(self, change, *args, **kwargs)

    return call


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method, so that the lock of the state is held while it runs.

    The method may only read the state and change facts in memory.
    """

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.access.lock:
            return method(self, *args, **kwargs)

    return call
