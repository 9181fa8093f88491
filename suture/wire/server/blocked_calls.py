"""Calls that wait for their caller: for the rest of a request, or for an answer to be taken.

gRPC gives a call its thread before the request is complete, and lets the caller take any time. So a
client that begins calls without finishing them, or never reads the answers, would take every
thread, and the keepalive would find nothing wrong. Here such calls are recorded, do not hold the
few slots for working calls, and are bounded:

    one connection    a share of all calls; HTTP/2 refuses more
    one caller        the same number of waiting calls; the next is refused
    all together      when most calls wait, those that waited for `SLOW_S` are ended
    any call          is ended when it has waited for `WAIT_S_MAX`
    memory is short   those that waited for `SLOW_S` are ended (`suture.wire.server.budgeted`)

gRPC looks up the handler of a call before it gets a thread, even if it gets none: calls are ended
there (`BlockedCalls.sweep`, by `suture.runtime.middleware`). A single request is received as a
stream of one message, which is the same on the wire, because gRPC reports other calls only once
their request is complete.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from suture.wire.server.connections import Connections

SLOW_S: Final = 3.0  # a call that waits longer for its caller may be ended for others
WAIT_S_MAX: Final = 120.0  # 16 MiB over 1 Mbit/s; longer than any pause of a healthy reader
SWEEP_INTERVAL_S: Final = 0.25

LOOPBACK: Final = frozenset({"ipv4:127.0.0.1", "ipv6:%5B::1%5D"})

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


def share(call_count_max: int) -> int:
    """Return how many of all calls one connection, or one caller, may keep waiting."""
    return max(2, call_count_max * 3 // 4)


class WorkerSlots(Protocol):
    """The right to work on a call, of which there are few."""

    def take(self) -> None:
        """Wait for a slot."""
        ...

    def give(self) -> None:
        """Return a slot. Any thread may return another's."""
        ...


class UnlimitedSlots:
    """Slots without a limit, for a server whose pool is its only limit."""

    def take(self) -> None:
        """Return at once."""

    def give(self) -> None:
        """Do nothing."""


@lru_cache(1024)
def account_of(place: str) -> str:
    """Return the account of a caller at `place`, an address and port as gRPC writes it.

    A host has one account; on loopback, processes are distinguished by their connection.
    """
    host = place.rpartition(":")[0]
    return place if host in LOOPBACK else host


_Wait: TypeAlias = tuple[str, float, Callable[[], object]]  # caller, start time, cancellation


class TooManyBlockedCalls(Exception):
    """The caller has reached its limit of waiting calls."""


class BlockedCalls:
    """The waiting calls of one server. Each is begun and ended by its own thread, swept by any.

    Threads may race for the last place, in which case one call more is admitted.
    """

    def __init__(
        self,
        call_count_max: int,
        *,
        slow_s: float = SLOW_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = self.share = share(call_count_max)
        self._slow_s = slow_s
        self._monotonic_s = monotonic_s
        self._waits: dict[int, _Wait] = {}
        self._tickets = count()
        self._swept_at_s = monotonic_s()

    def __len__(self) -> int:
        return len(self._waits)

    def begin(self, caller: str, cancel: Callable[[], object]) -> int:
        """Record that a call waits from now on; return the ticket for `end`."""
        ticket = next(self._tickets)
        self._waits[ticket] = (caller, self._monotonic_s(), cancel)
        return ticket

    def first_of(
        self, requests: Iterator[bytes], caller: str, cancel: Callable[[], object]
    ) -> bytes | None:
        """Return a call's request, recording the wait; None if there is none.

        Raise TooManyBlockedCalls if this caller has too many waiting calls.
        """
        if len(self._waits) >= self._share and self._count(caller) >= self._share:
            raise TooManyBlockedCalls
        ticket = next(self._tickets)
        self._waits[ticket] = (caller, self._monotonic_s(), cancel)
        try:
            return next(requests, None)
        finally:
            self._waits.pop(ticket, None)

    def end(self, ticket: int) -> None:
        """Record the end of a wait."""
        self._waits.pop(ticket, None)

    def has_room(self, caller: str) -> bool:
        """Return whether one more call of this caller may wait."""
        return len(self._waits) < self._share or self._count(caller) < self._share

    def _count(self, caller: str) -> int:
        return sum(waiting == caller for waiting, _, _ in list(self._waits.values()))

    def sweep(self, *, is_short: bool = False) -> int:
        """End calls that have waited too long, or that block others because there are many or
        memory `is_short`; return their number."""
        now_s = self._monotonic_s()
        if now_s - self._swept_at_s < SWEEP_INTERVAL_S:
            return 0
        self._swept_at_s = now_s
        doomed = self._doomed(now_s, is_short=is_short)
        for ticket in doomed:
            wait = self._waits.pop(ticket, None)
            if wait is not None:
                cancel = wait[2]
                cancel()
        return len(doomed)

    def _doomed(self, now_s: float, *, is_short: bool) -> list[int]:
        """Return the calls to end: those of the caller with most first, oldest first."""
        waits = list(self._waits.items())
        expired = [ticket for ticket, (_, since_s, _) in waits if now_s - since_s >= WAIT_S_MAX]
        if len(waits) < self._share and not is_short:
            return expired
        slow = [
            (caller, since_s, ticket)
            for ticket, (caller, since_s, _) in waits
            if now_s - since_s >= self._slow_s
        ]
        by_caller = Counter(caller for caller, _, _ in slow)
        slow.sort(key=lambda item: (-by_caller[item[0]], item[1]))
        excess_count = max(len(waits) - self._share // 2, len(slow) if is_short else 0)
        return list({*expired, *(ticket for _, _, ticket in slow[:excess_count])})


class BlockedCallMiddleware:
    """Records the waits of every call of a server. The outermost layer (`Layers`)."""

    def __init__(
        self, waits: BlockedCalls, slots: WorkerSlots, connections: Connections | None = None
    ) -> None:
        """`connections` is notified of the calls of each connection."""
        self._waits = waits
        self._slots = slots
        self._connections = connections or Connections(0)

    def wrap(self, _method: str, handler: Any) -> _Handler:
        """Record the waits of each call."""
        if handler.request_streaming:
            both_ways = handler.response_streaming
            make_upload: Any = (
                grpc.stream_stream_rpc_method_handler
                if both_ways
                else grpc.stream_unary_rpc_method_handler
            )
            taking: _Handler = make_upload(
                self._conversation(handler) if both_ways else self._upload(handler),
                handler.request_deserializer,
                handler.response_serializer,
            )
            return taking
        make: Any = grpc.stream_unary_rpc_method_handler
        behavior = self._unary(handler)
        if handler.response_streaming:
            make, behavior = grpc.stream_stream_rpc_method_handler, self._stream(handler)
        made: _Handler = make(behavior, None, handler.response_serializer)
        return made

    def _unary(self, handler: Any) -> Callable[..., Any]:
        slots, behavior, parse = self._slots, handler.unary_unary, _parser(handler)
        begin, end = self._connections.begin, self._connections.end

        def attended(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            ticket = begin(context.peer())
            try:
                data = self._only(requests, context)
                slots.take()
                try:
                    try:
                        request = parse(data)
                    except DecodeError:
                        _abort_malformed(context)
                    return behavior(request, context)
                finally:
                    slots.give()
            finally:
                end(ticket)

        return attended

    def _stream(self, handler: Any) -> Callable[..., Iterator[Any]]:
        parse = _parser(handler)

        def attended(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._connected(context):
                data = self._only(requests, context)
                caller = account_of(context.peer())
                self._slots.take()
                try:
                    try:
                        request = parse(data)
                    except DecodeError:
                        _abort_malformed(context)
                    for answer in handler.unary_stream(request, context):
                        with self._waiting(caller, context):
                            yield answer  # blocks until there is room to send it
                finally:
                    self._slots.give()

        return attended

    def _upload(self, handler: Any) -> Callable[..., Any]:
        def attended(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._connected(context):
                caller = self._entered(context)
                self._slots.take()
                try:
                    return handler.stream_unary(self._arriving(requests, caller, context), context)
                finally:
                    self._slots.give()

        return attended

    def _conversation(self, handler: Any) -> Callable[..., Iterator[Any]]:
        def attended(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._connected(context):
                caller = self._entered(context)
                self._slots.take()
                try:
                    arriving = self._arriving(requests, caller, context)
                    for answer in handler.stream_stream(arriving, context):
                        with self._waiting(caller, context):
                            yield answer  # blocks until there is room to send it
                finally:
                    self._slots.give()

        return attended

    def _entered(self, context: grpc.ServicerContext) -> str:
        """Return the account of a call. Abort the call if the account has used its share."""
        caller = account_of(context.peer())
        if not self._waits.has_room(caller):
            abort_crowded(context)
        return caller

    def _only(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Return the unparsed request of a unary call, which may still have to wait for a slot."""
        try:
            request = self._waits.first_of(requests, account_of(context.peer()), context.cancel)
        except TooManyBlockedCalls:
            abort_crowded(context)
        if request is not None:
            return request
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        raise AssertionError("abort always raises")

    def _arriving(
        self, requests: Iterator[Any], caller: str, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Yield the messages of a caller's stream; no slot is held while waiting for one."""
        while True:
            with self._waiting(caller, context):
                message = next(requests, None)
            if message is None:
                return
            yield message

    @contextmanager
    def _connected(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Record that the connection of a call is in use."""
        ticket = self._connections.begin(context.peer())
        try:
            yield
        finally:
            self._connections.end(ticket)

    @contextmanager
    def _waiting(self, caller: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Wait for the caller, recorded, and without a slot."""
        ticket = self._waits.begin(caller, context.cancel)
        self._slots.give()
        try:
            yield
        finally:
            self._waits.end(ticket)
            self._slots.take()


def _parser(handler: Any) -> Callable[[bytes], Any]:
    """Return the parser of a method's requests. It may raise DecodeError."""
    return handler.request_deserializer or bytes


def _abort_malformed(context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of this method's type")
    raise AssertionError("abort always raises")


def abort_crowded(context: grpc.ServicerContext) -> NoReturn:
    """Abort a call whose caller has too many waiting calls."""
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls of this caller wait for it")
    raise AssertionError("abort always raises")
