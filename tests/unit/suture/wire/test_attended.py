"""Attended calls: a slot is taken when the request is here, and is given back however they end."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from suture.wire.server.blocked_calls import BlockedCallMiddleware, BlockedCalls, share

CALLS = 4
CALLER = "ipv4:10.0.0.7:4711"
HOST = "ipv4:10.0.0.7"
ASKED = b"request"


class Aborted(Exception):
    """What gRPC raises in a call that is ended with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Context:
    """A call, as its handler sees it."""

    def peer(self) -> str:
        """Return where it comes from."""
        return CALLER

    def cancel(self) -> bool:
        """End it."""
        return True

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End it with a status."""
        raise Aborted(code, details)


class Slots:
    """Counts what is taken."""

    def __init__(self) -> None:
        self.taken_count = 0

    def acquire(self) -> None:
        """Take one."""
        self.taken_count += 1

    def release(self) -> None:
        """Give it back."""
        self.taken_count -= 1


class World:
    """A method behind `Attended`, which answers with what `answer` makes of its request."""

    def __init__(self) -> None:
        self.waits, self.slots = BlockedCalls(CALLS), Slots()
        self.seen: list[tuple[Any, int]] = []  # what a handler was asked, and the slots taken then
        self.error: Exception | None = None

    def unary(self, request: Any, _context: Any) -> Any:
        """Answer once."""
        self.seen.append((request, self.slots.taken_count))
        if self.error is not None:
            raise self.error
        return request

    def stream(self, request: Any, context: Any) -> Iterator[Any]:
        """Answer twice."""
        yield self.unary(request, context)
        yield request

    def call(self, requests: list[bytes], *, streams: bool) -> list[Any]:
        """Call the method; return its answers."""
        make: Any = grpc.unary_unary_rpc_method_handler
        behavior: Any = self.unary
        if streams:
            make, behavior = grpc.unary_stream_rpc_method_handler, self.stream
        attended: Any = BlockedCallMiddleware(self.waits, self.slots).wrap(
            "/suture.v1.Test/Do", make(behavior, parsed, None)
        )
        if streams:
            return list(attended.stream_stream(iter(requests), Context()))
        return [attended.stream_unary(iter(requests), Context())]


def parsed(data: bytes) -> str:
    """Read a request, unless it is malformed."""
    if data != ASKED:
        raise DecodeError
    return data.decode()


@pytest.fixture
def world() -> World:
    """Return one."""
    return World()


@pytest.mark.parametrize("streams", [False, True])
class TestAttended:
    def test_a_call_has_a_slot_while_it_works_and_none_before_or_after(
        self, world: World, *, streams: bool
    ) -> None:
        """
        Its request is parsed by then.
        """
        assert "request" == world.call([ASKED], streams=streams)[0]
        assert [("request", 1)] == world.seen
        assert (0, 0) == (world.slots.taken_count, len(world.waits))

    def test_a_call_that_fails_gives_its_slot_back(self, world: World, *, streams: bool) -> None:
        """The error reaches the layer that turns it into a status."""
        world.error = KeyError("a fault of ours")

        with pytest.raises(KeyError):
            world.call([ASKED], streams=streams)
        assert (0, 0) == (world.slots.taken_count, len(world.waits))

    def test_unparsable_request_is_the_callers_fault(self, world: World, *, streams: bool) -> None:
        """The method never sees it. A decoding error inside a method is not the caller's fault."""
        with pytest.raises(Aborted) as ended:
            world.call([b"garbage"], streams=streams)
        assert grpc.StatusCode.INVALID_ARGUMENT is ended.value.code
        assert (0, []) == (world.slots.taken_count, world.seen)

        world.error = DecodeError("of another message")
        with pytest.raises(DecodeError):
            world.call([ASKED], streams=streams)

    def test_a_call_without_a_request_is_ended(self, world: World, *, streams: bool) -> None:
        """The client closed its side and sent nothing."""
        with pytest.raises(Aborted, match="no request") as ended:
            world.call([], streams=streams)
        assert grpc.StatusCode.INVALID_ARGUMENT is ended.value.code
        assert (0, 0) == (world.slots.taken_count, len(world.waits))

    def test_a_caller_whose_share_waits_is_sent_away(self, world: World, *, streams: bool) -> None:
        """
        Until one of those that wait goes on; others are let in all the while.
        """
        tickets = [world.waits.begin(HOST, lambda: None) for _ in range(share(CALLS))]
        with pytest.raises(Aborted) as ended:
            world.call([ASKED], streams=streams)
        assert grpc.StatusCode.RESOURCE_EXHAUSTED is ended.value.code
        assert (0, []) == (world.slots.taken_count, world.seen)
        assert len(tickets) == len(world.waits)

        world.waits.begin("ipv4:10.0.0.8", lambda: None)
        world.waits.end(tickets[0])
        assert world.call([ASKED], streams=streams)
