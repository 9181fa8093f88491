"""Limits the memory of calls. A server reserves the memory of a call before it receives the
request."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
    "ReadChunks": 8 * MIB,
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
            with self._reserve(cost_bytes, context):
                return behavior(requests, context)

        return budgeted

    def _stream(self, behavior: Any, cost_bytes: int) -> Callable[..., Iterator[Any]]:
        def budgeted(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._reserve(cost_bytes, context):
                yield from behavior(requests, context)

        return budgeted

    @contextmanager
    def _reserve(self, cost_bytes: int, context: grpc.ServicerContext) -> Iterator[None]:
        caller = account_of(context.peer())
        if self._memory.waiting_count(caller) >= self._waits.share:
            abort_crowded(context)
        left_s = context.time_remaining()
        with ExitStack() as held:
            try:
                held.enter_context(
                    self._memory.hold(
                        cost_bytes,
                        owner=caller,
                        timeout_s=WAIT_S if left_s is None else min(left_s, WAIT_S),
                        stop=lambda: not context.is_active(),
                        while_short=lambda: self._waits.sweep(is_short=True),
                    )
                )
            except UnavailableError as error:
                context.abort_with_status(rpc_status.to_status(to_status(error)))
            taken = held.pop_all()
        ends = _SecondEnd(taken.close)
        if not context.add_callback(ends.end):
            ends.end()
        try:
            yield
        finally:
            taken.callback(self._waits.end, self._waits.begin(caller, context.cancel))
            ends.end()


class _SecondEnd:
    """Calls `act` when both the handler and gRPC have ended a call. gRPC may end it later, because
    it keeps the response until the client has received it."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._ends = count(1)  # `next` is atomic, so no lock is needed

    def end(self) -> None:
        """Record that the handler or gRPC has ended the call. The second call of this method calls
        `act`."""
        if next(self._ends) == 2:
            self._act()
