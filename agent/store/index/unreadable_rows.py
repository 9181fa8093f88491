"""Index row that counts the scans of a replica in which a read failed.

The count survives restarts of the agent. `scanner.unreadable_verdict` uses the count to decide when
a range that cannot be read is reported as damage.
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
    """Access to the row that counts the scans of one replica in which a read failed.

    Implements `scanner.unreadable_verdict.UnreadableRecords`.
    """

    index: Index
    container_id: ContainerId

    def record_failure(self, why: str) -> None:
        """Count a scan in which a read failed. The count is durable when this returns."""
        now_ms = self.index.now_ms()

        def change(rows: IndexChange) -> None:
            had = decode_doubt(rows.unreadable_row(self.container_id))
            rows.put_unreadable_row(self.container_id, encode_doubt(incremented(had, now_ms, why)))

        self.index.write(change)

    def are_over(self) -> bool:
        """Return whether the number of scans with failed reads has reached its limit.

        The next failed read is then reported as UNREADABLE.
        """
        with self.index.read() as rows:
            doubt = decode_doubt(rows.unreadable_row(self.container_id))
        return is_over(doubt, self.index.now_ms())

    def are_noted(self) -> bool:
        """Return whether a read has failed in a scan since the last complete scan."""
        with self.index.read() as rows:
            return rows.unreadable_row(self.container_id) is not None


def encode_doubt(doubt: UnreadableRecord) -> bytes:
    """Return the index row for a record of failed reads."""
    fields = {"version": ROW_VERSION, **asdict(doubt)}
    return seal(json.dumps(fields, separators=(",", ":")).encode())


def decode_doubt(row: bytes | None) -> UnreadableRecord | None:
    """Return the record of failed reads in an index row, or None if the row is missing or damaged.

    Without a record, the count restarts at zero.
    """
    try:
        fields = None if row is None else json.loads(bytes(unseal(row, "doubt row")))
    except DamagedData:
        return None
    if fields is None or fields.pop("version") != ROW_VERSION:
        return None
    return UnreadableRecord(**fields)
