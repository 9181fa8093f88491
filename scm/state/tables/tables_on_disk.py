"""Tables whose rows stay on disk, because they need too much memory."""

from collections.abc import Iterable
from typing import Final

from scm.state import records
from scm.state.entities import CommandOutcome, DeletedBlocks, OutcomeState
from scm.state.table import ID_PAIR, KeyAt, Table, id_key


class DeletedTable(Table[tuple[int, int], DeletedBlocks]):
    """Deleted blocks by container and transaction, on disk only.

    There may be very many of them, and they are rarely read (`StateDatabase.deleted_in`).
    """

    def __init__(self) -> None:
        super().__init__(
            "deleted",
            key_bytes=lambda key: ID_PAIR.pack(*key),
            key_of=lambda deleted: (deleted.container_id, deleted.transaction_id),
            rows=records.DELETED,
        )

    def load(self, rows: Iterable[bytes], key_at: KeyAt) -> None:
        """Do nothing, because the rows stay on disk."""

    def apply(self, key: tuple[int, int], value: DeletedBlocks | None) -> DeletedBlocks | None:
        """Do nothing and return None, because the rows stay on disk."""
        del key, value
        return None


class OutcomeTable(Table[int, CommandOutcome]):
    """The ids of the outcomes on disk. The outcomes themselves need too much memory."""

    def __init__(self) -> None:
        super().__init__(
            "outcomes",
            key_bytes=id_key,
            key_of=lambda outcome: outcome.command_id,
            rows=records.OUTCOME,
        )
        self._ids: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def apply(self, key: int, value: CommandOutcome | None) -> CommandOutcome | None:
        """Add or remove the id of an outcome. The outcome itself is only on the disk."""
        was_there = key in self._ids
        if value is None:
            self._ids.pop(key, None)
        else:
            self._ids[key] = None
        return _FORGOTTEN if was_there else None

    def __contains__(self, key: int) -> bool:
        return key in self._ids

    def oldest(self, count: int) -> list[int]:
        """Return the ids of the `count` oldest outcomes, oldest first."""
        return sorted(self._ids)[:count]

    def newest(self, count: int, *, before_id: int = 0) -> list[int]:
        """Return the ids of the `count` newest outcomes, newest first.

        If `before_id` is not 0, only ids below it are returned.
        """
        older = self._ids if before_id == 0 else {i for i in self._ids if i < before_id}
        return sorted(older, reverse=True)[:count]


_FORGOTTEN: Final = CommandOutcome(0, "", 0, OutcomeState.SKIPPED, "", 0, "", "", b"")
"""Placeholder for an outcome that is only on disk."""
