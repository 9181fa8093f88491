"""Limits the memory of calls. A server reserves the memory of a call before it receives the
request."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Final

import grpc
from grpc_status import rpc_status

from suture.errors import UnavailableError
from suture.runtime.memory import WAIT_S, MemoryBudget
from suture.wire.clients.channel import MESSAGE_BYTES_MAX
from suture.wire.mapping.errors import to_status
from suture.wire.server.blocked_calls import BlockedCalls, abort_crowded, account_of

MIB: Final = 1024**2
COSTS: Final[Mapping[str, int]] = {
    # Three copies of a piece until the caller takes it: as read, as a message, and in gRPC.
    "ReadBlock": 8 * MIB,
    "ReadChunk": 4 * MIB,
    "ReadChunks": 16 * MIB,
    "GetSmallFile": 4 * MIB,
    "GetContainerHashes": 8 * MIB,
    "ListBlocks": 8 * MIB,
    "GetBlocks": 8 * MIB,
    "ListContainers": 4 * MIB,
    # A message in gRPC, and its content; for streams also the data being written.
    "WriteChunk": 2 * MESSAGE_BYTES_MAX,
    # Small, because a put holds it at this server while its lanes wait for memory at other
    # datanodes.
    "WriteBlocks": 6 * MIB,
    "ImportContainer": 48 * MIB,
}


class MemoryBudgetMiddleware:
    """A layer of a server that reserves memory for each call, until the client has received the
    response.

    It must wrap `BlockedCallMiddleware`, which converts all handlers to handlers of streams. Calls
    that wait for their client use memory, too. They are cancelled if other calls need the memory.
    """

    def __init__(self, memory: MemoryBudget, costs: Mapping[str, int], waits: BlockedCalls) -> None:
        """Create the layer. `costs` has the number of bytes that a call needs, by method. Methods
        that are not in `costs` need so little that no memory is reserved."""
        self._memory = memory
        self._costs = costs
        self._waits = waits

    def wrap(self, method: str, handler: Any) -> Any:
        """Return a handler that reserves memory for each call. If the method is not in `costs`,
        return `handler` unchanged."""
        cost_bytes = self._costs.get(method.rpartition("/")[2], 0)
        if not cost_bytes:
            return handler
        if handler.response_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            behavior: Any = self._stream(handler.stream_stream, cost_bytes)
        else:
            make = grpc.stream_unary_rpc_method_handler
            behavior = self._unary(handler.stream_unary, cost_bytes)
        return make(behavior, handler.request_deserializer, handler.response_serializer)

    def _unary(self, behavior: Any, cost_bytes: int) -> Callable[..., Any]:
        def budgeted(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            reservation = self._reserve(cost_bytes, context)
            try:
                return behavior(requests, context)
            finally:
                reservation.end_handler(context)

        return budgeted

    def _stream(self, behavior: Any, cost_bytes: int) -> Callable[..., Iterator[Any]]:
        def budgeted(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            reservation = self._reserve(cost_bytes, context)
            try:
                yield from behavior(requests, context)
            finally:
                reservation.end_handler(context)

        return budgeted

    def _reserve(self, cost_bytes: int, context: grpc.ServicerContext) -> "_Reservation":
        """Reserve the memory of a call. Abort the call if it gets none."""
        caller = account_of(context.peer())
        if self._memory.waiting_count(caller) >= self._waits.share:
            abort_crowded(context)
        if not self._memory.try_acquire(cost_bytes, caller):
            self._wait_for_memory(cost_bytes, caller, context)
        reservation = _Reservation(self._memory, cost_bytes, caller, self._waits)
        if not context.add_callback(reservation.end):
            reservation.end()
        return reservation

    def _wait_for_memory(self, cost_bytes: int, caller: str, context: grpc.ServicerContext) -> None:
        left_s = context.time_remaining()
        try:
            self._memory.acquire(
                cost_bytes,
                caller,
                timeout_s=WAIT_S if left_s is None else min(left_s, WAIT_S),
                stop=lambda: not context.is_active(),
                while_short=lambda: self._waits.sweep(is_short=True),
            )
        except UnavailableError as error:
            context.abort_with_status(rpc_status.to_status(to_status(error)))


class _Reservation:
    """Memory of a call, which is released when both the handler of the call and gRPC have ended the
    call. gRPC may end it later, because it keeps the answer until the caller takes it."""

    __slots__ = ("_bytes", "_caller", "_ends", "_memory", "_ticket", "_waits")

    def __init__(
        self, memory: MemoryBudget, cost_bytes: int, caller: str, waits: BlockedCalls
    ) -> None:
        self._memory, self._bytes, self._caller, self._waits = memory, cost_bytes, caller, waits
        self._ends = count(1)  # `next` is atomic, so no lock is needed
        self._ticket = -1

    def end_handler(self, context: grpc.ServicerContext) -> None:
        """Record that the handler has ended. From now on, the call waits for its caller."""
        self._ticket = self._waits.begin(self._caller, context.cancel)
        self.end()

    def end(self) -> None:
        """Record that the handler or gRPC has ended the call. Release the memory at the second
        end."""
        if next(self._ends) == 2:
            self._waits.end(self._ticket)
            self._memory.release(self._bytes, self._caller)
