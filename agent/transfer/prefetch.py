"""Read-ahead of the parts of a stream.

gRPC for Python receives a message only on request. Without read-ahead the network would be idle
while a part is written, and the disk while the next one arrives.
"""

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Final

from agent.transfer.parts import ImportMessage
from suture.runtime.ports import Executor

AHEAD_PARTS: Final = 4  # one MiB each, because a disk does not write evenly
ASKED_PARTS: Final = 2  # requested together, so that a thread is woken for every other part only
NO_MORE: Final = 0

assert AHEAD_PARTS >= ASKED_PARTS, "else either would wait for the other"


def read_ahead(parts: Iterator[ImportMessage], executor: Executor) -> Generator[ImportMessage]:
    """Yield the parts, while the next few are received in a thread of `executor`.

    Errors of receiving are raised after the parts that came. Close the generator when leaving it
    early.
    """
    came: SimpleQueue[ImportMessage | None] = SimpleQueue()
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
        receiving.result()  # raises the error that ended it
    finally:
        asked.put(NO_MORE)


def _receive(
    parts: Iterator[ImportMessage],
    came: "SimpleQueue[ImportMessage | None]",
    asked: "SimpleQueue[int]",
) -> None:
    """Receive as many parts as are requested, then None after the last."""
    wanted = 0
    try:
        for part in parts:
            came.put(part)
            if part.kind == "end":  # nothing may follow
                return
            wanted -= 1
            while wanted <= 0:
                more = asked.get()
                if more == NO_MORE:
                    return
                wanted += more
    finally:
        came.put(None)
