"""Removes one field of one message on the wire, in every process of a test. A test that depends on
the field then fails.

    sent:suture.v1.DeleteCommand.witnesses      the product does not send it
    read:suture.v1.DeleteCommand.witnesses      the product does not receive it

SUTURE_LOST_FIELD names a file with one such line. The line may change while the programs run. Only
messages that the product itself sends or receives are changed. If a test acts as the other side,
its messages are complete.

With SUTURE_SEEN_FIELDS=FILE no field is removed. Fields that have a value are added to FILE
instead, each with the name of the running test.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc._channel
from google.protobuf.message_factory import GetMessageClass

from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

LOST: Final = "SUTURE_LOST_FIELD"
SEEN: Final = "SUTURE_SEEN_FIELDS"
ASKED: Final = "SUTURE_ASKED_TRIALS"
DONE: Final = "SUTURE_DONE_TRIALS"
SENT, READ = "sent", "read"
ROOT: Final = Path(__file__).resolve().parents[3]
FILES: Final = (container_pb2.DESCRIPTOR, datanode_pb2.DESCRIPTOR, scm_pb2.DESCRIPTOR)
METHODS: Final = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
}
KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
CARRIERS: Final = tuple(
    str(ROOT / path)
    for path in (
        "suture/wire/clients/channel.py",
        "suture/wire/clients/scm.py",
        "suture/wire/mapping/rpc_services.py",
        "suture/wire/security/channel_renewal.py",
        "tests/support/wire/",
    )
)
"""Modules that only pass messages on; the caller of such a module made the message."""

Convert = Callable[[bytes], bytes]


def now(seen: Path) -> Path:
    """Return the path of the file that names the running test."""
    return seen.with_name(f"{seen.name}.now")


def times(seen: Path) -> Path:
    """Return the path of the file with the duration of each test."""
    return seen.with_name(f"{seen.name}.times")


def message_types() -> Iterator[Any]:
    """Yield the descriptor of every message of the contract, nested ones included."""
    for file in FILES:
        for kind in file.message_types_by_name.values():
            yield kind
            yield from (each for each in kind.nested_types if not each.GetOptions().map_entry)


def all_fields() -> list[str]:
    """Return the full name of every field of the contract, in its order."""
    return [field.full_name for kind in message_types() for field in kind.fields]


def install() -> None:
    """Change gRPC in this process, if the environment variables request it."""
    lost, seen = os.environ.get(LOST), os.environ.get(SEEN)
    if not lost and not seen:
        return
    take = Recorder(Path(seen)).take if seen else Loser(Path(str(lost))).take

    def convert(way: str, kind: Any) -> Convert:
        return functools.partial(take, way, kind)

    for call in KINDS:
        _change_channel(call, convert)
    _change_servers(convert)


def _change_channel(call: str, convert: Callable[[str, Any], Convert]) -> None:
    plain = getattr(grpc._channel.Channel, call)

    def changed(
        channel: Any,
        path: str,
        serialize: Any = None,
        deserialize: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        serialize = options.pop("request_serializer", serialize)
        deserialize = options.pop("response_deserializer", deserialize)
        as_it_is = plain(channel, path, serialize, deserialize, *rest, **options)
        method = METHODS.get(path)
        if method is None:
            return as_it_is
        ours = plain(
            channel,
            path,
            _then(serialize, convert(SENT, method.input_type)),
            _then(convert(READ, method.output_type), deserialize),
            *rest,
            **options,
        )
        return Chosen(as_it_is, ours)

    setattr(grpc._channel.Channel, call, changed)


class Chosen:
    """A method of a channel: with the field if a test calls it, without the field if the product
    does."""

    def __init__(self, as_it_is: Any, ours: Any) -> None:
        self._as_it_is, self._ours = as_it_is, ours

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._chosen()(*arguments, **options)

    def with_call(self, *arguments: Any, **options: Any) -> Any:
        """As gRPC's."""
        return self._chosen().with_call(*arguments, **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """As gRPC's."""
        return self._chosen().future(*arguments, **options)

    def _chosen(self) -> Any:
        return self._ours if _is_called_by_product() else self._as_it_is


def _change_servers(convert: Callable[[str, Any], Convert]) -> None:
    plain = grpc.server

    def changed(*arguments: Any, handlers: Any = (), **options: Any) -> Any:
        if _is_called_by_product():
            handlers = [Changed(handler, convert) for handler in handlers or ()]
        return plain(*arguments, handlers=handlers, **options)  # type: ignore[misc]

    grpc.server = changed


class Changed(grpc.GenericRpcHandler):
    """The methods of a server of the product."""

    def __init__(self, within: Any, convert: Callable[[str, Any], Convert]) -> None:
        self._within, self._convert = within, convert
        self._methods: dict[str, Any] = {}

    def service(self, handler_call_details: Any) -> Any:
        """Return a method that receives, and answers, without the field."""
        handler = self._within.service(handler_call_details)
        method = METHODS.get(handler_call_details.method)
        if handler is None or method is None:
            return handler
        if method.full_name not in self._methods:
            self._methods[method.full_name] = grpc._utilities.RpcMethodHandler(  # type: ignore[attr-defined]
                handler.request_streaming,
                handler.response_streaming,
                _then(self._convert(READ, method.input_type), handler.request_deserializer),
                _then(handler.response_serializer, self._convert(SENT, method.output_type)),
                handler.unary_unary,
                handler.unary_stream,
                handler.stream_unary,
                handler.stream_stream,
            )
        return self._methods[method.full_name]


def _then(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return first or second
    return lambda given: second(first(given))


def _is_called_by_product() -> bool:
    """Return True if the product made the call: the nearest caller in this repository that is not a
    carrier is no test."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(str(ROOT)) and "/.venv/" not in file and not file.startswith(CARRIERS):
            return not file.startswith(str(ROOT / "tests"))
        frame = frame.f_back  # type: ignore[assignment]
    return True


class Loser:
    """Removes a field from each message that passes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, way: str, kind: Any, data: bytes) -> bytes:
        """Return the message without the field to remove."""
        side, _, name = self._path.read_text().partition(":")
        if side != way or not _may_have(kind, name.rpartition(".")[0]):
            return data
        message = GetMessageClass(kind).FromString(bytes(data))
        _clear(message, name)
        return bytes(message.SerializeToString())


@functools.cache
def _may_have(kind: Any, name: str) -> bool:
    """Return True if a message of this type may contain a message of that name."""
    pending, known = [kind], set()
    while pending:
        each = pending.pop()
        if each.full_name not in known:
            known.add(each.full_name)
            pending += [field.message_type for field in each.fields if field.message_type]
    return name in known


def _clear(message: Any, name: str) -> None:
    for field, value in message.ListFields():
        if field.full_name == name:
            message.ClearField(field.name)
        else:
            for each in _messages(field, value):
                _clear(each, name)


def _messages(field: Any, value: Any) -> Iterable[Any]:
    if field.message_type is None or field.message_type.GetOptions().map_entry:
        return ()
    return value if field.is_repeated else (value,)


class Recorder:
    """Adds each field that has a value to a file, once per test and process."""

    def __init__(self, path: Path) -> None:
        self._path, self._test, self._known = path, "", set[tuple[str, str]]()

    def take(self, way: str, kind: Any, data: bytes) -> bytes:
        """Record the fields of a message that have a value; return the message unchanged."""
        found = set[tuple[str, str]]()
        self._walk(way, GetMessageClass(kind).FromString(bytes(data)), found)
        test = now(self._path).read_text()
        if test != self._test:
            self._test, self._known = test, set()
        if fresh := found - self._known:
            self._known |= fresh
            with self._path.open("a") as file:
                file.write("".join(f"{way}:{name}\t{test}\n" for way, name in fresh))
        return data

    def _walk(self, way: str, message: Any, found: set[tuple[str, str]]) -> None:
        for field, value in message.ListFields():
            found.add((way, field.full_name))
            for each in _messages(field, value):
                self._walk(way, each, found)
