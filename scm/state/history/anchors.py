"""Anchors of verification logs: heads that datanodes told, kept where they cannot change them.

One row a volume, with the newest of its anchors. Each proves all that was logged before it; the
older ones tell since when something is not as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from scm.state import records
from scm.state.history.history_tables import HistoryTable

ANCHORS_MAX: Final = 400  # of one volume: at one a day, a year and a month
VOLUMES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Anchor:
    """A head of a log: number and SHA-256 (hexadecimal) of its last entry, and when it was told."""

    at_ms: int
    count: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Anchored:
    """The anchors of one volume, the oldest first."""

    datanode_id: str
    volume_id: str
    anchors: tuple[Anchor, ...]

    def followed_by(self, anchor: Anchor) -> "Anchored":
        """Return it with one more; the oldest goes when there are too many."""
        kept = (*self.anchors, anchor)[-ANCHORS_MAX:]
        return Anchored(self.datanode_id, self.volume_id, kept)


def anchored_row(value: Anchored) -> bytes:
    """Encode the anchors of a volume."""
    told = [[one.at_ms, one.count, one.checksum] for one in value.anchors]
    return records.pack([value.datanode_id, value.volume_id, told])


def anchored_from(row: bytes) -> Anchored:
    """Decode them. Raises DamagedRow, ValueError, TypeError."""
    datanode_id, volume_id, told = records.unpack(row, 3)
    return Anchored(datanode_id, volume_id, tuple(map(_anchor, told)))


def _anchor(told: Sequence[Any]) -> Anchor:
    at_ms, count, checksum = told
    return Anchor(int(at_ms), int(count), str(checksum))


class AnchorTable(HistoryTable[tuple[str, str], Anchored]):
    """Anchors by datanode and volume."""

    def __init__(self) -> None:
        super().__init__(
            "anchors",
            key_bytes=lambda key: "\0".join(key).encode(),
            key_of=lambda value: (value.datanode_id, value.volume_id),
            row=anchored_row,
            value=anchored_from,
        )
