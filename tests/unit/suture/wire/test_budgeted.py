"""Calls that reserve memory: many threads may take and return the share of one caller at once."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from suture.runtime.memory import MemoryBudget
from suture.wire.server.blocked_calls import BlockedCalls
from suture.wire.server.budgeted import MemoryBudgetMiddleware

CALL_COUNT = 8_000
THREAD_COUNT = 8


class RunningCall:
    """A call of one caller, as its handler sees it."""

    def peer(self) -> str:
        """Return where the caller is."""
        return "ipv4:10.0.0.7:4711"

    def time_remaining(self) -> float | None:
        """Return None: the call has no deadline."""
        return None

    def is_active(self) -> bool:
        """Return True: the caller waits for the answer."""
        return True

    def add_callback(self, _ended: Callable[[], None]) -> bool:
        """Return False: the call is over when its handler is."""
        return False

    def cancel(self) -> None:
        """Do nothing: the call ends by itself."""

    def abort(self, _code: grpc.StatusCode, details: str) -> None:
        """Raise the refusal."""
        raise AssertionError(details)


@pytest.fixture
def _threads_interrupt_each_other() -> Iterator[None]:
    """Give each thread a microsecond at a time."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("_threads_interrupt_each_other")
def test_calls_of_one_caller_at_once_leave_nothing_behind() -> None:
    """A reconstruction reads cells of one source in eight calls; none fails, and none counts when
    it has ended."""
    memory = MemoryBudget(1024)
    waits = BlockedCalls(THREAD_COUNT * 2)
    layer = MemoryBudgetMiddleware(memory, {"ReadChunks": 64}, waits)
    handler: Any = SimpleNamespace(
        response_streaming=False,
        request_deserializer=None,
        response_serializer=None,
        stream_unary=lambda _requests, _context: b"answer",
    )
    call = layer.wrap("/suture.Datanode/ReadChunks", handler).stream_unary

    with ThreadPoolExecutor(THREAD_COUNT) as threads:
        answers = list(threads.map(lambda _: call(iter(()), RunningCall()), range(CALL_COUNT)))

    assert [b"answer"] * CALL_COUNT == answers
    assert (0, 0, 0) == (memory.waiting_count("ipv4:10.0.0.7"), memory.used_bytes, len(waits))
