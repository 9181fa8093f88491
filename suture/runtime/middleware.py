"""Wraps the methods of a gRPC server in layers, once per method instead of once per call.

gRPC's own interceptors are called at each call to find the handler. That costs six Python calls for
one interceptor, always with the same result. A layer of this module is an ordinary gRPC handler
that calls the next handler.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc


class Middleware(Protocol):
    """A layer that wraps the methods of a gRPC server."""

    def wrap(self, method: str, handler: Any) -> Any:
        """Return a handler that wraps `handler` in this layer. `method` is the path of the
        method."""
        ...


class MiddlewareStack(grpc.GenericRpcHandler):
    """All methods of a server, each wrapped in the layers of the server. The first layer is the
    outermost. Pass the object to `grpc.server` as the only handler."""

    def __init__(
        self,
        layers: Sequence[Middleware],
        at_each_call: Callable[[], object] = lambda: None,
        *,
        refusal: Callable[[Any], Any] | None = None,
    ) -> None:
        """Create a server without methods.

        `at_each_call` is called before a call gets a thread, even if the call never gets one.
        `refusal` is called with the headers of a call, and returns the handler that refuses the
        call, or None.
        """
        self._layers = tuple(reversed(layers))
        self._at_each_call = at_each_call
        self._refusal = refusal
        self._methods: dict[str, Any] = {}  # by path

    def add_service(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service. `handlers` has the handler of each method, by name."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            for layer in self._layers:
                handler = layer.wrap(path, handler)
            self._methods[path] = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the wrapped handler of a method. Return None if there is no such method."""
        self._at_each_call()
        if self._refusal is not None:
            refusing = self._refusal(handler_call_details.invocation_metadata)
            if refusing is not None:
                return refusing
        return self._methods.get(str(handler_call_details.method))
