"""What scans of a replica could not read, again and again: when is it no passing trouble any more.

One failure says nothing about the data: rights that somebody is just changing, a network that
comes back. Three of them do, an hour after the first: the next scan says UNREADABLE of what fails
then. The count is in the index, so that it does not begin again when the agent is restarted.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from agent.store.index.index import Change, Index
from agent.store.index.rows import ROW_VERSION, seal, unseal
from merkle.damaged import Damaged
from merkle.replica import ContainerId

TRIES_MIN: Final = 3  # one may be an accident, and the second its echo
SPAN_MS_MIN: Final = 3_600_000  # longer than an operator's slip, or a restart of what serves a disk
FORGOTTEN_MS: Final = 30 * 24 * 3_600_000  # failures that lie further apart are not one trouble
WHY_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Doubt:
    """How often, since when and until when a replica could not be read, and why last."""

    count: int
    first_at_ms: int
    last_at_ms: int
    why: str


class KeptDoubts(Protocol):
    """What is kept of one replica, wherever that is."""

    def note(self, why: str) -> None:
        """Count a scan that ended because something could not be read; durable when it returns."""
        ...

    def are_over(self) -> bool:
        """Return whether what fails now is to be called UNREADABLE."""
        ...

    def are_noted(self) -> bool:
        """Return whether any scan since the last whole one could not read something."""
        ...


@dataclass(frozen=True, slots=True)
class Doubts:
    """What an index keeps of one replica (`KeptDoubts`)."""

    index: Index
    container_id: ContainerId

    def note(self, why: str) -> None:
        """Count a scan that ended because something could not be read; durable when it returns."""
        now_ms = self.index.now_ms()

        def change(rows: Change) -> None:
            had = decode_doubt(rows.doubt_row(self.container_id))
            rows.put_doubt_row(self.container_id, encode_doubt(grown(had, now_ms, why)))

        self.index.write(change)

    def are_over(self) -> bool:
        """Return whether what fails now is to be called UNREADABLE."""
        with self.index.read() as rows:
            doubt = decode_doubt(rows.doubt_row(self.container_id))
        return is_over(doubt, self.index.now_ms())

    def are_noted(self) -> bool:
        """Return whether any scan since the last whole one could not read something."""
        with self.index.read() as rows:
            return rows.doubt_row(self.container_id) is not None


def grown(had: Doubt | None, now_ms: int, why: str) -> Doubt:
    """Return the doubt after one failure more."""
    if had is None or not 0 <= now_ms - had.last_at_ms <= FORGOTTEN_MS:
        had = Doubt(0, now_ms, now_ms, "")
    return Doubt(had.count + 1, had.first_at_ms, now_ms, why[:WHY_CHARS_MAX])


def is_over(doubt: Doubt | None, now_ms: int) -> bool:
    """Return whether failures have become so many, over so long a time, that they do not pass."""
    if doubt is None or doubt.count < TRIES_MIN:
        return False
    return now_ms - doubt.first_at_ms >= SPAN_MS_MIN


def encode_doubt(doubt: Doubt) -> bytes:
    """Return the row of a doubt."""
    fields = {"version": ROW_VERSION, **asdict(doubt)}
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_doubt(row: bytes | None) -> Doubt | None:
    """Read the row of a doubt; a damaged one is none: the count begins again."""
    try:
        fields = None if row is None else json.loads(bytes(unseal(row, "doubt row")))
    except Damaged:
        return None
    if fields is None or fields.pop("version") != ROW_VERSION:
        return None
    return Doubt(**fields)
