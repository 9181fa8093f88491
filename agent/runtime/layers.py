"""The methods of a server with what stands around each call: made once, not at every call.

gRPC's own interceptors are asked at each call for the handler to use: six calls of Python for one
interceptor, whose answer would always be the same. Here they are handlers of gRPC like others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc


class Layer(Protocol):
    """What is put around methods."""

    def wrap(self, method: str, handler: Any) -> Any:
        """Return the handler of a method, by its path, with this layer around it."""
        ...


class Layers(grpc.GenericRpcHandler):
    """All methods of a server, each within its layers, the first outermost.

    Give it to `grpc.server` as its only handler, and to generated code (`add_..._to_server`) in
    place of the server.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        at_each_call: Callable[[], object] = lambda: None,
        *,
        others: Sequence[grpc.GenericRpcHandler] = (),
        refusal: Callable[[Any], Any] | None = None,
    ) -> None:
        """`at_each_call` is called before a call gets a thread, also when it will get none.
        `refusal` returns, for the headers of a call, the handler that refuses it, or None.
        `others` have methods that were not generated; they answer the same for a path always."""
        self._layers = tuple(reversed(layers))
        self._at_each_call = at_each_call
        self._refusal = refusal
        self._others = tuple(others)
        self._methods: dict[str, Any] = {}  # by their paths

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add the methods of a service, as generated code does."""
        for name, handler in handlers.items():
            self._put(f"/{service}/{name}", handler)

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Nothing: generated code adds the same methods both ways."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler in its layers; None where there is no such method."""
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
