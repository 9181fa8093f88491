"""A channel that shows the certificate of now, whatever it showed when it was opened.

gRPC's credentials of a client are fixed when a channel is opened. Here each call goes over a
channel of the current material; when that changes, a new channel is opened for the calls to come,
and the old one is closed once its last call has ended. No lock is needed: a call notes itself in
its line before it looks whether the line is still the current one, and a line is replaced before it
is looked at for calls; whichever is second sees the other (as in Dekker's algorithm), and a set and
a dictionary of Python are changed by one thread at a time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from agent.rpc.security.tls import Certificates, Material

OpenChannel = Callable[[Material], grpc.Channel]


class Line:
    """One channel, and the calls under way on it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.calls: set[object] = set()
        self._methods: dict[tuple[str, str], Any] = {}

    def method(self, kind: str, path: str, options: dict[str, Any]) -> Any:
        """Return gRPC's callable for a method of this channel."""
        key = (kind, path)
        if key not in self._methods:
            self._methods[key] = getattr(self.channel, kind)(path, **options)
        return self._methods[key]


class RenewingChannel(grpc.Channel):
    """A channel over the current certificates. Safe to use from many threads at once."""

    def __init__(self, certificates: Certificates, open_one: OpenChannel) -> None:
        """`open_one` opens a channel with the material that it is given."""
        self._certificates = certificates
        self._open = open_one
        self._lines: dict[Material, Line] = {}
        self._material = certificates.material
        self._lines[self._material] = Line(open_one(self._material))
        self._is_closed = False

    def begin(self, call: object) -> Line:
        """Return the line that `call` goes over; `call` must be taken from its calls at the end."""
        while not self._is_closed:
            material = self._certificates.material
            line = self._lines.get(self._material)
            if line is None or material is not self._material:
                self._renew(material)
                continue
            line.calls.add(call)
            if self._lines.get(self._material) is line:
                return line
            line.calls.discard(call)
        raise ValueError("Cannot invoke RPC on closed channel!")  # as gRPC says it

    def _renew(self, material: Material) -> None:
        """Go over to a new line, and close those that nobody uses any more."""
        fresh = Line(self._open(material))
        if self._lines.setdefault(material, fresh) is not fresh:
            fresh.channel.close()  # another thread was first
        self._material = material
        for old, line in list(self._lines.items()):
            if old != self._material and not line.calls:
                self._lines.pop(old, None)
                line.channel.close()

    def close(self) -> None:
        """Close every line; calls under way are cancelled."""
        self._is_closed = True
        while self._lines:
            self._lines.popitem()[1].channel.close()

    def unary_unary(self, method: str, *_: Any, **options: Any) -> Any:
        """As gRPC's."""
        return _Unary(self, "unary_unary", method, options)

    def unary_stream(self, method: str, *_: Any, **options: Any) -> Any:
        """As gRPC's."""
        return _Streaming(self, "unary_stream", method, options)

    def stream_unary(self, method: str, *_: Any, **options: Any) -> Any:
        """As gRPC's."""
        return _Unary(self, "stream_unary", method, options)

    def stream_stream(self, method: str, *_: Any, **options: Any) -> Any:
        """As gRPC's."""
        return _Streaming(self, "stream_stream", method, options)

    def subscribe(self, callback: Callable[..., None], try_to_connect: bool = False) -> None:
        """Watch the line of now."""
        self._lines[self._material].channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[..., None]) -> None:
        """Watch no more."""
        for line in list(self._lines.values()):
            line.channel.unsubscribe(callback)

    def __enter__(self) -> "RenewingChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method of a renewing channel: each call goes over the line of its moment."""

    def __init__(
        self, channel: RenewingChannel, kind: str, path: str, options: dict[str, Any]
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._path = path
        self._options = options

    def _begun(self, call: object) -> tuple[Line, Any]:
        line = self._channel.begin(call)
        return line, line.method(self._kind, self._path, self._options)

    def _until_it_ends(self, start: Callable[[Any], Any]) -> Any:
        """Start a call that goes on behind our back; its line is in use until it ends."""
        token = object()
        line, method = self._begun(token)
        try:
            call = start(method)
        except BaseException:
            line.calls.discard(token)
            raise
        if not call.add_callback(lambda: line.calls.discard(token)):
            line.calls.discard(token)  # it has ended already
        return call


class _Unary(_Method):
    """A method that answers once."""

    def __call__(self, request: Any, **options: Any) -> Any:
        with self._under_way() as method:
            return method(request, **options)

    @contextmanager
    def _under_way(self) -> Iterator[Any]:
        token = object()
        line, method = self._begun(token)
        try:
            yield method
        finally:
            line.calls.discard(token)

    def future(self, request: Any, **options: Any) -> Any:
        """As gRPC's."""
        return self._until_it_ends(lambda method: method.future(request, **options))


class _Streaming(_Method):
    """A method that answers with many messages."""

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._until_it_ends(lambda method: method(request, **options))
