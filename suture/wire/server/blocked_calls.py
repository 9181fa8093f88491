"""Limits the calls that wait for their client, either for the rest of a request or until a response
is read.

gRPC gives a call its thread before the request is complete, and the client may take any time.
Therefore, a client that begins calls without finishing them, or never reads the responses, could
occupy every thread, and the keepalive would not detect this. This module records waiting calls.
They do not occupy the few slots for working calls, and they are limited:

- A connection may have only a part of all calls; HTTP/2 refuses more calls.
- A caller may have the same number of waiting calls; the server refuses the next one.
- If most calls wait, those that have waited for `SLOW_S` are cancelled.
- If memory is short, those that have waited for `SLOW_S` are cancelled
  (`suture.wire.server.budgeted`).
- A call that has waited for `WAIT_S_MAX` is cancelled.

gRPC looks up the handler of a call before the call gets a thread, even if the call never gets one.
At this lookup, `suture.runtime.middleware` calls `BlockedCalls.sweep`, which cancels calls.

A single request is received as a stream of one message. Otherwise, gRPC would report the call only
when its request is complete. On the wire, both are the same.
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

SLOW_S: Final = 3.0  # after this wait, a call may be cancelled if others need its thread
WAIT_S_MAX: Final = 120.0  # 16 MiB over 1 Mbit/s; longer than any pause of a healthy reader
SWEEP_INTERVAL_S: Final = 0.25

LOOPBACK: Final = frozenset({"ipv4:127.0.0.1", "ipv6:%5B::1%5D"})

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


def share(call_count_max: int) -> int:
    """Return the maximum number of waiting calls of one connection or caller."""
    return max(2, call_count_max * 3 // 4)


class WorkerSlots(Protocol):
    """Slots for working calls. A server has fewer slots than calls."""

    def acquire(self) -> None:
        """Take a slot. Wait until a slot is free."""
        ...

    def release(self) -> None:
        """Return a slot. The slot may have been taken by another thread."""
        ...


class UnlimitedSlots:
    """An unlimited number of slots, for a server whose thread pool is the only limit."""

    def acquire(self) -> None:
        """Do nothing, because there is always a free slot."""

    def release(self) -> None:
        """Do nothing."""


@lru_cache(1024)
def account_of(place: str) -> str:
    """Return the account of the caller at `place`, an address and port in the format of gRPC.

    All connections of a host have the same account. On loopback, each connection has its own
    account, so that processes are distinguished.
    """
    host = place.rpartition(":")[0]
    return place if host in LOOPBACK else host


_Wait: TypeAlias = tuple[str, float, Callable[[], object]]  # caller, start time, cancellation


class TooManyBlockedCalls(Exception):
    """Raised if a caller has reached its limit of waiting calls."""


class BlockedCalls:
    """The waiting calls of one server. The thread of a call records that it waits; any thread may
    call `sweep`.

    If several threads reach the limit at the same time, one more call may wait.
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
        """Record that a call waits from now on. Return a ticket, which must be passed to `end`."""
        ticket = next(self._tickets)
        self._waits[ticket] = (caller, self._monotonic_s(), cancel)
        return ticket

    def first_of(
        self, requests: Iterator[bytes], caller: str, cancel: Callable[[], object]
    ) -> bytes | None:
        """Wait for the request of a call, and return it. Return None if the client sends none.

        The call is recorded as waiting. Raise TooManyBlockedCalls if the caller has too many
        waiting calls.
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
        """Record that the call with this ticket does not wait any more."""
        self._waits.pop(ticket, None)

    def has_room(self, caller: str) -> bool:
        """Return True if one more call of this caller may wait."""
        return len(self._waits) < self._share or self._count(caller) < self._share

    def _count(self, caller: str) -> int:
        return sum(waiting == caller for waiting, _, _ in list(self._waits.values()))

    def sweep(self, *, is_short: bool = False) -> int:
        """Cancel calls that have waited for WAIT_S_MAX. If most calls wait, or `is_short` is True
        because memory is short, also cancel slow calls. Return the number of cancelled calls."""
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
        """Return the tickets of the calls to cancel.

        These are all calls that have waited for WAIT_S_MAX, and slow calls if too many calls wait.
        Slow calls of the caller with the most slow calls are cancelled first, the oldest first.
        """
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
    """A layer of a server that records when calls wait for their clients. It must wrap the other
    layers that read requests (`suture.runtime.middleware`)."""

    def __init__(
        self, waits: BlockedCalls, slots: WorkerSlots, connections: Connections | None = None
    ) -> None:
        """Create the layer. `connections` gets notified when a call of a connection begins and
        ends."""
        self._waits = waits
        self._slots = slots
        self._connections = connections or Connections(0)

    def wrap(self, _method: str, handler: Any) -> _Handler:
        """Return a handler that calls `handler` and records when its calls wait."""
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
            place = context.peer()
            ticket = begin(place)
            try:
                data = self._only(requests, account_of(place), context)
                slots.acquire()
                try:
                    try:
                        request = parse(data)
                    except DecodeError:
                        _abort_malformed(context)
                    return behavior(request, context)
                finally:
                    slots.release()
            finally:
                end(ticket)

        return attended

    def _stream(self, handler: Any) -> Callable[..., Iterator[Any]]:
        slots, waits, behavior, parse = (
            self._slots,
            self._waits,
            handler.unary_stream,
            _parser(handler),
        )
        begin, end = self._connections.begin, self._connections.end

        def attended(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            place = context.peer()
            connection = begin(place)
            caller = account_of(place)
            try:
                data = self._only(requests, caller, context)
                slots.acquire()
                try:
                    try:
                        request = parse(data)
                    except DecodeError:
                        _abort_malformed(context)
                    for answer in behavior(request, context):
                        ticket = waits.begin(caller, context.cancel)
                        slots.release()
                        try:
                            yield answer  # blocks until there is room to send it
                        finally:
                            waits.end(ticket)
                            slots.acquire()
                finally:
                    slots.release()
            finally:
                end(connection)

        return attended

    def _upload(self, handler: Any) -> Callable[..., Any]:
        def attended(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._connected(context):
                caller = self._entered(context)
                self._slots.acquire()
                try:
                    return handler.stream_unary(self._arriving(requests, caller, context), context)
                finally:
                    self._slots.release()

        return attended

    def _conversation(self, handler: Any) -> Callable[..., Iterator[Any]]:
        def attended(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._connected(context):
                caller = self._entered(context)
                self._slots.acquire()
                try:
                    arriving = self._arriving(requests, caller, context)
                    for answer in handler.stream_stream(arriving, context):
                        with self._waiting(caller, context):
                            yield answer  # blocks until there is room to send it
                finally:
                    self._slots.release()

        return attended

    def _entered(self, context: grpc.ServicerContext) -> str:
        """Return the account of a call's caller. Abort the call if the account has reached its
        limit of waiting calls."""
        caller = account_of(context.peer())
        if not self._waits.has_room(caller):
            abort_crowded(context)
        return caller

    def _only(self, requests: Iterator[bytes], caller: str, context: grpc.ServicerContext) -> bytes:
        """Wait for the single request of a call, and return it without parsing it. Abort the call
        if there is none, or if the caller has too many waiting calls."""
        try:
            request = self._waits.first_of(requests, caller, context.cancel)
        except TooManyBlockedCalls:
            abort_crowded(context)
        if request is not None:
            return request
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
        raise AssertionError("abort always raises")

    def _arriving(
        self, requests: Iterator[Any], caller: str, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        """Yield the messages of a client's stream. While the call waits for a message, it has no
        slot."""
        while True:
            with self._waiting(caller, context):
                message = next(requests, None)
            if message is None:
                return
            yield message

    @contextmanager
    def _connected(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Record that the connection of a call is in use during the `with` block."""
        ticket = self._connections.begin(context.peer())
        try:
            yield
        finally:
            self._connections.end(ticket)

    @contextmanager
    def _waiting(self, caller: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Record that the call waits for its client during the `with` block. During this time, the
        call has no slot."""
        ticket = self._waits.begin(caller, context.cancel)
        self._slots.release()
        try:
            yield
        finally:
            self._waits.end(ticket)
            self._slots.acquire()


def _parser(handler: Any) -> Callable[[bytes], Any]:
    """Return the function that parses the requests of a method. The function may raise
    DecodeError."""
    return handler.request_deserializer or bytes


def _abort_malformed(context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of this method's type")
    raise AssertionError("abort always raises")


def abort_crowded(context: grpc.ServicerContext) -> NoReturn:
    """Abort a call, because its caller has too many waiting calls."""
    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls of this caller wait for it")
    raise AssertionError("abort always raises")
