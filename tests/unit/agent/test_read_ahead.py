"""The next part of a stream is received while the one before it is worked on."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from agent.rpc.v1 import datanode_pb2 as pb
from agent.transfer.incoming import read_ahead
from agent.transfer.parts import Part


class AtOnce:
    """An executor that works when it is asked to."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Do the work."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except ConnectionError as error:
            future.set_exception(error)
        return future


def block_part(number: int) -> Part:
    """Return a part with one block."""
    return Part(pb.ImportPart(blocks=pb.ImportBlocks(local_ids=[number])), memoryview(b""))


def test_the_next_part_is_asked_for_before_this_one_is_worked_on() -> None:
    """A transport that waits to be asked would else rest while we work, and we while it brings."""
    asked: list[int] = []

    def stream() -> Iterator[Part]:
        for number in range(3):
            asked.append(number)
            yield block_part(number)

    seen = []
    for part in read_ahead(stream(), AtOnce()):
        seen.append((part.message.blocks.local_ids[0], max(asked)))
    assert [(0, 1), (1, 2), (2, 2)] == seen


def test_nothing_is_asked_for_behind_the_end() -> None:
    """Nobody would wait for it: a thread would hang on a sender that has no more to say."""

    def stream() -> Iterator[Part]:
        yield block_part(1)
        yield Part(pb.ImportPart(end=pb.ImportEnd()), memoryview(b""))
        raise AssertionError("asked for more")

    assert ["blocks", "end"] == [part.kind for part in read_ahead(stream(), AtOnce())]


def test_a_stream_that_breaks_gives_what_came_before_and_then_its_error() -> None:
    """What was received whole is not lost to an error behind it, and the error is not lost."""

    def stream() -> Iterator[Part]:
        yield block_part(1)
        raise ConnectionError("the sender has gone")

    parts = read_ahead(stream(), AtOnce())
    assert 1 == next(parts).message.blocks.local_ids[0]
    with pytest.raises(ConnectionError, match="has gone"):
        next(parts)
