"""Reading a snapshot: believed only when it is whole; otherwise refused with the rows named.

    <dir>/manifest.json
    <dir>/{containers,replicas,nodes,pending_ops}/*.parquet

What a file, a node or the sizes alone can violate is checked here; what one row can, in
`violations`; what needs a container's rows side by side (a duplicate replica, an index outside the
code) the judge tells (`health.batch`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from health.words import REACHABLE_HEALTHS
from spark_verify.errors import SnapshotRefused
from spark_verify.file_systems import Place
from spark_verify.input_columns import AHEAD_MAX_MS, TABLES, schema_of
from spark_verify.snapshot.manifest import SCAN_AGAIN, Manifest
from spark_verify.snapshot.violations import EXAMPLES_MAX, wrong_rows

ROWS_PER_PART: Final = 1_000_000
"""Rows that a task reads, if the row groups of the files allow."""

ROWS_PER_PAGE: Final = 250_000
"""Rows of a part that are looked at together: some 40 MB."""

REASON_CHARACTERS_MAX: Final = 1500
"""Of what a library says."""

_TYPE_NAMES: Final = {"int64": "bigint", "int32": "int", "bool": "boolean"}
"""What Spark calls the types that Arrow calls otherwise."""


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
                _check_columns(name, file, opened.schema_arrow)
                groups.append((str(file), groups_of(opened)))
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:REASON_CHARACTERS_MAX]
            raise SnapshotRefused(
                f"table {name}/ cannot be read: {file.name}: {reason}", hint=SCAN_AGAIN
            ) from None
    check_count(manifest, name, sum(group.rows for _, own in groups for group in own))
    return parts_of(name, groups)


def parquet_files(path: Place) -> list[Place]:
    """Return the files of a table, in the order of their names."""
    found = [one.place for one in path.listed(recursive=True) if one.is_file]
    return [place for place in found if place.name[0] not in "._"]


@contextmanager
def parquet_file(place: Place, words: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a file of a table; columns of `words` are read as codes of a dictionary."""
    with place.opened() as source, pq.ParquetFile(source, read_dictionary=list(words)) as opened:
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


def _check_columns(name: str, file: Place, schema: pa.Schema) -> None:
    """Refuse a file that lacks a column or has it with another type.

    Every file is asked: one that an older release wrote must not hide among others.
    """
    types = {field.name: _type_name(field.type) for field in schema}
    faults = [
        f"column {c.name} is missing"
        for c in TABLES[name]
        if c.name not in types and not c.may_lack
    ]
    faults += [
        f"column {c.name} is {types[c.name]}, must be {_type_name(c.type)}"
        for c in TABLES[name]
        if c.name in types and types[c.name] != _type_name(c.type)
    ]
    if faults:
        raise SnapshotRefused(f"table {name}/, {file.name}: {'; '.join(faults)}", hint=SCAN_AGAIN)


def _type_name(kind: pa.DataType) -> str:
    return _TYPE_NAMES.get(str(kind), str(kind))


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
    codes of a dictionary, which spares most of the reading and of the space."""
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    for path, groups in part.groups:
        with parquet_file(Place.of(path), words) as file:
            pages = file.iter_batches(
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
                yield table.select(schema.names)


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


def refuse_rows(name: str, what: str, count: int, named: Sequence[str]) -> None:
    """Refuse the snapshot for rows of a table that cannot be."""
    raise SnapshotRefused(
        f"table {name}/: {count} row(s) where {what}; first: {', '.join(named[:EXAMPLES_MAX])}",
        hint=SCAN_AGAIN,
    )


def check_count(manifest: Manifest, name: str, count: int) -> None:
    """Refuse the snapshot when a table has not as many rows as its manifest says."""
    expected = manifest.rows[name]
    if count != expected:
        raise SnapshotRefused(
            f"table {name}/ has {count} rows, its manifest says {expected}",
            hint="the snapshot is partial: was its export interrupted?",
        )


def check_age(manifest: Manifest, age_max_s: int, now_ms: int) -> None:
    """Refuse the snapshot when it is older than `age_max_s` at `now_ms` (0 takes any age), or made
    in the future: its plan would stay valid for too long."""
    if manifest.as_of_ms > now_ms + AHEAD_MAX_MS:
        raise SnapshotRefused(
            f"snapshot {manifest.snapshot_id} was made {(manifest.as_of_ms - now_ms) // 1000} s in "
            "the future, by the clock of this machine",
            hint="set the clocks of the control plane and of this machine",
        )
    age_s = (now_ms - manifest.as_of_ms) // 1000
    if age_max_s and age_s > age_max_s:
        raise SnapshotRefused(
            f"snapshot {manifest.snapshot_id} is {age_s} s old, at most {age_max_s} s are allowed",
            hint="export a fresh snapshot from the SCM",
        )


def check_there(manifest: Manifest, containers: Iterable[Part]) -> None:
    """Refuse the snapshot when a whole table is empty that cannot be.

    Without nodes nobody reported anything. Without a replica, everything looks lost; without a
    container, nothing looks wrong. A control plane that has just lost its state says so.
    `containers` are the parts of that table.
    """
    rows = manifest.rows
    if not rows["nodes"]:
        raise SnapshotRefused(
            "table nodes/ is empty: nobody has reported anything",
            hint="wait until datanodes have registered",
        )
    if rows["replicas"] and not rows["containers"]:
        raise SnapshotRefused(
            f"table containers/ is empty, and replicas/ has {rows['replicas']} rows",
            hint="has the control plane lost its state? restore it before anything is decided",
        )
    named = [] if rows["replicas"] else _holding_keys(containers)
    if named:
        raise SnapshotRefused(
            "table replicas/ is empty, and containers hold keys: first: "
            + ", ".join(map(str, named)),
            hint="wait until the datanodes have reported what they hold",
        )


def _holding_keys(parts: Iterable[Part]) -> list[int]:
    going = pa.array(["DELETING", "DELETED"])
    shown = [c for c in TABLES["containers"] if c.name in ("container_id", "state", "key_count")]
    for part in parts:
        table = read_part(part, schema_of(tuple(shown)))
        is_going = pc.is_in(table["state"].cast(pa.string()), value_set=going)
        held = table.filter(pc.and_(pc.invert(is_going), pc.greater(table["key_count"], 0)))
        if held.num_rows:
            return sorted(held["container_id"].slice(0, EXAMPLES_MAX).to_pylist())
    return []


def check_reporting(nodes: Sequence[Any], min_percent: int) -> None:
    """Refuse the snapshot when fewer than `min_percent` of the nodes that should have reported did.

    Only a node that answers and has named all its replicas since the control plane started counts:
    a heartbeat says nothing about what is there. Nodes in maintenance and decommissioned ones may
    be silent. `nodes` are rows of `nodes/`.
    """
    expected = [n for n in nodes if n["op_state"] not in ("IN_MAINTENANCE", "DECOMMISSIONED")]
    missing = [
        n["datanode_id"]
        for n in expected
        if n["health"] not in REACHABLE_HEALTHS or not n["has_reported"]
    ]
    reported = len(expected) - len(missing)
    if reported * 100 < min_percent * len(expected):
        shown = ", ".join(sorted(missing)[:EXAMPLES_MAX])
        raise SnapshotRefused(
            f"only {reported} of {len(expected)} nodes answer and have named all their replicas "
            f"since the control plane started, {min_percent} % must; missing: {shown}",
            hint="wait until the datanodes have reported, or lower --reporting-min-percent",
        )


def check_nodes(nodes: Sequence[Any]) -> None:
    """Refuse the snapshot when a node is listed twice. `nodes` are all rows of `nodes/`."""
    counted = Counter(node["datanode_id"] for node in nodes)
    twice = sorted(node for node, count in counted.items() if count > 1)[:EXAMPLES_MAX]
    refuse_twice("nodes", [f"datanode_id {node}" for node in twice])


def check_changed(nodes: Sequence[Any], changed_nodes: Iterable[str]) -> None:
    """Refuse to verify what is on nodes that are not there: it would be nothing, and look clean."""
    strange = sorted(set(changed_nodes) - {node["datanode_id"] for node in nodes})
    if strange:
        raise SnapshotRefused(
            f"table nodes/ lists no datanode {', '.join(strange)}, which --changed-node names",
            hint="look for the datanode's id in `suture scm nodes`",
        )


def refuse_twice(name: str, twice: Sequence[str]) -> None:
    """Refuse the snapshot when a table lists any row twice."""
    if twice:
        raise SnapshotRefused(f"table {name}/ lists twice: {', '.join(twice)}", hint=SCAN_AGAIN)
