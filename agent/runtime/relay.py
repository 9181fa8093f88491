"""What happens in one place, passed on to those elsewhere who want to know.

A relay is made before either side: who tells is built with it and need not know who listens, who
listens is built later. So objects that hear of each other need not be changed once they are built.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Relay(Generic[P]):
    """Calls every listener, in the order in which they began to listen, in the teller's thread."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def listen(self, listener: Callable[P, object]) -> None:
        """Pass on to `listener` what is told from now on."""
        self._listeners = (*self._listeners, listener)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Pass on; what a listener raises is raised."""
        for listener in self._listeners:
            listener(*args, **kwargs)
