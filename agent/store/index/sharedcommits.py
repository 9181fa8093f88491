"""Changes of many threads in few durable commits; alone, a change waits for nobody.

    first ──► leads: runs its change, commits             ──► passes the lead on
    those that come meanwhile wait ────────────────────────► the next leads: one commit for all

A commit is a sync of the medium, during which others come: what waits then shares the next one. A
group of which one change fails is taken back, and each is run by its own thread: so nobody fails
for another. Nothing locks: single operations on a dict or a deque are atomic. Who leads has the
key in `_leader`; who adds itself looks at the key afterwards, and who gives the key up looks at
the queue afterwards, so one of the two sees the other.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from agent.store.index.indexerrors import MapFull

GROUP_MAX: Final = 64  # changes in one commit

C = TypeVar("C")


class _Request(Generic[C]):
    """One change, and what came of it."""

    __slots__ = ("change", "has_ended", "result", "turn", "was_tried")

    def __init__(self, change: C) -> None:
        self.change = change
        self.result: Any = None
        self.has_ended = False  # it is durable
        self.was_tried = False  # with others; unless it has ended, its own thread runs it
        self.turn: SimpleQueue[None] = SimpleQueue()  # it was tried, or is to lead

    def end(self, result: Any) -> None:
        """Note that it is durable."""
        self.result = result
        self.has_ended = True


class SharedCommits(Generic[C]):
    """The commits of one index."""

    def __init__(
        self, attempt: Callable[[Sequence[C]], Sequence[Any]], grow: Callable[[], None]
    ) -> None:
        """`attempt` makes all of some changes durable or none, and returns what they return; after
        `grow` it is not MapFull any more. A change may be run twice."""
        self._attempt = attempt
        self._grow = grow
        self._waiting: deque[_Request[C]] = deque()
        self._leader: dict[str, object] = {}

    def write(self, change: C) -> Any:
        """Return what the change returned, once it is durable; raise what it raised."""
        mine = _Request(change)
        self._waiting.append(mine)
        leads = self._leader.setdefault("now", mine) is mine
        if not leads:
            mine.turn.get()
            leads = not mine.was_tried
        if leads:
            self._lead(mine)
        if not mine.has_ended:
            mine.end(self._run_alone(change))
        return mine.result

    def _lead(self, mine: _Request[C]) -> None:
        """Run what waits, until `mine` was tried."""
        try:
            while not mine.was_tried:
                group = [self._waiting.popleft()]
                while self._waiting and len(group) < GROUP_MAX:
                    group.append(self._waiting.popleft())
                self._run(group, mine)
        finally:
            self._pass_on()

    def _run(self, group: Sequence[_Request[C]], mine: _Request[C]) -> None:
        """Make the changes of a group durable together; those that are not, their threads run."""
        try:
            if len(group) == 1 and group[0] is mine:
                mine.end(self._run_alone(mine.change))
                return
            with suppress(Exception):  # whose it is shows when each runs by itself
                results = self._attempt([request.change for request in group])
                for request, result in zip(group, results, strict=True):
                    request.end(result)
        finally:
            for request in group:
                request.was_tried = True
                if request is not mine:
                    request.turn.put(None)

    def _run_alone(self, change: C) -> Any:
        while True:
            try:
                return self._attempt([change])[0]
            except MapFull:
                self._grow()

    def _pass_on(self) -> None:
        """Let who has waited longest lead; nobody when none waits."""
        token = object()
        while True:
            try:
                following = self._waiting[0]
            except IndexError:
                del self._leader["now"]
                if not self._waiting or self._leader.setdefault("now", token) is not token:
                    return
            else:
                self._leader["now"] = following
                following.turn.put(None)
                return
