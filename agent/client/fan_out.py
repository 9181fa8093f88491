"""One stream of messages sent to several datanodes at once: each message is made once.

Each datanode has a lane: a few messages that it has not taken yet. The slowest sets the pace; one
that takes nothing for too long, or fails, is out, and the others go on.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any, Final, TypeVar

import grpc

from agent.errors import Code, SutureError, Unavailable
from agent.rpc.calls.channel import RETRY_WAIT_S, RETRY_WAIT_S_MAX
from agent.rpc.wire.errors import error_from

WAITING_MAX: Final = 2  # messages of one lane, beside the one that is being sent
BUSY_PATIENCE_S: Final = 120.0  # with a datanode that has too many calls
BUSY: Final = frozenset({Code.BUSY, Code.CANCELLED})
"""What it says then: it refuses calls, or ends those that wait for their callers."""

Name = TypeVar("Name")

Open = Callable[[Iterator[bytes], float], Any]
"""Begins a call with these messages and so many seconds; returns its future."""


class Lane:
    """The stream to one datanode."""

    def __init__(self, open_call: Open, *, message_timeout_s: float, message_count: int) -> None:
        """Begin the call; each message has so many seconds, and the answer as many."""
        self._timeout_s = message_timeout_s
        self._waiting: Queue[bytes | None] = Queue(WAITING_MAX)
        self._has_ended = False
        total_s = message_timeout_s * (message_count + 1)
        self._answer = open_call(iter(self._waiting.get, None), total_s)
        self._answer.add_done_callback(self._end)

    def send(self, message: bytes | None) -> None:
        """Add a message, or with None the end, when there is room for it. A lane that has ended, or
        takes nothing, drops it: `failure` says why."""
        if self._has_ended:
            return
        try:
            self._waiting.put(message, timeout=self._timeout_s)
        except Full:
            self._answer.cancel()

    def failure(self) -> SutureError | None:
        """Wait for the answer; return why there is none, None for success."""
        try:
            self._answer.result(timeout=self._timeout_s)
        except grpc.RpcError as error:
            return error_from(error)
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            self._answer.cancel()
            return Unavailable(Code.UNAVAILABLE, f"took nothing for {self._timeout_s:g} s")
        return None

    def cancel(self) -> None:
        """End the call, whatever was sent."""
        self._answer.cancel()

    def _end(self, _answer: object) -> None:
        """Let go of who waits for room, and of the thread that waits for messages."""
        self._has_ended = True
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        with suppress(Full):  # then a message came meanwhile, and wakes that thread as well
            self._waiting.put_nowait(None)


def spread(messages: Iterator[bytes], lanes: Mapping[str, Lane]) -> dict[str, SutureError]:
    """Send all messages on all lanes; return those that failed, and why.

    What `messages` raises ends all calls.
    """
    try:
        for message in messages:
            for lane in lanes.values():
                lane.send(message)
    except BaseException:
        for lane in lanes.values():
            lane.cancel()
        raise
    for lane in lanes.values():
        lane.send(None)
    answers = {name: lane.failure() for name, lane in lanes.items()}
    return {name: error for name, error in answers.items() if error is not None}


def until_taken(
    call: Callable[[Collection[Name]], Mapping[Name, SutureError]],
    names: Collection[Name],
    check: Callable[[], None],
) -> dict[Name, SutureError]:
    """Call all at once; return those that failed, and why.

    One that is busy is none that fails: it is called again after pauses that grow, for
    `BUSY_PATIENCE_S`. It took nothing, or may be given the same again. Raises what `check` raises
    before a call is repeated.
    """
    failed = dict(call(names))
    deadline_s = time.monotonic() + BUSY_PATIENCE_S
    pause_s = RETRY_WAIT_S
    while busy := [name for name, error in failed.items() if error.code in BUSY]:
        if time.monotonic() >= deadline_s:
            break
        time.sleep(random.uniform(0, pause_s))  # noqa: S311 - jitter, not a secret
        pause_s = min(2 * pause_s, RETRY_WAIT_S_MAX)
        check()
        for name in busy:
            del failed[name]
        failed |= call(busy)
    return failed
