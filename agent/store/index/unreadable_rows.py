"""Index row that counts the scans of a replica with failed reads.

The count survives restarts of the agent. `scanner.unreadable_verdict` uses it to decide when an
unreadable range is damage.
"""

import json
from dataclasses import asdict, dataclass

from agent.store.index.environment import Index
from agent.store.index.rows import ROW_VERSION, seal, unseal
from agent.store.index.transactions import IndexChange
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from scanner.unreadable_verdict import UnreadableRecord, incremented, is_over


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """Count of failed scans of one replica, stored in its row (implements
    `scanner.unreadable_verdict.UnreadableRecords`)."""

    index: Index
    container_id: ContainerId

    def record_failure(self, why: str) -> None:
        """Count a scan that failed to read a range. The count is durable when this returns."""
        now_ms = self.index.now_ms()

        def change(rows: IndexChange) -> None:
            had = decode_doubt(rows.unreadable_row(self.container_id))
            rows.put_unreadable_row(self.container_id, encode_doubt(incremented(had, now_ms, why)))

        self.index.write(change)

    def are_over(self) -> bool:
        """Return whether a further failed read gets the verdict UNREADABLE."""
        with self.index.read() as rows:
            doubt = decode_doubt(rows.unreadable_row(self.container_id))
        return is_over(doubt, self.index.now_ms())

    def are_noted(self) -> bool:
        """Return whether a scan failed to read a range since the last complete scan."""
        with self.index.read() as rows:
            return rows.unreadable_row(self.container_id) is not None


def encode_doubt(doubt: UnreadableRecord) -> bytes:
    """Return the row for a record of failed reads."""
    fields = {"version": ROW_VERSION, **asdict(doubt)}
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_doubt(row: bytes | None) -> UnreadableRecord | None:
    """Return the record in a row. Return None if the row is missing or damaged; the count then
    restarts."""
    try:
        fields = None if row is None else json.loads(bytes(unseal(row, "doubt row")))
    except DamagedData:
        return None
    if fields is None or fields.pop("version") != ROW_VERSION:
        return None
    return UnreadableRecord(**fields)
