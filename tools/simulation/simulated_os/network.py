"""Simulates gRPC's channels and contexts between processes, without sockets.

A channel serialises a request with the real stub and calls the handler in the handler's process.
The request may arrive late, twice, or not at all. The answer may arrive late, or may be lost after
the handler has carried out the call.

If a process dies while it answers, its caller gets UNAVAILABLE. If the caller dies, the callee
continues.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from suture.wire.mapping.errors import ErrorStatusMiddleware
from tools.simulation.simulated_os.fibers import ProcessDied, ProcessLifetime, Scheduler

Seconds = float | None

INTERNAL: Final = "internal error"  # status of an unexpected exception
LOST_S: Final = 3.0  # wait for a lost message, unless the deadline is earlier


class CallFailed(grpc.RpcError, grpc.Call):
    """A call that ended with a status."""

    def __init__(
        self, code: grpc.StatusCode, details: str, trailers: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the text of the status."""
        return self._details

    def trailing_metadata(self) -> Any:
        """Return the trailing metadata."""
        return self._trailers

    def initial_metadata(self) -> tuple[()]:
        """Return no metadata."""
        return ()

    def is_active(self) -> bool:
        """Return False: the call has ended."""
        return False

    def time_remaining(self) -> float:
        """Return 0: the call has ended."""
        return 0.0

    def cancel(self) -> bool:
        """Return False: the call has ended."""
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Return False: the call has ended."""
        del callback
        return False


class Context:
    """The context of a handler."""

    def __init__(self, scheduler: Scheduler, peer: str, timeout_s: float | None) -> None:
        self._scheduler = scheduler
        self._peer = peer
        self._until_s = None if timeout_s is None else scheduler.now_s + timeout_s
        self.has_gone = False

    def is_active(self) -> bool:
        """Return True while the caller waits for the answer."""
        return not self.has_gone

    def time_remaining(self) -> float | None:
        """Return the time until the caller's deadline, in seconds; None if there is no deadline."""
        return None if self._until_s is None else max(self._until_s - self._scheduler.now_s, 0.0)

    def peer(self) -> str:
        """Return the caller's address."""
        return f"ipv4:{self._peer}"

    def invocation_metadata(self) -> tuple[()]:
        """Return no metadata."""
        return ()

    def add_callback(self, _callback: Callable[[], None]) -> bool:
        """Accept the callback without ever calling it."""
        return True

    def cancel(self) -> None:
        """End the call."""
        self.has_gone = True

    def abort_with_status(self, status: Any) -> None:
        """End the call with an error status. If the status is that of an unexpected exception,
        record a failure of the callee."""
        if status.details == INTERNAL:
            error = sys.exc_info()[1]
            self._scheduler.failures.append(("a handler", error or AssertionError(INTERNAL)))
        raise CallFailed(status.code, status.details, tuple(status.trailing_metadata or ()))

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End the call with an error."""
        self.abort_with_status(
            rpc_status.to_status(status_pb2.Status(code=code.value[0], message=details))
        )


@dataclass(eq=False, slots=True)
class Server:
    """A process that listens."""

    life: ProcessLifetime
    handlers: dict[str, Any]


class Collected:
    """Collects the handlers of a server's services."""

    def __init__(self, edge: ErrorStatusMiddleware) -> None:
        self._edge = edge
        self.handlers: dict[str, Any] = {}

    def add_service(self, service: str, handlers: dict[str, Any]) -> None:
        """Store the handlers of a service."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            self.handlers[path] = self._edge.wrap(path, handler)


@dataclass(slots=True)
class NetworkConditions:
    """The probability of each fault of a message, and the disconnected pairs of addresses."""

    lost: float = 0.0
    late: float = 0.0
    late_s: float = 1.0
    twice: float = 0.0
    apart: set[frozenset[str]] = field(default_factory=set)  # pairs that cannot reach each other
    one_way: set[tuple[str, str]] = field(default_factory=set)

    def is_cut(self, source: str, target: str) -> bool:
        """Return True if no message can pass from one address to the other."""
        return frozenset({source, target}) in self.apart or (source, target) in self.one_way


class Network:
    """All callable processes, and the connections between them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.weather = NetworkConditions()
        self.servers: dict[str, Server] = {}
        self.message_count = 0

    def listen(self, address: str, life: ProcessLifetime, handlers: dict[str, Any]) -> None:
        """Serve calls to an address by `handlers` while the process `life` is alive."""
        self.servers[address] = Server(life, handlers)

    def channel(self, address: str, _options: object = None) -> "Channel":
        """Return a connection for the calling process."""
        lives = self.scheduler.current.lives
        return Channel(self, lives[-1] if lives else ProcessLifetime("client"), address)

    def server(self, address: str) -> Server:
        """Return the process that listens at an address. Raise CallFailed(UNAVAILABLE) if there is
        none."""
        server = self.servers.get(address)
        if server is None or server.life.is_dead:
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "connection refused")
        return server

    def carry(self, what: str, source: str, target: str, timeout_s: float | None) -> None:
        """Transfer a message. Raise CallFailed if it does not arrive."""
        self.scheduler.point(f"{what} {source} {target}")
        self.message_count += 1
        dice, weather = self.scheduler.dice, self.weather
        if weather.is_cut(source, target) or (weather.lost and dice.random() < weather.lost):
            waits_s = LOST_S if timeout_s is None else min(timeout_s, LOST_S)
            self.scheduler.sleep(waits_s)
            code = dice.choice((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
            raise CallFailed(code, "the message was lost")
        if weather.late and dice.random() < weather.late:
            self.scheduler.sleep(dice.random() * weather.late_s)

    def is_doubled(self) -> bool:
        """Return True at random if the present message must arrive a second time."""
        weather = self.weather
        return bool(weather.twice) and self.scheduler.dice.random() < weather.twice

    @contextmanager
    def inside(self, server_life: ProcessLifetime) -> Iterator[None]:
        """Run the body as code of the process `server_life`. If this process dies, raise CallFailed
        with the error of a broken connection."""
        fiber = self.scheduler.current
        fiber.lives.append(server_life)
        try:
            yield
        except ProcessDied as death:
            if death.life is not server_life:
                raise
            raise CallFailed(grpc.StatusCode.UNAVAILABLE, "the connection broke") from None
        finally:
            fiber.lives.pop()
            # The callee continues without its caller, which notices its own death later.
        if fiber.must_die():
            raise ProcessDied(fiber.lives[-1])


class Channel:
    """A channel with the interface of `grpc.Channel`."""

    def __init__(self, network: Network, life: ProcessLifetime, address: str) -> None:
        self.network = network
        self.life = life
        self.address = address
        self.is_closed = False

    def unary_unary(self, path: str, encode: Any = None, decode: Any = None, **kw: Any) -> Any:
        """Return a method with one request and one answer."""
        return _Method(self, path, *_codecs(encode, decode, kw))

    def unary_stream(self, path: str, encode: Any = None, decode: Any = None, **kw: Any) -> Any:
        """Return a method with one request and many answers."""
        return _StreamMethod(self, path, *_codecs(encode, decode, kw))

    def stream_unary(self, path: str, encode: Any = None, decode: Any = None, **kw: Any) -> Any:
        """Return a method with many requests and one answer."""
        return _UploadMethod(self, path, *_codecs(encode, decode, kw))

    def close(self) -> None:
        """Close the channel."""
        self.is_closed = True

    @property
    def peer_name(self) -> str:
        """Return the address of the callee."""
        return self.address.partition(":")[0]


def _codecs(encode: Any, decode: Any, kw: dict[str, Any]) -> tuple[Any, Any]:
    def same(data: Any) -> Any:
        return data

    return (
        encode or kw.get("request_serializer") or same,
        decode or kw.get("response_deserializer") or same,
    )


class _Method:
    def __init__(self, channel: Channel, path: str, encode: Any, decode: Any) -> None:
        self._channel, self._path, self._encode, self._decode = channel, path, encode, decode
        self._network = channel.network
        self._name = path.rpartition("/")[2]

    def _begin(self) -> None:
        if self._channel.is_closed:
            raise ValueError("the channel is closed")

    def _handler(self) -> tuple[Server, Any]:
        server = self._network.server(self._channel.address)
        handler = server.handlers.get(self._path)
        if handler is None:
            raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        return server, handler

    def _carry(self, timeout_s: float | None, *, back: bool = False) -> None:
        ends = (self._channel.life.name, self._channel.peer_name)
        source, target = reversed(ends) if back else ends
        self._network.carry(
            f"{'answer' if back else 'call'} {self._name}", source, target, timeout_s
        )

    def _context(self, timeout_s: float | None) -> Context:
        return Context(self._network.scheduler, self._channel.life.name, timeout_s)

    def __call__(self, request: Any, timeout: Seconds = None, **_: Any) -> Any:
        self._begin()
        data = self._encode(request)
        self._carry(timeout)
        server, handler = self._handler()
        answer = self._answered(server, handler, data, timeout)
        if self._network.is_doubled():
            with suppress(CallFailed):
                self._answered(server, handler, data, timeout)
        self._carry(timeout, back=True)
        return self._decode(answer)

    def future(self, request: Any, timeout: Seconds = None, **_: Any) -> "_Call":
        """Start the call in a new fiber; return its future."""
        self._begin()
        return _Call(self, lambda: self(request, timeout))

    def _answered(self, server: Server, handler: Any, data: bytes, timeout: Seconds) -> Any:
        with self._network.inside(server.life):
            answer = handler.unary_unary(_request(handler, data), self._context(timeout))
            return handler.response_serializer(answer)


def _request(handler: Any, data: bytes) -> Any:
    """Return a request parsed by the handler's deserializer. If the handler has none, return the
    bytes."""
    return (handler.request_deserializer or bytes)(data)


class _StreamMethod(_Method):
    def __call__(self, request: Any, timeout: Seconds = None, **_: Any) -> Any:
        self._begin()
        return _Answers(self, self._encode(request), timeout)

    def messages(self, data: bytes, timeout: Seconds) -> Iterator[Any]:
        """Yield the answers."""
        self._carry(timeout)
        server, handler = self._handler()
        context = self._context(timeout)
        answers: Any = None
        try:
            with self._network.inside(server.life):
                answers = iter(handler.unary_stream(_request(handler, data), context))
            while True:
                with self._network.inside(server.life):
                    try:
                        encoded = handler.response_serializer(next(answers))
                    except StopIteration:
                        break
                self._carry(timeout, back=True)
                yield self._decode(encoded)
        finally:
            context.has_gone = True
            with suppress(CallFailed, ProcessDied):
                self._end(server, answers)

    def _end(self, server: Server, answers: Any) -> None:
        fiber = self._network.scheduler.current
        fiber.lives.append(server.life)
        try:
            if isinstance(answers, Generator):  # a handler may return a sequence, too
                answers.close()
        finally:
            fiber.lives.pop()


class _Answers:
    """The result of a call with many answers."""

    def __init__(self, method: _StreamMethod, data: bytes, timeout: Seconds) -> None:
        self._messages: Any = method.messages(data, timeout)

    def __iter__(self) -> Any:
        return self._messages

    def __next__(self) -> Any:
        return next(self._messages)

    def cancel(self) -> bool:
        """End it."""
        self._messages.close()
        return True


class _UploadMethod(_Method):
    def __call__(self, request: Any, timeout: Seconds = None, **_: Any) -> Any:
        return self.future((part for part in request), timeout).result()

    def future(self, request: Any, timeout: Seconds = None, **_: Any) -> "_Upload":
        """Start a call that sends all messages of an iterator; return its future."""
        self._begin()
        return _Upload(self, request, timeout)

    def carried_out(self, upload: "_Upload", requests: Iterator[Any], timeout: Seconds) -> Any:
        """Send all requests; return the answer."""
        self._carry(timeout)
        server, handler = self._handler()
        context = self._context(timeout)
        upload.context = context
        with self._network.inside(server.life):
            arriving = self._arriving(upload, requests, handler)
            answer = handler.stream_unary(arriving, context)
            encoded = handler.response_serializer(answer)
        self._carry(timeout, back=True)
        return self._decode(encoded)

    def let_go(self, requests: Any) -> None:
        """Stop sending: close the generator of the messages, as code of the sender's process."""
        fiber = self._network.scheduler.current
        fiber.lives.append(self._channel.life)
        try:
            # A queue of messages has no end. The thread that takes its messages ends with its
            # process.
            with suppress(ProcessDied, ValueError, AttributeError):
                requests.close()
        finally:
            fiber.lives.pop()

    def _arriving(self, upload: "_Upload", requests: Iterator[Any], handler: Any) -> Iterator[Any]:
        """Yield the requests. Each is taken from `requests` as code of the sender's process, and
        transferred to the receiver's process."""
        while not upload.is_cancelled:
            try:
                with self._network.inside(self._channel.life):
                    data = self._encode(next(requests))
            except StopIteration:
                return
            self._carry(None)
            yield handler.request_deserializer(data)
        raise CallFailed(grpc.StatusCode.CANCELLED, "the sender disconnected")


class _Call:
    """The future of a call."""

    def __init__(self, method: _Method, carry_out: Callable[[], Any]) -> None:
        self._scheduler = method._network.scheduler
        self.is_done = False
        self._answer: Any = None
        self._error: CallFailed | None = None
        self._callbacks: list[Callable[[Any], None]] = []

        def run() -> None:
            try:
                self._answer = carry_out()
            except CallFailed as error:
                self._error = error
            finally:
                self.is_done = True
                for callback in self._callbacks:
                    callback(self)

        self._scheduler.spawn(f"call {method._name}", run, method._channel.life)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call a function when the call has ended."""
        if self.is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def result(self, timeout: Seconds = None) -> Any:
        """Wait for the answer, and return it. Raise the error of the call, or FutureTimeoutError
        after `timeout` seconds."""
        if not self._scheduler.block(lambda: self.is_done, timeout):
            raise grpc.FutureTimeoutError
        if self._error is not None:
            raise self._error
        return self._answer

    def done(self) -> bool:
        """Return True if the call has ended."""
        return self.is_done


class _Upload(_Call):
    """The result of a call with many requests."""

    def __init__(self, method: _UploadMethod, requests: Iterator[Any], timeout: Seconds) -> None:
        self.context: Context | None = None
        self.is_cancelled = False

        def carry_out() -> Any:
            try:
                return method.carried_out(self, requests, timeout)
            finally:
                method.let_go(requests)

        super().__init__(method, carry_out)

    def cancel(self) -> bool:
        """End it."""
        self.is_cancelled = True
        if self.context is not None:
            self.context.has_gone = True
        return not self.is_done
