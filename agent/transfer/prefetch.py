"""Receives the messages of a stream in advance, in another thread.

gRPC for Python receives a message only when the program requests it. Without this module, the
network would be idle while a message is written to the disk, and the disk would be idle while the
next message arrives.
"""

from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Final

from agent.transfer.parts import ImportMessage
from suture.runtime.ports import Executor

AHEAD_PARTS: Final = 4  # messages of one MiB each; several, because a disk does not write evenly
ASKED_PARTS: Final = 2  # messages per request, so that the thread is woken less often
NO_MORE: Final = 0

assert AHEAD_PARTS >= ASKED_PARTS, "else either would wait for the other"


def read_ahead(parts: Iterator[ImportMessage], executor: Executor) -> Generator[ImportMessage]:
    """Yield the messages of a stream, while a thread of `executor` receives the next messages.

    If the stream fails, yield all messages that have arrived, then raise the error. If the caller
    does not use all messages, it must close the generator.
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
        receiving.result()  # raises the error of the receiving thread
    finally:
        asked.put(NO_MORE)


def _receive(
    parts: Iterator[ImportMessage],
    came: "SimpleQueue[ImportMessage | None]",
    asked: "SimpleQueue[int]",
) -> None:
    """Receive messages and put them into the queue `came`. Put None after the last message.

    `asked` is a queue with numbers of messages that the consumer requests.
    """
    wanted = 0
    try:
        for part in parts:
            came.put(part)
            if part.kind == "end":  # no message may follow
                return
            wanted -= 1
            while wanted <= 0:
                more = asked.get()
                if more == NO_MORE:
                    return
                wanted += more
    finally:
        came.put(None)
