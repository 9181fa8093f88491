"""A real gRPC server for every call of the contract. It keeps the requests, and answers with the
messages that a test prepares, or with an empty message.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.waiting import WAIT_S

METHODS: Final = {
    f"/{service.full_name}/{method.name}": method
    for file in (container_pb2.DESCRIPTOR, datanode_pb2.DESCRIPTOR, scm_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
FIRST: Final = 100_003  # above the numbers of ports, counts and dates in a document


class ScriptedCalls(grpc.GenericRpcHandler):
    """The server. `requests` has the received requests by the name of the call, in the order of
    their arrival."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.held: dict[str, threading.Event] = {}  # calls that are answered after this
        self.answers: dict[str, list[Any]] = {}
        """The answers of each call; the last one is repeated. A call with a stream of answers is
        answered with all of them."""
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(8)
        self._server = grpc.server(self._executor, handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop(None).wait()
        self._executor.shutdown()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call. The handler keeps the requests and answers the call."""
        method = METHODS.get(handler_call_details.method)
        if method is None:
            return None
        answered = GetMessageClass(method.output_type)

        def unary(request: Any, _context: grpc.ServicerContext) -> Message:
            if method.name in self.held:
                self.held[method.name].wait(WAIT_S)
            with self._lock:
                self.requests[method.name].append(request)
                left = self.answers.get(method.name) or [answered()]
                answer: Message = left.pop(0) if len(left) > 1 else left[0]
            return answer

        def stream(request: Any, _context: grpc.ServicerContext) -> Iterator[Message]:
            with self._lock:
                self.requests[method.name].append(request)
            yield from self.answers.get(method.name, ())

        def collected(requests: Iterator[Any], context: grpc.ServicerContext) -> Message:
            *before, last = requests
            with self._lock:
                self.requests[method.name] += before
            return unary(last, context)

        kinds, act = {
            (False, False): (grpc.unary_unary_rpc_method_handler, unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, collected),
        }[method.client_streaming, method.server_streaming]
        return kinds(
            act,
            GetMessageClass(method.input_type).FromString,
            answered.SerializeToString,
        )


def filled(message: Any, words: Mapping[str, Any], numbers: Iterator[int] | None = None) -> Any:
    """Set each unset field of a message to a value that no other field has; return the message.
    `words` has the values of fields that accept only certain words, by the name of the field."""
    numbers = numbers or itertools.count(FIRST)
    for field in message.DESCRIPTOR.fields:
        group = field.containing_oneof
        if field.is_repeated:
            _fill_repeated(message, field, words, numbers)
        elif field.message_type is not None:
            filled(getattr(message, field.name), words, numbers).SetInParent()
        elif not (
            field.name in {known.name for known, _ in message.ListFields()}
            or (group and message.WhichOneof(group.name))
        ):
            setattr(message, field.name, _value(field, words, numbers))
    return message


def _fill_repeated(
    message: Any, field: FieldDescriptor, words: Mapping[str, Any], numbers: Iterator[int]
) -> None:
    items, kind = getattr(message, field.name), field.message_type
    if len(items):
        for item in items if kind and not kind.GetOptions().map_entry else ():
            filled(item, words, numbers)
    elif kind is None:
        items.append(_value(field, words, numbers))
    elif kind.GetOptions().map_entry:
        named = kind.fields_by_name
        items[_value(named["key"], words, numbers)] = _value(named["value"], words, numbers)
    else:
        filled(items.add(), words, numbers)


def _value(field: Any, words: Mapping[str, Any], numbers: Iterator[int]) -> Any:
    if field.name in words:
        return words[field.name]
    number = next(numbers)
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    return {
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_STRING: (
            f"w{number}" if field.type == FieldDescriptor.TYPE_STRING else b"%032d" % number
        ),
    }.get(field.cpp_type, number)
