"""Creates stubs and method handlers of the services in proto/ from their descriptors.

Generated stubs and servicers would repeat the descriptors in 2,700 lines. They also register each
method with gRPC's core, for plugins that measure calls. The registration costs six additional
Python calls per call (ADR 0041).
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from suture.wire.v1 import datanode_pb2, scm_pb2

DATANODE: Final = datanode_pb2.DESCRIPTOR.services_by_name["Datanode"]
SCM: Final = scm_pb2.DESCRIPTOR.services_by_name["Scm"]
NO_CODECS: Final[Mapping[str, Callable[[Any], Any] | None]] = MappingProxyType({})

Header = tuple[str, str]


class Stub:
    """Calls a service in another process. Each RPC of the service is an attribute with its name.
    Thread-safe."""

    def __init__(
        self,
        channel: grpc.Channel,
        service: ServiceDescriptor,
        *,
        header: Header | None = None,
        encoders: Mapping[str, Callable[[Any], bytes] | None] = NO_CODECS,
        decoders: Mapping[str, Callable[[bytes], Any] | None] = NO_CODECS,
    ) -> None:
        """Create a stub of `service` on a channel. If `header` is given, each call sends it.

        `encoders` and `decoders` have functions that replace those of the generated classes, by
        RPC. If such a function is None, the caller passes or gets bytes.
        """
        self._channel, self._service, self._header = channel, service, header
        self._encoders, self._decoders = encoders, decoders

    def __getattr__(self, name: str) -> Any:
        """Return gRPC's callable of the RPC `name`, and store it as an attribute."""
        rpc = self._service.methods_by_name.get(name)
        if rpc is None:
            raise AttributeError(f"{self._service.full_name} has no RPC {name!r}")
        encode, decode = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
        method = getattr(self._channel, kind_of(rpc))(
            f"/{self._service.full_name}/{name}",
            request_serializer=self._encoders.get(name, encode.SerializeToString),
            response_deserializer=self._decoders.get(name, decode.FromString),
        )
        if self._header is not None:
            method = _HeaderMethod(method, self._header)
        setattr(self, name, method)
        return method


class _HeaderMethod:
    """gRPC's callable of a method, which sends an additional header with each call."""

    __slots__ = ("_header", "_method")

    def __init__(self, method: Any, header: Header) -> None:
        self._method = method
        self._header = header

    def __call__(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        return self._method(request, metadata=(self._header, *(metadata or ())), **options)

    def future(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        """Start a call with the header, and return its future."""
        return self._method.future(request, metadata=(self._header, *(metadata or ())), **options)


def method_handlers(service: ServiceDescriptor, servicers: Sequence[object]) -> dict[str, Any]:
    """Return gRPC's handlers of the RPCs for which a servicer has a method, by RPC.

    An RPC may be in only one servicer. A method takes the request, or the request and gRPC's
    context. A servicer may have mappings `decoders` and `encoders`, with functions that replace
    those of the generated classes, by RPC.
    """
    handlers: dict[str, Any] = {}
    for name, rpc in service.methods_by_name.items():
        having = [servicer for servicer in servicers if hasattr(servicer, name)]
        assert len(having) <= 1, f"{name} is in {having}"
        for servicer in having:
            decode, encode = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
            handlers[name] = getattr(grpc, f"{kind_of(rpc)}_rpc_method_handler")(
                _with_context(getattr(servicer, name)),
                getattr(servicer, "decoders", NO_CODECS).get(name, decode.FromString),
                getattr(servicer, "encoders", NO_CODECS).get(name, encode.SerializeToString),
            )
    return handlers


def _with_context(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method with the arguments that gRPC passes: the request and the context."""
    takes_context = len(signature(method).parameters) > 1
    return method if takes_context else lambda request, _context: method(request)


def kind_of(rpc: MethodDescriptor) -> str:
    """Return gRPC's name of the kind of an RPC, for instance `unary_stream`: the kind of its
    requests and of its responses."""
    ends = (rpc.client_streaming, rpc.server_streaming)
    return "_".join("stream" if is_stream else "unary" for is_stream in ends)
