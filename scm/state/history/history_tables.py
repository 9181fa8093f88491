"""Tables of the history. They have few rows, in the same format as other tables.

No decision depends on these tables. A damaged row is skipped and logged, and does not prevent the
start of the SCM. Backups of early versions lack these tables and are valid (`scm.backup.image`).
"""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import structlog

from scm.state import records
from scm.state.history.interval_samples import StatusSample, VerdictChange, Verification
from scm.state.table import KeyAt, Table, id_key

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_log = structlog.get_logger("suture.scm")


class HistoryTable(Table[K, V]):
    """A table whose damaged rows are skipped when the SCM starts."""

    def load(self, rows: Iterable[bytes], key_at: KeyAt) -> None:
        """Load the rows from disk. Skip damaged rows and log them."""
        for place, row in enumerate(rows):
            try:
                self._load_portion([row], place, key_at)
            except records.DamagedRow as damage:
                _log.warning("history_row_damaged", table=self.name, error=str(damage))


class SampleTable(HistoryTable[tuple[int, int], StatusSample]):
    """Samples of the cluster, keyed by their level and the start of their interval."""

    def __init__(self) -> None:
        super().__init__(
            "samples",
            key_bytes=lambda key: bytes([key[0]]) + id_key(key[1]),
            key_of=lambda sample: sample.key,
            rows=records.row_format(StatusSample),
        )

    def of(self, level: int) -> list[StatusSample]:
        """Return the samples of one level, oldest first. A level is a length of intervals."""
        keys = sorted(key for key in self._rows if key[0] == level)
        return [self._rows[key] for key in keys]


class VerdictChangeTable(HistoryTable[int, VerdictChange]):
    """Changes of the verdict on the cluster's data, keyed by their time."""

    def __init__(self) -> None:
        super().__init__(
            "turns",
            key_bytes=id_key,
            key_of=lambda turn: turn.at_ms,
            rows=records.row_format(VerdictChange),
        )

    def by_time(self) -> list[VerdictChange]:
        """Return all changes of the verdict, oldest first."""
        return [self._rows[key] for key in sorted(self._rows)]


class VerificationTable(HistoryTable[int, Verification]):
    """Results of Spark verifications, keyed by the time of their end."""

    def __init__(self) -> None:
        super().__init__(
            "verifications",
            key_bytes=id_key,
            key_of=lambda verification: verification.at_ms,
            rows=records.row_format(Verification),
        )

    def by_time(self) -> list[Verification]:
        """Return all results of Spark verifications, oldest first."""
        return [self._rows[key] for key in sorted(self._rows)]
