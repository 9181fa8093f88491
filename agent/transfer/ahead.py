"""Receiving the parts of a stream before they are wanted.

gRPC for Python does not begin with a message before it is asked for: the network would rest while
a part is written, and the disk while the next one comes.
"""

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Final

from agent.ports import Executor
from agent.transfer.parts import Part

AHEAD_PARTS: Final = 4  # one MiB each: a disk does not write evenly
ASKED_PARTS: Final = 2  # at a time, so that a thread is woken for every other part alone
NO_MORE: Final = 0

assert AHEAD_PARTS >= ASKED_PARTS, "else either would wait for the other"


def read_ahead(parts: Iterator[Part], executor: Executor) -> Generator[Part]:
    """Yield the parts, while the next few are received in a thread of `executor`.

    Raises what receiving them raises, behind the parts that came. Close it when it is left early.
    """
    came: SimpleQueue[Part | None] = SimpleQueue()
    asked: SimpleQueue[int] = SimpleQueue()
    receiving = executor.submit(_receive, parts, came, asked)
    asked.put(AHEAD_PARTS)
    taken = 0
    try:
        while (part := came.get()) is not None:
            yield part
            taken += 1
            if not taken % ASKED_PARTS:
                asked.put(ASKED_PARTS)
        receiving.result()  # raises what ended it
    finally:
        asked.put(NO_MORE)


def _receive(
    parts: Iterator[Part], came: "SimpleQueue[Part | None]", asked: "SimpleQueue[int]"
) -> None:
    """Receive as many parts as are asked for, and None behind the last."""
    wanted = 0
    try:
        for part in parts:
            came.put(part)
            if part.kind == "end":  # nothing may follow, and nobody would wait for it
                return
            wanted -= 1
            while wanted <= 0:
                more = asked.get()
                if more == NO_MORE:
                    return
                wanted += more
    finally:
        came.put(None)
