"""The next parts of a stream are received while the one before them is worked on."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from threading import Semaphore, Thread
from typing import Any

import pytest

from agent.transfer.parts import ImportMessage
from agent.transfer.prefetch import AHEAD_PARTS, read_ahead
from suture.wire.v1 import datanode_pb2 as pb

PARTS_COUNT = 5 * AHEAD_PARTS
PATIENCE_S = 30.0


class Threads:
    """An executor with a thread for each work, for none of which the interpreter waits."""

    def __init__(self) -> None:
        self._threads: list[Thread] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Begin the work."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work(*arguments))
            except (ConnectionError, AssertionError) as error:
                future.set_exception(error)

        self._threads.append(Thread(target=run, daemon=True))
        self._threads[-1].start()
        return future

    def assert_ended(self) -> None:
        """Assert that no thread is left."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def executor() -> Threads:
    """Threads to receive in."""
    return Threads()


def block_part(number: int) -> ImportMessage:
    """Return a part with one block."""
    return ImportMessage(pb.ImportPart(blocks=pb.ImportBlocks(local_ids=[number])), memoryview(b""))


class Sender:
    """A stream of parts that can be watched."""

    def __init__(self, parts_count: int = PARTS_COUNT) -> None:
        self._parts_count = parts_count
        self._sent = Semaphore(0)
        self.sent_count = 0

    def stream(self) -> Iterator[ImportMessage]:
        """Yield the parts."""
        for number in range(self._parts_count):
            self.sent_count += 1
            self._sent.release()
            yield block_part(number)

    def await_sent(self, count: int) -> None:
        """Wait until so many more have been asked for."""
        for _ in range(count):
            assert self._sent.acquire(timeout=PATIENCE_S), "nobody asked for it"


def test_the_next_parts_are_asked_for_while_one_is_worked_on(executor: Threads) -> None:
    """Otherwise transport and processing would wait for each other."""
    sender = Sender()
    with closing(read_ahead(sender.stream(), executor)) as parts:
        next(parts)
        sender.await_sent(AHEAD_PARTS)


def test_no_more_than_a_few_parts_wait(executor: Threads) -> None:
    """Parts may be as large as a message, and a sender may be faster than any disk."""
    sender = Sender()
    numbers, most = [], 0
    with closing(read_ahead(sender.stream(), executor)) as parts:
        for part in parts:
            numbers.append(part.message.blocks.local_ids[0])
            most = max(most, sender.sent_count - len(numbers))
    assert list(range(PARTS_COUNT)) == numbers
    assert 1 <= most <= AHEAD_PARTS


def test_abandoned_read_ahead_leaves_no_thread(executor: Threads) -> None:
    """The rest of a failed import is not needed."""
    sender = Sender()
    with closing(read_ahead(sender.stream(), executor)) as parts:
        next(parts)
        sender.await_sent(AHEAD_PARTS)
    executor.assert_ended()
    assert PARTS_COUNT > sender.sent_count


def test_read_ahead_stops_at_the_end_part(executor: Threads) -> None:
    """Otherwise a thread would wait for a sender that has no more data."""

    def stream() -> Iterator[ImportMessage]:
        yield block_part(1)
        yield ImportMessage(pb.ImportPart(end=pb.ImportEnd()), memoryview(b""))
        raise AssertionError("asked for more")

    assert ["blocks", "end"] == [part.kind for part in read_ahead(stream(), executor)]
    executor.assert_ended()


def test_a_stream_that_breaks_gives_what_came_before_and_then_its_error(
    executor: Threads,
) -> None:
    """Parts received whole are returned, and then the error is raised."""

    def stream() -> Iterator[ImportMessage]:
        yield block_part(1)
        raise ConnectionError("the sender disconnected")

    parts = read_ahead(stream(), executor)
    assert 1 == next(parts).message.blocks.local_ids[0]
    with pytest.raises(ConnectionError, match="disconnected"):
        next(parts)
