"""The interceptors of a server as one: what they make of a method is made once, not at every call.

gRPC asks each interceptor at each call for the handler to use, four calls of Python an interceptor.
Ours would answer the same every time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc


class Layer(Protocol):
    """What is put around methods."""

    def wrap(self, method: str, handler: Any) -> Any:
        """Return the handler of a method, by its path, with this layer around it."""
        ...


class Layers(grpc.ServerInterceptor):
    """Puts layers around each method of a server, the first outermost."""

    def __init__(
        self, layers: Sequence[Layer], at_each_call: Callable[[], object] = lambda: None
    ) -> None:
        """`at_each_call` is called before a call gets a thread, also when it will get none."""
        self._layers = tuple(reversed(layers))
        self._at_each_call = at_each_call
        self._made: dict[str, tuple[Any, Any]] = {}  # by the path: what is within, and around it

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler in its layers; None where there is no such method."""
        self._at_each_call()
        handler = continuation(handler_call_details)
        method: Any = handler_call_details.method
        kept = self._made.get(method)
        if kept is not None and kept[0] is handler:
            return kept[1]
        if handler is None:
            return None
        made = handler
        for layer in self._layers:
            made = layer.wrap(str(method), made)
        self._made[method] = (handler, made)
        return made
