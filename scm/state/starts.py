"""The starts of the SCM on a state, used to detect an outdated state or a copy of it.

Each start of the SCM has a random id, and each durable change of the state has a number. A datanode
stores the starts with the highest terms that it has seen, and the highest state number of each.

The state is outdated if its history lacks a start that a datanode has seen. It is also outdated if
that start ended in its history at a lower number than the datanode has seen. Then an old copy of
the state was installed, a disk lost committed changes, or another SCM runs on a copy of the state.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from scm.state import records

STARTS: Final = b"starts"  # the key of the starts' row
STARTS_MAX: Final = 256  # older starts are no longer compared


@dataclass(frozen=True, slots=True)
class ReportedStart:
    """A start of the SCM, as a datanode has stored it."""

    start_id: str
    term: int
    state_number: int


@dataclass(frozen=True, slots=True)
class Start:
    """A start of the SCM on this state. `end_number` is the state number at its end."""

    start_id: str
    term: int
    end_number: int
    began_at_ms: int
    first_container_id: int  # containers with ids from here on were made during or after this start


@dataclass(frozen=True, slots=True)
class Lineage:
    """The starts of the SCM on this state, oldest first. The last one is in progress.

    If a datanode reports a start with a term up to `floor_term`, the start is not compared, because
    its changes were recovered or it is too old.
    """

    floor_term: int = 0
    starts: tuple[Start, ...] = ()

    @staticmethod
    def read(get: Callable[[bytes], Any]) -> "Lineage | None":
        """Return the stored lineage. Return None if no start is stored.

        `get` returns the row of a key. Raise DamagedRow if the row is damaged.
        """
        row = get(STARTS)
        if row is None:
            return None
        return LINEAGE.value(bytes(row))

    @property
    def start_id(self) -> str:
        """Return the id of the current start."""
        return self.starts[-1].start_id

    def with_new_start(
        self, *, term: int, number: int, now_ms: int, first_container_id: int
    ) -> Self:
        """Return the lineage with a new start.

        The previous start ended at the state number `number`.
        """
        ended = [replace(start, end_number=number) for start in self.starts[-1:]]
        start = Start(str(uuid.uuid4()), term, 0, now_ms, first_container_id)
        starts = (*self.starts[:-1], *ended, start)
        floor_term = self.floor_term
        if len(starts) > STARTS_MAX:
            floor_term = max(floor_term, starts[-STARTS_MAX - 1].term)
        return replace(self, floor_term=floor_term, starts=starts[-STARTS_MAX:])

    def later(self, seen: Iterable[ReportedStart], number: int) -> list[ReportedStart]:
        """Return the reported starts that have changes which this state lacks.

        `number` is the current number of this state.
        """
        ends = {start.start_id: start.end_number for start in self.starts}
        ends[self.start_id] = number
        return [
            one
            for one in seen
            if one.term > self.floor_term and one.state_number > ends.get(one.start_id, -1)
        ]

    def since(self, later: Sequence[ReportedStart]) -> Start:
        """Return the first start of this lineage after which changes may be missing.

        `later` are the reported starts with missing changes. If such a start is unknown, the result
        is the first start of this lineage with the same or a higher term. If it is known, the
        result is the start that followed it.
        """
        known_ids = {start.start_id for start in self.starts[:-1]}
        first_term = min(one.term + (one.start_id in known_ids) for one in later)
        after = (start for start in self.starts if start.term >= first_term)
        return next(after, self.starts[-1])


LINEAGE: Final = records.row_format(Lineage)
