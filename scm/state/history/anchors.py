"""Anchors: heads of verification logs that datanodes reported.

The verification log of a volume lists scans, repairs and deletes. Its head is the number of entries
and the checksum of the last entry, which depends on all earlier entries. The SCM stores heads, so
that a datanode cannot change them. There is one row per volume, with its newest anchors. Older
anchors show since when a log differs.
"""

from dataclasses import dataclass
from typing import Final

from scm.state import records
from scm.state.history.history_tables import HistoryTable

ANCHORS_MAX: Final = 400  # per volume; with one a day, these last a year and a month
VOLUMES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Anchor:
    """The head of a verification log at one time.

    `count` is the number of entries. `checksum` is the SHA-256 of the last entry in hexadecimal.
    """

    at_ms: int
    count: int
    checksum: str


@dataclass(frozen=True, slots=True)
class VolumeAnchors:
    """The stored heads of one volume's verification log, oldest first."""

    datanode_id: str
    volume_id: str
    anchors: tuple[Anchor, ...]

    def followed_by(self, anchor: Anchor) -> "VolumeAnchors":
        """Return these anchors and one more. The oldest anchor is removed if there are too many."""
        kept = (*self.anchors, anchor)[-ANCHORS_MAX:]
        return VolumeAnchors(self.datanode_id, self.volume_id, kept)


class AnchorTable(HistoryTable[tuple[str, str], VolumeAnchors]):
    """The stored heads of verification logs, by datanode id and volume id."""

    def __init__(self) -> None:
        super().__init__(
            "anchors",
            key_bytes=lambda key: "\0".join(key).encode(),
            key_of=lambda value: (value.datanode_id, value.volume_id),
            rows=records.row_format(VolumeAnchors),
        )
