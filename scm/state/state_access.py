"""The one lock in front of the state, and the two decorators of the calls that take it.

    a servicer, a loop ──► @state_change ──► lock ─► change ─► commit ─► audit log ──► answer
                      └──► @locked ────────► lock ─► read, or note in memory ────────► answer

Methods without a decorator require that the caller holds the lock.
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
    """Locks the state for a call, and makes a change of it durable."""

    def __init__(
        self, state: StateDatabase, audit: Audit, held: Callable[[float, float], object]
    ) -> None:
        """`held` receives the seconds of each hold of the lock and its processor time."""
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
    """An object whose calls take the lock."""

    @property
    def access(self) -> StateAccess:
        """The lock of the state."""


S = TypeVar("S", bound=HasAccess)


def state_change(
    method: Callable[Concatenate[S, StateChange, P], R],
) -> Callable[Concatenate[S, P], R]:
    """Pass a method a new change of the state, which is durable when it returns."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.access.change() as change:
            return method(self, change, *args, **kwargs)

    return call


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Hold the lock of the state while a method reads; it changes at most what is in memory."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.access.lock:
            return method(self, *args, **kwargs)

    return call
