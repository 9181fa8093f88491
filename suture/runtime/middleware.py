"""Methods of a gRPC server with layers around each call, combined once and not per call.

gRPC's own interceptors are called for each call to find its handler: six Python calls for one
interceptor, always with the same result. Here they are ordinary gRPC handlers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc


class Middleware(Protocol):
    """A wrapper around methods."""

    def wrap(self, method: str, handler: Any) -> Any:
        """Return the handler of a method, by its path, wrapped in this layer."""
        ...


class MiddlewareStack(grpc.GenericRpcHandler):
    """All methods of a server, each in its layers, the first outermost.

    Pass it to `grpc.server` as its only handler, and to generated code (`add_..._to_server`) in
    place of the server.
    """

    def __init__(
        self,
        layers: Sequence[Middleware],
        at_each_call: Callable[[], object] = lambda: None,
        *,
        others: Sequence[grpc.GenericRpcHandler] = (),
        refusal: Callable[[Any], Any] | None = None,
    ) -> None:
        """`at_each_call` is called before a call gets a thread, even if it gets none. `refusal`
        returns the handler that refuses a call, by its headers, or None. `others` have methods that
        were not generated; their handler for a path never changes."""
        self._layers = tuple(reversed(layers))
        self._at_each_call = at_each_call
        self._refusal = refusal
        self._others = tuple(others)
        self._methods: dict[str, Any] = {}  # by path

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service, as generated code does."""
        for name, handler in handlers.items():
            self._put(f"/{service}/{name}", handler)

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Do nothing, because generated code adds the same methods both ways."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler in its layers; None if there is no such method."""
        self._at_each_call()
        if self._refusal is not None:
            refusing = self._refusal(handler_call_details.invocation_metadata)
            if refusing is not None:
                return refusing
        method: Any = handler_call_details.method
        return self._methods.get(method) or self._found(method, handler_call_details)

    def _found(self, method: str, handler_call_details: grpc.HandlerCallDetails) -> Any:
        for other in self._others:
            handler = other.service(handler_call_details)
            if handler is not None:
                return self._put(method, handler)
        return None

    def _put(self, method: str, handler: Any) -> Any:
        for layer in self._layers:
            handler = layer.wrap(method, handler)
        self._methods[method] = handler
        return handler
