"""A gRPC channel whose new calls always use the current certificate.

The credentials of a gRPC channel are fixed when the channel is opened. Therefore, the channel in
this module consists of several gRPC channels (`ActiveChannel`), each with one version of the
certificates. When the certificates change, a new gRPC channel is opened for new calls, and the old
one is closed after its last call.

No lock is needed. A call is first added to the calls of a gRPC channel, and then checks whether
that channel is still current. A renewal first replaces the gRPC channel, and then checks the old
one for calls. Therefore, the second of the two always sees the first (as in Dekker's algorithm).
Operations on a Python set and dictionary are atomic.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from suture.wire.security.tls import Certificates, TlsMaterial

OpenChannel = Callable[[TlsMaterial], grpc.Channel]


class ActiveChannel:
    """A gRPC channel with one version of the certificates, and its running calls."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.calls: set[object] = set()
        self._methods: dict[tuple[str, str], Any] = {}

    def method(self, kind: str, path: str, options: dict[str, Any]) -> Any:
        """Return gRPC's callable for the method with this kind and path."""
        key = (kind, path)
        if key not in self._methods:
            self._methods[key] = getattr(self.channel, kind)(path, **options)
        return self._methods[key]


class RenewingChannel(grpc.Channel):
    """A gRPC channel whose new calls use the current certificates. Thread-safe."""

    def __init__(self, certificates: Certificates, open_one: OpenChannel) -> None:
        """Open the first gRPC channel. `open_one` opens a gRPC channel with the given
        certificates."""
        self._certificates = certificates
        self._open = open_one
        self._lines: dict[TlsMaterial, ActiveChannel] = {}
        self._material = certificates.material
        self._lines[self._material] = ActiveChannel(open_one(self._material))
        self._is_closed = False

    def begin(self, call: object) -> ActiveChannel:
        """Add `call` to the gRPC channel with the current certificates, and return this gRPC
        channel.

        When the call ends, the caller must remove `call` from the set `calls` of the returned
        object. Raise ValueError if the channel was closed.
        """
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
        raise ValueError("Cannot invoke RPC on closed channel!")  # gRPC's message

    def _renew(self, material: TlsMaterial) -> None:
        """Open a gRPC channel with the new certificates for new calls. Close the old gRPC channels
        that have no running calls."""
        fresh = ActiveChannel(self._open(material))
        if self._lines.setdefault(material, fresh) is not fresh:
            fresh.channel.close()  # another thread has opened a line meanwhile
        self._material = material
        for old, line in list(self._lines.items()):
            if old != self._material and not line.calls:
                self._lines.pop(old, None)
                line.channel.close()

    def close(self) -> None:
        """Close every gRPC channel. Running calls are cancelled."""
        self._is_closed = True
        while self._lines:
            self._lines.popitem()[1].channel.close()

    def unary_unary(self, method: str, *_: Any, **options: Any) -> Any:
        """Return a callable of the method. Each call uses the certificates that are current at its
        start."""
        return _Unary(self, "unary_unary", method, options)

    def unary_stream(self, method: str, *_: Any, **options: Any) -> Any:
        """Return a callable of the method. Each call uses the certificates that are current at its
        start."""
        return _StreamMethod(self, "unary_stream", method, options)

    def stream_unary(self, method: str, *_: Any, **options: Any) -> Any:
        """Return a callable of the method. Each call uses the certificates that are current at its
        start."""
        return _Unary(self, "stream_unary", method, options)

    def stream_stream(self, method: str, *_: Any, **options: Any) -> Any:
        """Return a callable of the method. Each call uses the certificates that are current at its
        start."""
        return _StreamMethod(self, "stream_stream", method, options)

    def subscribe(self, callback: Callable[..., None], try_to_connect: bool = False) -> None:
        """Call `callback` when the state of the current gRPC channel changes."""
        self._lines[self._material].channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[..., None]) -> None:
        """Do not call `callback` for any gRPC channel any more."""
        for line in list(self._lines.values()):
            line.channel.unsubscribe(callback)

    def __enter__(self) -> "RenewingChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method of a `RenewingChannel`. Each call uses the gRPC channel that is current at its
    start."""

    def __init__(
        self, channel: RenewingChannel, kind: str, path: str, options: dict[str, Any]
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._path = path
        self._options = options

    def _start_call(self, call: object) -> tuple[ActiveChannel, Any]:
        line = self._channel.begin(call)
        return line, line.method(self._kind, self._path, self._options)

    def _until_it_ends(self, start: Callable[[Any], Any]) -> Any:
        """Start a call that continues after this function returns. Its gRPC channel remains open
        until the call ends."""
        token = object()
        line, method = self._start_call(token)
        try:
            call = start(method)
        except BaseException:
            line.calls.discard(token)
            raise
        if not call.add_callback(lambda: line.calls.discard(token)):
            line.calls.discard(token)  # the call has already ended
        return call


class _Unary(_Method):
    """A method with a single response. The gRPC channel of a call remains open until the response
    arrives."""

    def __call__(self, request: Any, **options: Any) -> Any:
        with self._under_way() as method:
            return method(request, **options)

    @contextmanager
    def _under_way(self) -> Iterator[Any]:
        token = object()
        line, method = self._start_call(token)
        try:
            yield method
        finally:
            line.calls.discard(token)

    def future(self, request: Any, **options: Any) -> Any:
        """Start a call with the current certificates, and return its future."""
        return self._until_it_ends(lambda method: method.future(request, **options))


class _StreamMethod(_Method):
    """A method with a stream of responses."""

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._until_it_ends(lambda method: method(request, **options))
