"""Dispatch of events between objects that are built at different times.

A dispatcher is created first. The object that emits events gets the dispatcher as a constructor
argument. The listeners subscribe later. Therefore no object has to be changed after its
construction.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class EventDispatcher(Generic[P]):
    """Calls every listener, in the order of subscription, in the thread that calls `emit`."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def subscribe(self, listener: Callable[P, object]) -> None:
        """Register `listener` for future events."""
        self._listeners = (*self._listeners, listener)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners. If a listener raises an exception, the caller gets it."""
        for listener in self._listeners:
            listener(*args, **kwargs)
