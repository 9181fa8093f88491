"""Group commit: the changes of many threads share one durable commit.

The first thread becomes the leader, runs its change and commits it at once. Other threads wait
during this commit. Then one of the waiting threads becomes the leader, and commits the changes of
all waiting threads together.

If a change of a group fails, the group is rolled back, and each thread runs its own change alone.
Therefore, no change fails because of a change of another thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from agent.store.index.lmdb_errors import MapFull

GROUP_MAX: Final = 64  # changes in one commit

C = TypeVar("C")


class _Request(Generic[C]):
    """A change that a thread requests, its result, and its progress."""

    __slots__ = ("change", "has_ended", "result", "was_tried")

    def __init__(self, change: C) -> None:
        self.change = change
        self.result: Any = None
        self.has_ended = False  # the change is durable
        self.was_tried = False  # a leader ran it; if that failed, its own thread runs it

    def end(self, result: Any) -> None:
        """Record the result of the change, which is durable now."""
        self.result = result
        self.has_ended = True


class GroupCommit(Generic[C]):
    """Commits the changes of many threads to one index, in groups."""

    def __init__(
        self, attempt: Callable[[Sequence[C]], Sequence[Any]], grow: Callable[[], None]
    ) -> None:
        """Create an object that commits groups of changes with `attempt`.

        `attempt` makes all of the given changes durable, or none, and returns their results. If it
        raises MapFull, `grow` is called before the next attempt. A change may run twice.
        """
        self._attempt = attempt
        self._grow = grow
        self._has_changed = threading.Condition()  # guards the next two, and `was_tried`
        self._waiting: deque[_Request[C]] = deque()
        self._is_led = False  # whether a thread is running a group

    def write(self, change: C) -> Any:
        """Run the change, and return its result after it is durable.

        Raise the error of the change.
        """
        mine = _Request(change)
        group = self._group_to_lead(mine)
        if group:
            try:
                self._run(group)
            finally:
                self._pass_on(group)
        if not mine.has_ended:
            mine.end(self._run_alone(change))
        return mine.result

    def _group_to_lead(self, mine: _Request[C]) -> Sequence[_Request[C]]:
        """Wait until another thread has run the request `mine`, or this thread becomes the leader.

        Return the requests that this thread must run as the leader. Return an empty list if another
        thread has run `mine`.
        """
        with self._has_changed:
            self._waiting.append(mine)
            while self._is_led and not mine.was_tried:
                self._has_changed.wait()
            if mine.was_tried:
                return ()
            self._is_led = True
            self._waiting.remove(mine)
            count = min(len(self._waiting), GROUP_MAX - 1)
            return (mine, *(self._waiting.popleft() for _ in range(count)))

    def _run(self, group: Sequence[_Request[C]]) -> None:
        """Commit the changes of a group together.

        If this fails, do nothing: each thread then runs its own change alone.
        """
        if len(group) == 1:
            group[0].end(self._run_alone(group[0].change))
            return
        with suppress(Exception):  # the error appears again when each change runs alone
            results = self._attempt([request.change for request in group])
            for request, result in zip(group, results, strict=True):
                request.end(result)

    def _run_alone(self, change: C) -> Any:
        while True:
            try:
                return self._attempt([change])[0]
            except MapFull:
                self._grow()

    def _pass_on(self, group: Sequence[_Request[C]]) -> None:
        """Wake the threads whose changes were tried, and let a waiting thread become the leader."""
        with self._has_changed:
            for request in group:
                request.was_tried = True
            self._is_led = False
            self._has_changed.notify_all()
