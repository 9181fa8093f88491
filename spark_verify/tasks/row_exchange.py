"""How rows travel: cut from files by container, put together again with all of their container's.

    files ─► rows of a part ─► one table a partition ─► blobs ─► Spark's exchange ─► partition

Rows are not shuffled one by one: what travels is whole Arrow tables, which Spark need not look
into. A partition is as much as a task holds in memory. None of it is needed where the row groups of
a snapshot follow each other in the order of its containers (`snapshot.ranges`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from health.segments import Ints

ROWS_PER_PARTITION: Final = 500_000
"""Replicas that a task judges: some 40 MB, and a few times that while it does."""

_SPREAD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)  # 2^64 over the golden ratio

TABLE: Final = b"table"
"""Under it a blob says of which table its rows are."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Into how many partitions containers go."""

    partitions: int

    @classmethod
    def of(cls, rows: int, *, partitions_min: int) -> "Layout":
        """Return the layout for so many replicas in tasks."""
        return cls(max(partitions_min, -(-rows // ROWS_PER_PARTITION)))

    def _numbers_of(self, container_ids: pa.ChunkedArray) -> Ints:
        ids = container_ids.to_numpy().astype(np.uint64)
        spread = (ids * _SPREAD) >> np.uint64(32)
        numbers: Ints = (spread % np.uint64(self.partitions)).astype(np.int64)
        return numbers

    def parted(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of each partition that has any."""
        if self.partitions == 1:
            yield 0, table
            return
        numbers = self._numbers_of(table["container_id"])
        ordered, starts = _arranged(table, numbers, self.partitions)
        for number in np.flatnonzero(np.diff(starts)).tolist():
            yield number, ordered.slice(starts[number], starts[number + 1] - starts[number])


def _arranged(table: pa.Table, numbers: Ints, count: int) -> tuple[pa.Table, Ints]:
    """Return rows in the order of their numbers, which are below `count`, and where those of each
    number start and end; rows of one number stay in their order."""
    small = numbers.astype(np.uint16) if count < 1 << 16 else numbers
    order = np.argsort(small, kind="stable")
    return table.take(order), np.searchsorted(small[order], np.arange(count + 1))


def packed(name: str, table: pa.Table) -> bytes:
    """Return rows of a table as one blob."""
    plain = {
        field.name: table[field.name].cast(pa.string())
        for field in table.schema
        if pa.types.is_dictionary(field.type) and _is_wide(table[field.name])
    }
    for column, values in plain.items():
        place = table.schema.get_field_index(column)
        table = table.set_column(place, column, values)
    table = table.replace_schema_metadata({TABLE: name.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def _is_wide(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary has more words than the rows it stands beside could use."""
    return any(len(chunk.dictionary) > max(len(column) // 4, 64) for chunk in column.chunks)


def unpacked(blob: bytes) -> tuple[str, pa.Table]:
    """Return a blob's name and rows."""
    table = pa.ipc.open_stream(pa.py_buffer(blob)).read_all()
    return table.schema.metadata[TABLE].decode(), table.replace_schema_metadata()


def joined(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return rows of one table that came apart; of which words may be codes of a dictionary."""
    if not tables:
        return schema.empty_table()
    mixed = {
        field.name
        for field in schema
        if len({str(table.schema.field(field.name).type) for table in tables}) > 1
    }
    for name in mixed:
        place = schema.get_field_index(name)
        tables = [
            table.set_column(place, name, table[name].cast(schema.field(name).type))
            for table in tables
        ]
    # Nullability is the files' own affair; what may not be null has been looked at.
    bare = [pa.table({name: t[name] for name in schema.names}) for t in tables]
    return pa.concat_tables(bare).unify_dictionaries()
