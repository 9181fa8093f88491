"""The replicas that a datanode reports, as one array instead of one object per replica."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from merkle.replica import ReplicaState
from scm.state.entities import Replica
from scm.state.replicas import replica_rows
from scm.state.replicas.arena import NUMBERS_AT, ROW, Rows, picked
from suture.wire.mapping.replica_columns import COLUMNS, ID, WORDS, Columns

_DELETED = replica_rows.state_code(ReplicaState.DELETED)


@dataclass(frozen=True, slots=True, eq=False)
class ReportedReplicas(Sequence[Replica]):
    """Replicas of one datanode, as an array.

    A row has an index in `words` for each of its texts (origin, volume, load error). The first text
    in `words` is empty.
    """

    datanode_id: str
    rows: Rows
    words: tuple[str, ...]

    @classmethod
    def of(cls, datanode_id: str, replicas: Iterable[Replica]) -> Self:
        """Convert replicas of a datanode to an array."""
        places = {"": 0}
        packed = [
            b"".join(
                (
                    replica.container_id.to_bytes(8, "little"),
                    bytes(4),
                    *(
                        places.setdefault(word, len(places)).to_bytes(4, "little")
                        for word in replica_rows.replica_names(replica)[1:]
                    ),
                    bytes(4),
                    replica_rows.replica_numbers(replica),
                )
            )
            for replica in replicas
        ]
        return cls(datanode_id, np.frombuffer(b"".join(packed), ROW), tuple(places))

    @classmethod
    def from_columns(
        cls, datanode_id: str, columns: Columns, words: Sequence[str], now_ms: int
    ) -> Self:
        """Convert the columns of a datanode's report, received at `now_ms`, to an array.

        `words` has the texts (origin, volume, load error). The columns have indexes in it.
        """
        rows = np.zeros(len(columns), ROW)
        for name in (ID.name, *(column.name for column in COLUMNS), *WORDS):
            rows[name] = columns.numbers[name]
        rows["reported_at_ms"] = now_ms
        return cls(datanode_id, rows, tuple(words))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Replica]:
        packed, size = self.rows.tobytes(), ROW.itemsize
        names = ("container_id", *WORDS)
        numbers = zip(*(self.rows[name].tolist() for name in names), strict=True)
        for i, (container_id, *places) in enumerate(numbers):
            origin, volume, error = (self.words[place] for place in places)
            words = (self.datanode_id, origin, volume, error)
            yield replica_rows.replica_of(container_id, words, packed, i * size + NUMBERS_AT)

    @overload
    def __getitem__(self, index: int) -> Replica: ...
    @overload
    def __getitem__(self, index: slice) -> "ReportedReplicas": ...
    def __getitem__(self, index: int | slice) -> "Replica | ReportedReplicas":
        if isinstance(index, slice):
            return ReportedReplicas(self.datanode_id, self.rows[index], self.words)
        return next(iter(self[index : index + 1 or None]))

    def where(self, is_in: NDArray[np.bool_]) -> Self:
        """Return the replicas for which `is_in` is True."""
        return replace(self, rows=picked(self.rows, is_in))

    def settled(self) -> tuple[Rows, Rows]:
        """Return the last reported row of each container, in two arrays sorted by container id.

        The first array has the replicas that are present. The second array has the replicas that
        were deleted.
        """
        rows = self.rows
        ids = rows["container_id"]
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            rows = picked(rows, np.argsort(ids, kind="stable"))
            ids = rows["container_id"]
            rows = picked(rows, np.append(ids[1:] != ids[:-1], True))
        is_gone = rows["state"] == _DELETED
        if not is_gone.any():
            return rows, rows[:0]
        return picked(rows, ~is_gone), picked(rows, is_gone)
