"""Ranges of containers: what is judged by whoever reads it, with nothing exchanged.

    row groups of containers/   |    1 .. 100     |    101 .. 200     |
                  of replicas/  | 1 .. 33 | 33 .. 70 | 70 .. 104 | 104 .. 140 | ...
    ranges                      |     .. 69        |  70 ..  139       | 140 .. |

A control plane writes containers and replicas in the order of their ids, and a Parquet file says of
each row group which ids it has. So a task reads the few row groups that have rows of its
containers, and leaves out what else is in the first and the last of them. Files in which ids go to
and fro have no such ranges: their rows are exchanged (`exchange`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_verify.snapshot.snapshot_reading import Group, Part, part_of

ROWS_PER_RANGE: Final = 1_000_000
"""Rows of all tables that a task reads and judges: some 100 MB, and a few times that while it
does."""

READING_MAX: Final = 1.3
"""How much more is read, because groups are read by more than one task, than there is; beyond that
an exchange is cheaper."""

ROWS_OF_OPENING: Final = 2_000
"""Rows that are read in the time it takes to open a file at a group."""

ID_MIN: Final = -(1 << 63)
ID_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Containers from one id to another, both included, and the row groups that have any row of
    theirs, table by table."""

    first_id: int
    last_id: int
    parts: tuple[Part, ...]

    def own(self, rows: pa.Table) -> pa.Table:
        """Return the rows of its containers."""
        ids = rows["container_id"]
        if not len(ids):
            return rows
        found: Any = pc.min_max(ids).as_py()
        if self.first_id <= found["min"] and found["max"] <= self.last_id:
            return rows
        is_own = pc.and_(
            pc.greater_equal(ids, pa.scalar(self.first_id, pa.int64())),
            pc.less_equal(ids, pa.scalar(self.last_id, pa.int64())),
        )
        return rows.filter(is_own)


@dataclass(frozen=True, slots=True)
class _Read:
    """A row group of a table, and which ids it has."""

    table: str
    file: str
    group: Group
    low: int
    high: int


def ranges_of(parts: Sequence[Part], *, partitions: int) -> list[Range]:
    """Return ranges that together have all containers, where that takes hardly more reading than
    there is to read; else none, as where they would be few beside the partitions of an exchange."""
    groups = list(_groups(parts))
    if any(read is None for read in groups):
        return []
    known = [read for read in groups if read is not None]
    firsts = [ID_MIN, *_cuts(known)]
    if 2 * len(firsts) <= partitions:
        return []
    lasts = [*(first - 1 for first in firsts[1:]), ID_MAX]
    read_by: list[list[_Read]] = [[] for _ in firsts]
    for read in known:
        for place in range(bisect_right(firsts, read.low) - 1, bisect_left(lasts, read.high) + 1):
            read_by[place].append(read)
    if sum(map(_cost, read_by)) > READING_MAX * _cost(known):
        return []
    return [
        Range(first, last, _parts(own))
        for first, last, own in zip(firsts, lasts, read_by, strict=True)
    ]


def _groups(parts: Iterable[Part]) -> Iterator[_Read | None]:
    """Yield all groups that have rows; None for one whose ids are not known."""
    for part in parts:
        for file, groups in part.groups:
            for group in groups:
                if group.rows:
                    yield group.ids and _Read(part.table, file, group, *group.ids)


def _cuts(groups: Iterable[_Read]) -> list[int]:
    """Return the first id of every range but the first: of a group that would be too much."""
    cuts: list[int] = []
    held, first = 0, ID_MIN
    for read in sorted(groups, key=lambda read: read.low):
        if held and held + read.group.rows > ROWS_PER_RANGE and read.low > first:
            first, held = read.low, 0
            cuts.append(first)
        held += read.group.rows
    return cuts


def _cost(groups: Sequence[_Read]) -> int:
    return sum(read.group.rows + ROWS_OF_OPENING for read in groups)


def _parts(groups: Iterable[_Read]) -> tuple[Part, ...]:
    """Return groups, which are in the order of their tables, in a part a table."""
    return tuple(
        part_of(table, [(read.file, read.group) for read in own])
        for table, own in groupby(groups, key=lambda read: read.table)
    )
