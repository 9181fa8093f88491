"""Reading a snapshot: its tables as parts that tasks read, and their rows.

    <dir>/manifest.json
    <dir>/{containers,replicas,nodes,pending_ops}/*.parquet

It is believed only when it is whole: `refusals` has the reasons why it is not.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_verify.errors import SnapshotRefused
from spark_verify.file_systems import Place
from spark_verify.input_columns import TABLES
from spark_verify.snapshot.manifest import SCAN_AGAIN, Manifest
from spark_verify.snapshot.refusals import check_columns, check_count, refuse_rows
from spark_verify.snapshot.violations import wrong_rows

ROWS_PER_PART: Final = 1_000_000
"""Rows that a task reads, if the row groups of the files allow."""

ROWS_PER_PAGE: Final = 250_000
"""Rows of a part that are looked at together: some 40 MB."""

DAMAGED: Final = (pa.ArrowException, OSError, ValueError, LookupError)
"""What Arrow raises where a file is damaged."""

REASON_CHARACTERS_MAX: Final = 1500
"""Of what a library says."""


@dataclass(frozen=True, slots=True)
class Group:
    """A row group of a file."""

    number: int
    rows: int
    ids: tuple[int, int] | None = None
    """The lowest and the highest id of its containers, where the file says them."""


@dataclass(frozen=True, slots=True)
class Part:
    """Row groups of some files of one table, read together."""

    table: str
    groups: tuple[tuple[str, tuple[Group, ...]], ...]
    """Places of files as text, and the row groups in them."""


def open_snapshot(directory: str, manifest: Manifest) -> dict[str, list[Part]]:
    """Return the parts of each table. Raises SnapshotRefused when a file, a column or a type is
    not what it must be, or a table has not as many rows as its manifest says."""
    return {name: _open_table(Place.of(directory), name, manifest) for name in TABLES}


def _open_table(directory: Place, name: str, manifest: Manifest) -> list[Part]:
    path = directory / name
    if not path.is_directory():
        raise SnapshotRefused(f"{directory} has no table {name}/", hint=SCAN_AGAIN)
    files = parquet_files(path)
    if not files:
        raise SnapshotRefused(f"table {name}/ cannot be read: it has no file", hint=SCAN_AGAIN)
    groups: list[tuple[str, list[Group]]] = []
    for file in files:
        try:
            with parquet_file(file) as opened:
                check_columns(name, file.name, opened.schema_arrow)
                groups.append((str(file), groups_of(opened)))
        except DAMAGED as error:
            raise _unreadable(name, file, error) from None
    check_count(manifest, name, sum(group.rows for _, own in groups for group in own))
    return parts_of(name, groups)


def _unreadable(name: str, file: Place, error: Exception) -> SnapshotRefused:
    reason = " ".join(str(error).split())[:REASON_CHARACTERS_MAX]
    return SnapshotRefused(f"table {name}/ cannot be read: {file.name}: {reason}", hint=SCAN_AGAIN)


def parquet_files(path: Place) -> list[Place]:
    """Return the files of a table, in the order of their names."""
    found = [one.place for one in path.listed(recursive=True) if one.is_file]
    return [place for place in found if place.name[0] not in "._"]


@contextmanager
def parquet_file(place: Place, words: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a file of a table; columns of `words` are read as codes of a dictionary. Pages that
    have a checksum, as all that are ours, are held against it where they are read."""
    with (
        place.opened() as source,
        pq.ParquetFile(
            source, read_dictionary=list(words), page_checksum_verification=True
        ) as opened,
    ):
        yield opened


def groups_of(file: pq.ParquetFile) -> list[Group]:
    """Return the row groups of a file."""
    metadata = file.metadata
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    column = paths.index("container_id") if "container_id" in paths else -1
    return [
        Group(i, metadata.row_group(i).num_rows, _ids(metadata.row_group(i), column))
        for i in range(metadata.num_row_groups)
    ]


def _ids(group: Any, column: int) -> tuple[int, int] | None:
    told = group.column(column).statistics if column >= 0 else None
    if told is None or not told.has_min_max or not told.has_null_count or told.null_count:
        return None
    return told.min, told.max


def parts_of(name: str, files: Iterable[tuple[str, Sequence[Group]]]) -> list[Part]:
    """Return the row groups of files in parts of some ROWS_PER_PART rows."""
    parts: list[Part] = []
    groups: list[tuple[str, Group]] = []
    count = 0
    for file, own in files:
        for group in own:
            if groups and count + group.rows > ROWS_PER_PART:
                parts.append(part_of(name, groups))
                groups, count = [], 0
            groups.append((file, group))
            count += group.rows
    return [*parts, part_of(name, groups)] if groups else parts


def part_of(name: str, groups: Iterable[tuple[str, Group]]) -> Part:
    """Return row groups, those of a file one after the other, as one part."""
    by_file: dict[str, list[Group]] = {}
    for file, group in groups:
        by_file.setdefault(file, []).append(group)
    return Part(name, tuple((file, tuple(own)) for file, own in by_file.items()))


def pages_of(part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a part, with the columns of `schema`, ROWS_PER_PAGE at a time; words as
    codes of a dictionary, which spares most of the reading and of the space. Raises SnapshotRefused
    for a file that is damaged."""
    for path, groups in part.groups:
        file = Place.of(path)
        try:
            yield from _pages(file, groups, schema)
        except DAMAGED as error:
            raise _unreadable(part.table, file, error) from None


def _pages(file: Place, groups: Iterable[Group], schema: pa.Schema) -> Iterator[pa.Table]:
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    with parquet_file(file, words) as opened:
        pages = opened.iter_batches(
            ROWS_PER_PAGE,
            row_groups=[group.number for group in groups],
            columns=schema.names,
            use_threads=False,
        )
        for page in pages:
            table = pa.Table.from_batches([page])
            for field in schema:
                if field.name not in table.column_names:  # it was written before that was
                    table = table.append_column(field, pa.nulls(len(table), field.type))
            _check_words(table)
            # By their names alone: in one file a column may be nullable, in the next not.
            yield pa.table({name: table[name] for name in schema.names})


def _check_words(page: pa.Table) -> None:
    """Raise ValueError for text that is no UTF-8, which nothing else looks at before it is told."""
    for name, column in zip(page.column_names, page.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            for chunk in column.chunks:
                try:
                    chunk.dictionary.validate(full=True)
                except pa.ArrowInvalid as error:
                    raise ValueError(f"column {name}: {error}") from None


def read_part(part: Part, schema: pa.Schema) -> pa.Table:
    """Return all rows of a part."""
    pages = list(pages_of(part, schema))
    return pa.concat_tables(pages) if pages else schema.empty_table()


def whole_table(name: str, parts: Iterable[Part], manifest: Manifest) -> pa.Table:
    """Return all rows of a table, checked one by one."""
    schema = pa.schema([(column.name, column.type) for column in TABLES[name]])
    tables = [read_part(part, schema).cast(schema) for part in parts]
    table = pa.concat_tables([schema.empty_table(), *tables])
    for wrong in wrong_rows(name, table, manifest):
        refuse_rows(name, wrong.what, wrong.count, wrong.examples)
    return table
