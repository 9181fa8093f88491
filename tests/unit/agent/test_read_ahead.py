"""The next parts of a stream are received while the one before them is worked on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Semaphore

import pytest

from agent.rpc.v1 import datanode_pb2 as pb
from agent.transfer.ahead import AHEAD_PARTS, read_ahead
from agent.transfer.parts import Part

PARTS_COUNT = 5 * AHEAD_PARTS
PATIENCE_S = 30.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """One thread to receive in; whoever leaves it hanging never ends."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


def block_part(number: int) -> Part:
    """Return a part with one block."""
    return Part(pb.ImportPart(blocks=pb.ImportBlocks(local_ids=[number])), memoryview(b""))


class Sender:
    """A stream of parts that can be watched."""

    def __init__(self, parts_count: int = PARTS_COUNT) -> None:
        self._parts_count = parts_count
        self._sent = Semaphore(0)
        self.sent_count = 0

    def stream(self) -> Iterator[Part]:
        """Yield the parts."""
        for number in range(self._parts_count):
            self.sent_count += 1
            self._sent.release()
            yield block_part(number)

    def await_sent(self, count: int) -> None:
        """Wait until so many more have been asked for."""
        for _ in range(count):
            assert self._sent.acquire(timeout=PATIENCE_S), "nobody asked for it"


def test_the_next_parts_are_asked_for_while_one_is_worked_on(executor: ThreadPoolExecutor) -> None:
    """A transport that waits to be asked would else rest while we work, and we while it brings."""
    sender = Sender()
    with closing(read_ahead(sender.stream(), executor)) as parts:
        next(parts)
        sender.await_sent(AHEAD_PARTS)


def test_no_more_than_a_few_parts_wait(executor: ThreadPoolExecutor) -> None:
    """They are as large as messages may be, and a sender may be faster than any disk."""
    sender = Sender()
    numbers, most = [], 0
    with closing(read_ahead(sender.stream(), executor)) as parts:
        for part in parts:
            numbers.append(part.message.blocks.local_ids[0])
            most = max(most, sender.sent_count - len(numbers))
    assert list(range(PARTS_COUNT)) == numbers
    assert 1 <= most <= AHEAD_PARTS


def test_who_leaves_early_leaves_no_thread_behind(executor: ThreadPoolExecutor) -> None:
    """Of an import that fails early the rest is not wanted."""
    sender = Sender()
    with closing(read_ahead(sender.stream(), executor)) as parts:
        next(parts)
        sender.await_sent(AHEAD_PARTS)
    assert "is free" == executor.submit(lambda: "is free").result(PATIENCE_S)
    assert PARTS_COUNT > sender.sent_count


def test_nothing_is_asked_for_behind_the_end(executor: ThreadPoolExecutor) -> None:
    """Nobody would wait for it: a thread would hang on a sender that has no more to say."""

    def stream() -> Iterator[Part]:
        yield block_part(1)
        yield Part(pb.ImportPart(end=pb.ImportEnd()), memoryview(b""))
        raise AssertionError("asked for more")

    assert ["blocks", "end"] == [part.kind for part in read_ahead(stream(), executor)]


def test_a_stream_that_breaks_gives_what_came_before_and_then_its_error(
    executor: ThreadPoolExecutor,
) -> None:
    """What was received whole is not lost to an error behind it, and the error is not lost."""

    def stream() -> Iterator[Part]:
        yield block_part(1)
        raise ConnectionError("the sender has gone")

    parts = read_ahead(stream(), executor)
    assert 1 == next(parts).message.blocks.local_ids[0]
    with pytest.raises(ConnectionError, match="has gone"):
        next(parts)
