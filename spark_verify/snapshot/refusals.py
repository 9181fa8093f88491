"""Why a snapshot is refused as a whole: too old, too few nodes reported, tables that cannot be so.

What a file, a node or the sizes alone can violate is said here; what one row can, in `violations`;
what needs a container's rows side by side (a duplicate replica, an index outside the code) the
judge tells (`health.batch`). Nothing here reads a file.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from health.words import REACHABLE_HEALTHS
from spark_verify.errors import SnapshotRefused
from spark_verify.input_columns import AHEAD_MAX_MS, TABLES, schema_of
from spark_verify.snapshot.manifest import SCAN_AGAIN, Manifest
from spark_verify.snapshot.violations import EXAMPLES_MAX

HOLDING: Final = schema_of(
    tuple(
        column
        for column in TABLES["containers"]
        if column.name in {"container_id", "state", "key_count"}
    )
)
"""Columns of containers that say which of them should have replicas."""

_TYPE_NAMES: Final = {"int64": "bigint", "int32": "int", "bool": "boolean"}
"""What Spark calls the types that Arrow calls otherwise."""


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


def check_there(manifest: Manifest, containers: Iterable[pa.Table]) -> None:
    """Refuse the snapshot when a whole table is empty that cannot be.

    Without nodes nobody reported anything. Without a replica, everything looks lost; without a
    container, nothing looks wrong. A control plane that has just lost its state says so.
    `containers` are rows of that table, with the columns of `HOLDING`.
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


def _holding_keys(tables: Iterable[pa.Table]) -> list[int]:
    going = pa.array(["DELETING", "DELETED"])
    for table in tables:
        is_going = pc.is_in(table["state"].cast(pa.string()), value_set=going)
        held = table.filter(pc.and_(pc.invert(is_going), pc.greater(table["key_count"], 0)))
        if held.num_rows:
            return sorted(held["container_id"].slice(0, EXAMPLES_MAX).to_pylist())
    return []


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


def check_count(manifest: Manifest, name: str, count: int) -> None:
    """Refuse the snapshot when a table has not as many rows as its manifest says."""
    expected = manifest.rows[name]
    if count != expected:
        raise SnapshotRefused(
            f"table {name}/ has {count} rows, its manifest says {expected}",
            hint="the snapshot is partial: was its export interrupted?",
        )


def check_columns(name: str, file_name: str, schema: pa.Schema) -> None:
    """Refuse a file that lacks a column, or has it twice or with another type.

    Every file is asked: one that an older release wrote must not hide among others.
    """
    types = {field.name: _type_name(field.type) for field in schema}
    counted = Counter(schema.names)
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
    faults += [f"column {c.name} is there twice" for c in TABLES[name] if counted[c.name] > 1]
    if faults:
        raise SnapshotRefused(f"table {name}/, {file_name}: {'; '.join(faults)}", hint=SCAN_AGAIN)


def _type_name(kind: pa.DataType) -> str:
    return _TYPE_NAMES.get(str(kind), str(kind))


def refuse_rows(name: str, what: str, count: int, named: Sequence[str]) -> None:
    """Refuse the snapshot for rows of a table that cannot be."""
    raise SnapshotRefused(
        f"table {name}/: {count} row(s) where {what}; first: {', '.join(named[:EXAMPLES_MAX])}",
        hint=SCAN_AGAIN,
    )


def refuse_twice(name: str, twice: Sequence[str]) -> None:
    """Refuse the snapshot when a table lists any row twice."""
    if twice:
        raise SnapshotRefused(f"table {name}/ lists twice: {', '.join(twice)}", hint=SCAN_AGAIN)
