"""Which containers need no look: nothing is to be done, and nothing about them changed since.

    look ──nothing to do──► add ──► skipped by every round
                             ▲ │
                     look ◄──┘ └── a row about it changes: the table itself takes the mark away

One byte a container, because there are millions of them and all but a few need nothing: a round
through a million of them is one search for a zero.
"""

from collections.abc import Collection, Iterable


class Settled:
    """A set of container ids, made for `first_missing`. Callers hold the control plane's lock."""

    def __init__(self) -> None:
        self._marks = bytearray()

    def __contains__(self, container_id: int) -> bool:
        return container_id < len(self._marks) and bool(self._marks[container_id])

    def add(self, container_id: int) -> None:
        """Mark a container this control plane made: the ids of those are small and dense."""
        missing_count = container_id + 1 - len(self._marks)
        if missing_count > 0:
            self._marks.extend(bytes(missing_count))
        self._marks[container_id] = 1

    def add_all(self, container_ids: Collection[int]) -> None:
        """Mark containers this control plane made."""
        missing_count = max(container_ids, default=-1) + 1 - len(self._marks)
        if missing_count > 0:
            self._marks.extend(bytes(missing_count))
        for container_id in container_ids:
            self._marks[container_id] = 1

    def discard(self, container_id: int) -> None:
        """Have a container looked at again; any id may be given."""
        if container_id < len(self._marks):
            self._marks[container_id] = 0

    def discard_all(self, container_ids: Iterable[int]) -> None:
        """Have containers looked at again."""
        for container_id in container_ids:
            self.discard(container_id)

    def copy(self) -> "Settled":
        """Return the same marks as they are now, which nothing takes away."""
        made = Settled()
        made._marks = self._marks.copy()
        return made

    def clear(self) -> None:
        """Have all containers looked at again."""
        self._marks.clear()

    def first_missing(self, first: int, stop: int) -> int:
        """Return the first id from `first` on that is not marked; `stop` if that is not before."""
        found = self._marks.find(0, first, stop)
        return min(max(first, len(self._marks)), stop) if found < 0 else found
