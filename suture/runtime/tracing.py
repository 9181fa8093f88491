"""Records OpenTelemetry spans, if the process runs under `opentelemetry-instrument`.

    opentelemetry-instrument suture-agent --config ...

The OTEL_* variables configure OpenTelemetry. Without `opentelemetry-instrument`, this module
imports no part of OpenTelemetry and costs nothing. Each call sends its span in the header
`traceparent`, so a reconcile is one trace across all its datanodes.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import grpc

TRACER: Final = "suture"
Carried = tuple[tuple[str, str], ...]

_Handler = Any  # grpc.RpcMethodHandler without its generic types


def span(name: str, **facts: str | int) -> AbstractContextManager[object]:
    """Return a context manager that records a span with this name and these attributes."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return nullcontext()
    attributes = {f"suture.{key}": value for key, value in facts.items()}
    made: AbstractContextManager[object] = trace.get_tracer(TRACER).start_as_current_span(
        name, attributes=attributes
    )
    return made


def carried() -> Carried | None:
    """Return the headers that identify the current span to the called process. Return None if
    OpenTelemetry is not loaded."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return tuple(headers.items())


class TracingMiddleware:
    """A layer (`suture.runtime.middleware`) that records a span for each call that this server
    handles.

    OpenTelemetry must be loaded before the methods are added to the server.
    """

    def wrap(self, method: str, handler: Any) -> _Handler:
        """Return a handler that calls `handler` in a span of the caller's trace."""
        if "opentelemetry.trace" not in sys.modules:
            return handler
        if handler.response_streaming:
            made_so: Any = grpc.unary_stream_rpc_method_handler
            if handler.request_streaming:
                made_so = grpc.stream_stream_rpc_method_handler
            return made_so(
                _streaming(method, handler.unary_stream or handler.stream_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        make: Any = grpc.unary_unary_rpc_method_handler
        if handler.request_streaming:
            make = grpc.stream_unary_rpc_method_handler
        made: _Handler = make(
            _answering(method, handler.stream_unary or handler.unary_unary),
            handler.request_deserializer,
            handler.response_serializer,
        )
        return made


def _answering(name: str, behavior: Callable[..., Any]) -> Any:
    def traced(request: Any, context: grpc.ServicerContext) -> Any:
        with _server_span(name, context):
            return behavior(request, context)

    return traced


def _streaming(name: str, behavior: Callable[..., Iterator[Any]]) -> Any:
    def traced(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _server_span(name, context):
            yield from behavior(request, context)

    return traced


def _server_span(name: str, context: grpc.ServicerContext) -> AbstractContextManager[object]:
    from opentelemetry import propagate, trace

    headers: Any = context.invocation_metadata() or ()
    told = {key: value for key, value in headers if isinstance(value, str)}
    made: AbstractContextManager[object] = trace.get_tracer(TRACER).start_as_current_span(
        name, context=propagate.extract(told), kind=trace.SpanKind.SERVER
    )
    return made
