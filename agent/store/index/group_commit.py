"""Group commit: changes of many threads in few durable commits; a single change never waits.

    first ──► leads: runs its change, commits             ──► wakes all waiting threads
    later ones wait ───────────────────────────────────────► one of them leads: one commit for all

A commit is a sync of the medium, during which other changes arrive; they share the next commit. If
a change of a group fails, the group is rolled back and each thread runs its own change, so that no
change fails because of another.
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
    """A change and its result."""

    __slots__ = ("change", "has_ended", "result", "was_tried")

    def __init__(self, change: C) -> None:
        self.change = change
        self.result: Any = None
        self.has_ended = False  # its change is durable
        self.was_tried = False  # in a group; unless it has ended, its own thread runs it

    def end(self, result: Any) -> None:
        """Record that it is durable."""
        self.result = result
        self.has_ended = True


class GroupCommit(Generic[C]):
    """The commits of one index."""

    def __init__(
        self, attempt: Callable[[Sequence[C]], Sequence[Any]], grow: Callable[[], None]
    ) -> None:
        """`attempt` makes all of some changes durable or none, and returns their results. After
        `grow` it does not raise MapFull again. A change may run twice."""
        self._attempt = attempt
        self._grow = grow
        self._has_changed = threading.Condition()  # guards the next two, and `was_tried`
        self._waiting: deque[_Request[C]] = deque()
        self._is_led = False  # a thread is running a group

    def write(self, change: C) -> Any:
        """Return the result of the change once it is durable; raise its error."""
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
        """Wait until another thread tried `mine`, or until this one leads; return the group to
        run."""
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
        """Make the changes of a group durable together; otherwise their threads run them."""
        if len(group) == 1:
            group[0].end(self._run_alone(group[0].change))
            return
        with suppress(Exception):  # the failing change shows when each runs alone
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
        """Let one waiting thread lead, and release those whose changes were tried."""
        with self._has_changed:
            for request in group:
                request.was_tried = True
            self._is_led = False
            self._has_changed.notify_all()
