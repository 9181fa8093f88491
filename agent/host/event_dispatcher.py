"""Relays of notifications between objects that are built at different times.

A relay is made before either side. The notifier is built with it and need not know the listeners,
which are built later. So objects that notify each other need not be changed after construction.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class EventDispatcher(Generic[P]):
    """Calls every listener, in the order of registration, in the notifier's thread."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def subscribe(self, listener: Callable[P, object]) -> None:
        """Register `listener` for future notifications."""
        self._listeners = (*self._listeners, listener)

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners; raise what a listener raises."""
        for listener in self._listeners:
            listener(*args, **kwargs)
