"""The lock of the state, and the two decorators of the calls that take it.

- `@state_change` takes the lock, makes a change, commits it, and writes the audit log.
- `@locked` takes the lock for reads and for notes in memory.

Callers of a method without a decorator must hold the lock.
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
    """Takes the lock for a call, and makes the change of the state in that call durable."""

    def __init__(
        self, state: StateDatabase, audit: Audit, held: Callable[[float, float], object]
    ) -> None:
        """`held` receives the seconds and the CPU time of each hold of the lock."""
        self._state = state
        self._audit = audit
        self.lock = MeteredLock(held)

    @contextmanager
    def change(self) -> Iterator[StateChange]:
        """Yield a locked, atomic, durable change of the state, and write it to the audit log."""
        with self.lock, self._state.change() as change:
            yield change
        audit_trail.write(self._audit, change.notes)


class HasAccess(Protocol):
    """Protocol of an object whose decorated methods take the lock of the state."""

    @property
    def access(self) -> StateAccess:
        """The lock of the state."""


S = TypeVar("S", bound=HasAccess)


def state_change(
    method: Callable[Concatenate[S, StateChange, P], R],
) -> Callable[Concatenate[S, P], R]:
    """Decorator: pass a new change of the state to the method. The change is durable when the
    method returns."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.access.change() as change:
            return method(self, change, *args, **kwargs)

    return call


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorator: hold the lock of the state during the method, which changes at most facts in
    memory."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.access.lock:
            return method(self, *args, **kwargs)

    return call
