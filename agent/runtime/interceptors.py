"""Handlers that interceptors put around others, made once for each and not at every call."""

from collections.abc import Callable
from typing import Any


class Wrapped:
    """What an interceptor made of each method's handler; made again when that is another one."""

    def __init__(self, wrap: Callable[[str, Any], Any]) -> None:
        """`wrap` makes a handler of a method's path and of the handler that is within."""
        self._wrap = wrap
        self._made: dict[str, tuple[Any, Any]] = {}  # by the path: what is within, and around it

    def around(self, method: str, handler: Any) -> Any:
        """Return the handler to put around this one."""
        kept = self._made.get(method)
        if kept is not None and kept[0] is handler:
            return kept[1]
        made = self._wrap(method, handler)
        self._made[method] = (handler, made)
        return made
