"""Tables of the history. They have few rows, in the format of other tables.

No decision depends on them. A damaged row is skipped and logged, and does not prevent a start. The
earliest backups lack these tables and are valid (`scm.backup.image`).
"""

from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

import structlog

from health.cluster_verdict import DataVerdict
from scm.state import records
from scm.state.history.interval_samples import StatusSample, VerdictChange, Verification
from scm.state.table import KeyAt, Table, id_key

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SAMPLE_FIELDS: Final = 17

_log = structlog.get_logger("suture.scm")


class HistoryTable(Table[K, V]):
    """A table that may lose rows without preventing a start."""

    def load(self, rows: Iterable[bytes], key_at: KeyAt) -> None:
        """Load rows from disk, except damaged ones."""
        for place, row in enumerate(rows):
            try:
                self._load_portion([row], place, key_at)
            except records.DamagedRow as damage:
                _log.warning("history_row_damaged", table=self.name, error=str(damage))


class SampleTable(HistoryTable[tuple[int, int], StatusSample]):
    """Samples by level and start of their interval."""

    def __init__(self) -> None:
        super().__init__(
            "samples",
            key_bytes=lambda key: bytes([key[0]]) + id_key(key[1]),
            key_of=lambda sample: sample.key,
            row=_sample_row,
            value=_sample_from,
        )

    def of(self, level: int) -> list[StatusSample]:
        """Return the samples of one level, oldest first."""
        keys = sorted(key for key in self._rows if key[0] == level)
        return [self._rows[key] for key in keys]


class VerdictChangeTable(HistoryTable[int, VerdictChange]):
    """Changes of the verdict by time."""

    def __init__(self) -> None:
        super().__init__(
            "turns",
            key_bytes=id_key,
            key_of=lambda turn: turn.at_ms,
            row=lambda turn: records.pack([turn.at_ms, turn.verdict, turn.text]),
            value=_turn_from,
        )

    def by_time(self) -> list[VerdictChange]:
        """Return the changes, oldest first."""
        return [self._rows[key] for key in sorted(self._rows)]


class VerificationTable(HistoryTable[int, Verification]):
    """Verifications by Spark by their end time."""

    def __init__(self) -> None:
        super().__init__(
            "verifications",
            key_bytes=id_key,
            key_of=lambda verification: verification.at_ms,
            row=lambda one: records.pack([one.at_ms, one.decisions, one.error]),
            value=_verification_from,
        )

    def by_time(self) -> list[Verification]:
        """Return the verifications, oldest first."""
        return [self._rows[key] for key in sorted(self._rows)]


def _sample_row(sample: StatusSample) -> bytes:
    return records.pack(
        [
            sample.level,
            sample.at_ms,
            sample.verdict,
            sample.node_count,
            sample.silent_count,
            sample.failed_volume_count,
            sample.container_count,
            sample.to_do_count,
            sample.lost_count,
            sample.capacity_bytes,
            sample.used_bytes,
            sample.data_bytes,
            sample.in_time_bytes,
            sample.oldest_scan_at_ms,
            sample.done_count,
            sample.failed_count,
            sample.moved_bytes,
        ]
    )


def _sample_from(row: bytes) -> StatusSample:
    fields = records.unpack(row, _SAMPLE_FIELDS)
    fields[2] = DataVerdict(fields[2])
    return StatusSample(*fields)


def _turn_from(row: bytes) -> VerdictChange:
    at_ms, verdict, text = records.unpack(row, 3)
    return VerdictChange(at_ms, DataVerdict(verdict), text)


def _verification_from(row: bytes) -> Verification:
    at_ms, decisions, error = records.unpack(row, 3)
    return Verification(at_ms, tuple((word, count) for word, count in decisions), error)
