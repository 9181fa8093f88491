"""Columns of many replica rows, for operations on all replicas of a host.

A start, a report and a scan plan each read 100,000 rows. One object per row would cost ten times as
much as the checksum of the row. Therefore, this module extracts the numbers of the raw rows into
columns. It verifies the rows in the same way as `agent.store.index.rows.decode_replica`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from agent.store.index.rows import (
    ALGORITHMS,
    REPLICA_BYTES,
    REPLICA_FIELDS,
    ROW_VERSION,
    SEAL_BYTES,
    STATES,
    decode_replica,
)
from merkle.checksum import crc32c
from merkle.checksum_columns import U64s
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId, ReplicaState

BATCH_COUNT: Final = 8192  # rows in memory at once

Numbers = npt.NDArray[Any]  # unsigned integers
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReplicaColumns:
    """Fields of many replicas as columns, by ascending container id.

    `states` has indexes into `rows.STATES`.
    """

    container_ids: U64s
    states: Numbers
    replica_indexes: Numbers
    used_bytes: U64s
    data_scan_at_ms: U64s
    finding_counts: Numbers
    contradiction_counts: Numbers

    @classmethod
    def none(cls) -> Self:
        """Return the columns of an empty set of replicas."""
        return cls(*(np.zeros(0, np.uint64) for _ in fields(cls)))

    def __len__(self) -> int:
        return len(self.container_ids)

    def are(self, states: Collection[ReplicaState]) -> Mask:
        """Return an array with True for each replica that is in one of these states."""
        wanted = np.array([state in states for state in STATES])
        return np.asarray(wanted[self.states])

    def where(self, mask: Mask) -> Self:
        """Return the replicas for which `mask` is True."""
        return type(self)(*(getattr(self, field.name)[mask] for field in fields(self)))


DamagedRows = list[tuple[ContainerId, DamagedData]]


def decode_columns(
    items: Iterable[tuple[bytes, bytes]], after_batch: Callable[[], None] = lambda: None
) -> tuple[ReplicaColumns, DamagedRows]:
    """Parse raw (key, row) pairs of replicas.

    Return the columns of the valid rows, and the damaged rows. A damaged row is returned as its
    container id and the error that `decode_replica` raises for the row. `after_batch` is called
    after each batch of BATCH_COUNT rows.
    """
    damaged: DamagedRows = []
    batches = []
    for batch in _batches(iter(items), damaged):
        batches.append(batch)
        after_batch()
    names = [field.name for field in fields(ReplicaColumns)]
    columns = ReplicaColumns(
        *(np.concatenate([getattr(batch, name) for batch in batches]) for name in names)
    )
    return columns, damaged


def _batches(
    items: Iterator[tuple[bytes, bytes]], damaged: DamagedRows
) -> Iterator[ReplicaColumns]:
    origins: dict[bytes, bool] = {}
    while True:
        batch = list(islice(items, BATCH_COUNT))
        is_whole = [_is_whole(row, origins) for _, row in batch]
        whole = [item for item, good in zip(batch, is_whole, strict=True) if good]
        rows = np.frombuffer(b"".join([row[:REPLICA_BYTES] for _, row in whole]), REPLICA_FIELDS)
        is_known = (
            (rows["state"] < len(STATES))
            & (rows["former_state"] <= len(STATES))
            & (rows["algorithm"] < len(ALGORITHMS))
        )
        doubtful = [item for item, good in zip(batch, is_whole, strict=True) if not good]
        doubtful += [item for item, good in zip(whole, is_known.tolist(), strict=True) if not good]
        damaged += _judged(doubtful)
        rows = rows[is_known]
        keys = np.frombuffer(b"".join([key for key, _ in whole]), ">u8")[is_known]
        yield ReplicaColumns(
            keys.astype(np.uint64),
            rows["state"].copy(),  # a view would keep the rows in memory
            rows["replica_index"].astype(np.uint32),
            rows["used_bytes"].astype(np.uint64),
            rows["data_scan_at_ms"].astype(np.uint64),
            rows["finding_count"].astype(np.uint32),
            rows["contradiction_count"].astype(np.uint16),
        )
        if len(batch) < BATCH_COUNT:
            return


def _is_whole(row: bytes, origins: dict[bytes, bool]) -> bool:
    """Return whether a row is complete, matches its checksum, and has a valid origin name."""
    if len(row) < REPLICA_BYTES + SEAL_BYTES or row[0] != ROW_VERSION:
        return False
    if crc32c(row[:-SEAL_BYTES]) != int.from_bytes(row[-SEAL_BYTES:]):
        return False
    origin = row[REPLICA_BYTES:-SEAL_BYTES]
    known = origins.get(origin)
    if known is None:
        known = origins[origin] = origin.decode("utf-8", "replace").encode() == origin
    return known


def _judged(doubtful: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[ContainerId, DamagedData]]:
    for key, row in doubtful:
        container_id = ContainerId(int.from_bytes(key))
        try:
            decode_replica(container_id, row)
        except DamagedData as damage:
            yield container_id, damage
        else:
            raise AssertionError(f"row of container {container_id} is doubtful, and not damaged")
