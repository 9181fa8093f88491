"""Rejects a snapshot that is too old, has too few reporting datanodes, or has invalid rows.

A rule about single rows is an SQL condition on the columns of the table. Rules about several rows
of a container, such as duplicate replicas, are checked in `health.batch`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pyspark.sql.functions as f
from pyspark.sql import DataFrame

from health.ec_replication import INDEX_MAX
from health.tables.snapshot_columns import ROWS_PER_CONTAINER_MAX, TABLES
from health.words import REACHABLE_HEALTHS
from spark_verify.errors import SnapshotRefused
from spark_verify.input_columns import AHEAD_MAX_MS
from spark_verify.snapshot.manifest import SCAN_AGAIN, SnapshotManifest
from spark_verify.snapshot.tables import Snapshot
from spark_verify.sql_text import text, texts

EXAMPLES_MAX: Final = 5
"""Maximum number of rows that are listed in an error message."""

BY_CONTAINER: Final = ("containers", "replicas", "pending_ops")
"""Tables whose rows belong to one container each."""

_INSTANTS: Final = {
    "containers": "state_since_ms",
    "replicas": "reported_at_ms",
    "nodes": "last_heartbeat_at_ms",
}
"""Columns with times that were measured by the clock of the SCM, by table."""

_SIGNED: Final = ("root", "settled_root", "tombstones_checksum")
_KEYS: Final = {"containers": ("container_id",), "nodes": ("datanode_id",)}
_SHOWN: Final = ("state", "replica_index", "health", "op_state", "op", "replication_type")


def row_checks(manifest: SnapshotManifest) -> list[tuple[str, str, str]]:
    """Return all rules about single rows, in the order in which violations are reported.

    A rule has three parts: the table, a text about the fault, and the SQL condition for an invalid
    row.
    """
    return [(name, *rule) for name in TABLES for rule in _rules(name, manifest)]


def _rules(name: str, manifest: SnapshotManifest) -> Iterator[tuple[str, str]]:
    columns = TABLES[name]
    for c in columns:
        if not c.is_nullable:
            yield f"{c.name} is null", f"{c.name} IS NULL"
    for c in columns:
        if c.kind in ("long", "int") and c.name not in _SIGNED:
            yield f"{c.name} is negative", f"{c.name} < 0"
    own = f"snapshot_id <> {text(manifest.snapshot_id)}"
    yield "snapshot_id is not the manifest's", own
    if name in _INSTANTS:
        latest = f"{_INSTANTS[name]} > {manifest.as_of_ms + AHEAD_MAX_MS}"
        yield f"{_INSTANTS[name]} is later than the snapshot", latest
    if name in ("replicas", "pending_ops"):
        yield f"replica_index is above {INDEX_MAX}", f"replica_index > {INDEX_MAX}"
    for c in columns:
        if c.words:
            is_other = f"{c.name} NOT IN ({texts(c.words)})"
            yield f"{c.name} is none of {', '.join(c.words)}", is_other
    if name == "containers":
        data, parity = "coalesce(ec_data, 0)", "coalesce(ec_parity, 0)"
        is_no_code = f"{data} < 1 OR {parity} < 1 OR {data} + {parity} > {INDEX_MAX}"
        is_ec = "replication_type = 'EC'"
        yield "ec_data and ec_parity name no code", f"{is_ec} AND ({is_no_code})"
        yield "replication_factor is below 1", "replication_factor < 1"
    else:
        yield "datanode_id is empty", "datanode_id = ''"
    for c in columns:
        if c.kind == "string" and not c.words and c.name != "snapshot_id":
            yield f"{c.name} is not UTF-8", f"NOT {_is_utf8(c.name)}"
    if name == "pending_ops":
        yield "datanode is in no other table", "node_place IS NULL"


def _is_utf8(name: str) -> str:
    if hasattr(f, "is_valid_utf8"):
        return f"is_valid_utf8({name})"
    # Invalid UTF-8 changes when Spark 3.5 decodes it.
    return f"(decode(CAST({name} AS BINARY), 'UTF-8') = {name})"


def first_fault(name: str, manifest: SnapshotManifest) -> str:
    """Return SQL for the index in `row_checks` of the first rule that a row violates.

    The index is null if the row is valid.
    """
    rules = enumerate(row_checks(manifest))
    cases = [f"WHEN {is_broken} THEN {i}" for i, (table, _, is_broken) in rules if table == name]
    return f"CASE {' '.join(cases)} END"


def refuse_fault(fault: int, tables: Mapping[str, DataFrame], manifest: SnapshotManifest) -> None:
    """Raise SnapshotRefused because rows violate the rule with the index `fault`. The error lists
    some rows."""
    table, what, is_broken = row_checks(manifest)[fault]
    broken = tables[table].filter(is_broken)
    keys = _KEYS.get(table, ("container_id", "datanode_id"))
    shown = ", ".join(_example(keys, row.asDict()) for row in first_rows(broken, *keys))
    raise SnapshotRefused(
        f"table {table}/: {broken.count()} row(s) where {what}; first: {shown}", hint=SCAN_AGAIN
    )


def first_rows(rows: DataFrame, *keys: str) -> list[Any]:
    """Return the first EXAMPLES_MAX rows in the order of `keys`, to list them in an error
    message."""
    found: list[Any] = rows.orderBy(*keys).limit(EXAMPLES_MAX).collect()
    return found


def _example(keys: Sequence[str], row: dict[str, Any]) -> str:
    words = ", ".join(f"{word}={row[word]}" for word in _SHOWN if word in row)
    return f"({', '.join(f'{key} {row[key]}' for key in keys)}: {words})"


def check_age(manifest: SnapshotManifest, max_age_s: int, now_ms: int) -> None:
    """Raise SnapshotRefused if the snapshot is older than `max_age_s` seconds; 0 means unlimited.

    Also raise it if the time of the snapshot is in the future, because its plan would then be valid
    for too long.
    """
    if manifest.as_of_ms > now_ms + AHEAD_MAX_MS:
        raise SnapshotRefused(
            f"snapshot {manifest.snapshot_id} was made {(manifest.as_of_ms - now_ms) // 1000} s in "
            "the future, by the clock of this machine",
            hint="set the clocks of the control plane and of this machine",
        )
    age_s = (now_ms - manifest.as_of_ms) // 1000
    if max_age_s and age_s > max_age_s:
        raise SnapshotRefused(
            f"snapshot {manifest.snapshot_id} is {age_s} s old, at most {max_age_s} s are allowed",
            hint="export a fresh snapshot from the SCM",
        )


def check_reporting(nodes: Sequence[Any], min_percent: int) -> None:
    """Raise SnapshotRefused if fewer than `min_percent` percent of the expected datanodes have
    reported.

    A datanode counts only if it is reachable and has reported all its replicas since the SCM was
    started. A heartbeat without reports is not sufficient. Decommissioned datanodes, and datanodes
    in maintenance, are not expected. `nodes` are rows of the table `nodes/`.
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
            f"cannot use the snapshot: only {reported} of {len(expected)} nodes have reported "
            f"all replicas, {min_percent} % are required; missing: {shown}",
            hint="wait until the datanodes have reported, or lower --reporting-min-percent",
        )


def check_there(manifest: SnapshotManifest, snapshot: Snapshot) -> None:
    """Raise SnapshotRefused if a table is empty that must have rows.

    An SCM that has lost its state exports empty tables. Without replicas, all data would seem to be
    lost. Without containers, no problem would be found.
    """
    rows, fault = manifest.rows, ""
    if not rows["nodes"]:
        fault = "nodes/ is empty: no datanode has reported"
    elif rows["replicas"] and not rows["containers"]:
        fault = f"containers/ is empty, and replicas/ has {rows['replicas']} rows"
    elif rows["containers"] and not rows["replicas"]:
        is_holding = "state NOT IN ('DELETING', 'DELETED') AND key_count > 0"
        named = first_rows(snapshot["containers"].filter(is_holding), "container_id")
        shown = ", ".join(str(row["container_id"]) for row in named)
        fault = f"replicas/ is empty, and containers hold keys: first: {shown}" if named else ""
    if fault:
        raise SnapshotRefused(
            f"table {fault}",
            hint="wait until the datanodes have reported; check that the SCM has its state",
        )


def check_counts(manifest: SnapshotManifest, counts: dict[str, int]) -> None:
    """Raise SnapshotRefused if a table does not have the number of rows that the manifest
    states."""
    for name, count in counts.items():
        if count != manifest.rows[name]:
            raise SnapshotRefused(
                f"table {name}/ has {count} rows, its manifest says {manifest.rows[name]}",
                hint="export the snapshot again; it is incomplete",
            )


def checked_nodes(table: DataFrame, manifest: SnapshotManifest) -> list[dict[str, Any]]:
    """Return all rows of the table `nodes/`, sorted by datanode id.

    Raise SnapshotRefused if a row is invalid, or if a datanode occurs twice.
    """
    rows = [
        row.asDict()
        for row in table.selectExpr("*", f"{first_fault('nodes', manifest)} AS fault").collect()
    ]
    check_counts(manifest, {"nodes": len(rows)})
    faults = [row["fault"] for row in rows if row["fault"] is not None]
    if faults:
        refuse_fault(min(faults), {"nodes": table}, manifest)
    rows.sort(key=lambda row: row["datanode_id"])
    names = [row["datanode_id"] for row in rows]
    twice = sorted({name for name, after in pairwise(names) if name == after})
    if twice:
        shown = ", ".join(f"datanode_id {name}" for name in twice[:EXAMPLES_MAX])
        raise SnapshotRefused(f"table nodes/ lists twice: {shown}", hint=SCAN_AGAIN)
    return rows


def check_changed(nodes: Sequence[Any], changed_nodes: Iterable[str]) -> None:
    """Raise SnapshotRefused if one of the datanodes `changed_nodes` is not in the snapshot.

    Without this check, the result would be empty and report no problem.
    """
    strange = sorted(set(changed_nodes) - {node["datanode_id"] for node in nodes})
    if strange:
        raise SnapshotRefused(
            f"table nodes/ lists no datanode {', '.join(strange)}, which --changed-node names",
            hint="suture scm nodes lists the ids of datanodes",
        )


CONTAINER_CHECKS: Final = {
    "containers > 1": "table containers/: lists a container twice",
    **{
        f"{name} > {ROWS_PER_CONTAINER_MAX}": f"table {name}/: a container has at most "
        f"{ROWS_PER_CONTAINER_MAX} rows"
        for name in ("replicas", "pending_ops")
    },
    "containers + replicas = 0 AND pending_ops > 0": "table pending_ops/: row(s) whose container "
    "is in no other table",
}
"""Texts about faults of a container. The key is the SQL condition that detects the fault.

The condition is applied to the row of numbers of each container (see `frames.facts`).
"""


def refuse_containers(is_broken: str, facts: DataFrame) -> None:
    """Raise SnapshotRefused because containers fulfil the condition `is_broken`. The error lists
    some."""
    shown = ", ".join(
        f"container_id {row['container_id']}: {row['replicas']} replicas, {row['pending_ops']} "
        "pending_ops"
        for row in first_rows(facts.filter(is_broken), "container_id")
    )
    raise SnapshotRefused(f"{CONTAINER_CHECKS[is_broken]}; first: {shown}", hint=SCAN_AGAIN)
