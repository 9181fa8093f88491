"""Sends one stream of messages to several datanodes. Each message is encoded once.

Each datanode has a queue of a few messages, so the slowest datanode determines the speed. A
datanode that fails, or accepts no message for too long, is dropped, and the others continue.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any, Final, TypeVar

import grpc

from suture.errors import Code, SutureError, UnavailableError
from suture.wire.clients.channel import RETRY_WAIT_S, RETRY_WAIT_S_MAX
from suture.wire.mapping.errors import error_from

WAITING_MAX: Final = 2  # queued messages of one lane, beside the one being sent
BUSY_PATIENCE_S: Final = 120.0  # retry a busy datanode for this time
BUSY: Final = frozenset({Code.BUSY, Code.CANCELLED})
"""Statuses of a datanode that has too many calls: it refuses new calls, or ends calls whose clients
send nothing."""

Name = TypeVar("Name")

Open = Callable[[Iterator[bytes], float], Any]
"""A function that starts a call with these messages and a timeout in seconds. It returns the future
of the call."""


class ReplicaStream:
    """A call that streams messages to one datanode, with a queue of messages to send."""

    def __init__(self, open_call: Open, *, message_timeout_s: float, message_count: int) -> None:
        """Start the call. `message_timeout_s` limits the wait for room in the queue for each
        message, and the wait for the response."""
        self._timeout_s = message_timeout_s
        self._waiting: Queue[bytes | None] = Queue(WAITING_MAX)
        self._has_ended = False
        total_s = message_timeout_s * (message_count + 1)
        self._answer = open_call(iter(self._waiting.get, None), total_s)
        self._answer.add_done_callback(self._end)

    def send(self, message: bytes | None) -> None:
        """Wait for room in the queue, and add a message, or None at the end of the stream.

        If the call has ended, the message is dropped. If there is no room in time, the call is
        cancelled, and `failure` returns the reason.
        """
        if self._has_ended:
            return
        try:
            self._waiting.put(message, timeout=self._timeout_s)
        except Full:
            self._answer.cancel()

    def failure(self) -> SutureError | None:
        """Wait for the response of the datanode. Return None if the call succeeded, else the
        error."""
        try:
            self._answer.result(timeout=self._timeout_s)
        except grpc.RpcError as error:
            return error_from(error)
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            self._answer.cancel()
            return UnavailableError(Code.UNAVAILABLE, f"accepted no data for {self._timeout_s:g} s")
        return None

    def cancel(self) -> None:
        """Cancel the call to the datanode."""
        self._answer.cancel()

    def _end(self, _answer: object) -> None:
        """Record that the call has ended, and wake the threads that wait for room or for
        messages."""
        self._has_ended = True
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        with suppress(Full):  # a message was queued in between, and wakes that thread instead
            self._waiting.put_nowait(None)


def broadcast(
    messages: Iterator[bytes], lanes: Mapping[str, ReplicaStream]
) -> dict[str, SutureError]:
    """Send all messages to all datanodes. Return the errors of the datanodes that failed, by name.

    `lanes` has the stream to each datanode. If `messages` raises an exception, all calls are
    cancelled, and the exception is raised.
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


def call_until_accepted(
    call: Callable[[Collection[Name]], Mapping[Name, SutureError]],
    names: Collection[Name],
    check: Callable[[], None],
) -> dict[Name, SutureError]:
    """Call all datanodes in parallel, and return the errors of the failed datanodes, by name.

    A busy datanode does not count as failed. It is called again, with growing pauses, for up to
    `BUSY_PATIENCE_S` seconds. Therefore, calls must be idempotent. `check` is called before each
    retry, and may raise an exception to stop.
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
