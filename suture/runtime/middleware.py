"""Layers around the methods of a gRPC server, combined once per method and not per call.

gRPC calls its own interceptors at each call to find the handler. That costs six Python calls for
one interceptor, always with the same result. A layer in this module is an ordinary gRPC handler
that calls the next one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc


class Middleware(Protocol):
    """A layer around the methods of a server."""

    def wrap(self, method: str, handler: Any) -> Any:
        """Return the handler of a method, wrapped in this layer. `method` is the path of the
        method."""
        ...


class MiddlewareStack(grpc.GenericRpcHandler):
    """All methods of a server, each wrapped in the server's layers; the first layer is outermost.

    Pass it to `grpc.server` as its only handler.
    """

    def __init__(
        self,
        layers: Sequence[Middleware],
        at_each_call: Callable[[], object] = lambda: None,
        *,
        refusal: Callable[[Any], Any] | None = None,
    ) -> None:
        """`at_each_call` is called before a call gets a thread, even if the call never gets one.
        `refusal` receives a call's headers and returns the handler that refuses the call, or
        None."""
        self._layers = tuple(reversed(layers))
        self._at_each_call = at_each_call
        self._refusal = refusal
        self._methods: dict[str, Any] = {}  # by path

    def add_service(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service, by name."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            for layer in self._layers:
                handler = layer.wrap(path, handler)
            self._methods[path] = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler wrapped in its layers; None if there is no such method."""
        self._at_each_call()
        if self._refusal is not None:
            refusing = self._refusal(handler_call_details.invocation_metadata)
            if refusing is not None:
                return refusing
        return self._methods.get(str(handler_call_details.method))
