"""A channel that does not register its methods with gRPC's core, and may add a header to each call.

Generated stubs request registration, which serves plugins that measure calls. Registration costs
six more Python calls per call and has no benefit in this project (ADR 0041).
"""

from collections.abc import Callable
from typing import Any

import grpc

REGISTERED = "_registered_method"
Header = tuple[str, str]


class UnregisteredChannel(grpc.Channel):
    """A wrapper of a channel; every call over it carries `header`, if there is one."""

    def __init__(self, within: grpc.Channel, header: Header | None = None) -> None:
        self._within = within
        self._header = header

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Wrap gRPC's method."""
        return self._carrying(self._within.unary_unary(method, *arguments, **_without(options)))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Wrap gRPC's method."""
        return self._carrying(self._within.unary_stream(method, *arguments, **_without(options)))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Wrap gRPC's method."""
        return self._carrying(self._within.stream_unary(method, *arguments, **_without(options)))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Wrap gRPC's method."""
        return self._carrying(self._within.stream_stream(method, *arguments, **_without(options)))

    def subscribe(self, callback: Callable[..., None], try_to_connect: bool = False) -> None:
        """Call gRPC's method."""
        self._within.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[..., None]) -> None:
        """Call gRPC's method."""
        self._within.unsubscribe(callback)

    def close(self) -> None:
        """Close it; running calls are cancelled."""
        self._within.close()

    def __enter__(self) -> "UnregisteredChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carrying(self, method: Any) -> Any:
        return method if self._header is None else _HeaderMethod(method, self._header)


class _HeaderMethod:
    """A method whose calls carry an additional header."""

    __slots__ = ("_header", "_method")

    def __init__(self, method: Any, header: Header) -> None:
        self._method = method
        self._header = header

    def __call__(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        return self._method(request, metadata=(self._header, *(metadata or ())), **options)

    def future(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        """Call gRPC's method with the header."""
        return self._method.future(request, metadata=(self._header, *(metadata or ())), **options)


def _without(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != REGISTERED}
