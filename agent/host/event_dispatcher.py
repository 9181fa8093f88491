"""Sends events between objects that are created at different times.

A dispatcher is created first. The object that sends events receives the dispatcher as an argument
of its constructor. The receivers subscribe later. Therefore, no object must be changed after its
construction.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class EventDispatcher(Generic[P]):
    """Calls all listeners for each event, in the order of subscription.

    The listeners are called in the thread that calls `emit`.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def subscribe(self, listener: Callable[P, object]) -> None:
        """Add a listener. It is called for all later events."""
        self._listeners = (*self._listeners, listener)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners. If a listener raises an exception, the exception is passed to the
        caller."""
        for listener in self._listeners:
            listener(*args, **kwargs)
