"""Reading a snapshot: believed only when it is whole; otherwise refused with the rows named.

    <dir>/manifest.json
    <dir>/{containers,replicas,nodes,pending_ops}/*.parquet

What one row alone can violate is checked here; what needs a container's rows
side by side (a duplicate replica, an index outside the code) the judge tells (`health.batch`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from health.words import REACHABLE_HEALTHS
from spark_verify.errors import SnapshotRefused
from spark_verify.manifest import SCAN_AGAIN, Manifest
from spark_verify.rows import AHEAD_MAX_MS, ROWS_PER_CONTAINER_MAX, TABLES, spark_schema
from spark_verify.violations import impossible, numeric_violations, violations

CLUSTERED: Final = ("containers", "replicas")
"""Tables that a clustered snapshot keeps in buckets."""

EXAMPLES_MAX: Final = 5
"""Rows named in a refusal: enough to find the cause, few enough to read."""

REASON_CHARACTERS_MAX: Final = 1500
"""Of what a library says."""

_TYPE_NAMES: Final = {"int64": "bigint", "int32": "int", "bool": "boolean"}
"""What Spark calls the types that Arrow calls otherwise."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One instant of the cluster, as four tables."""

    manifest: Manifest
    containers: DataFrame
    replicas: DataFrame
    nodes: DataFrame
    pending_ops: DataFrame

    def table(self, name: str) -> DataFrame:
        """Return a table by its name in `rows.TABLES`."""
        return {
            "containers": self.containers,
            "replicas": self.replicas,
            "nodes": self.nodes,
            "pending_ops": self.pending_ops,
        }[name]


def open_snapshot(spark: SparkSession, directory: str, manifest: Manifest) -> Snapshot:
    """Return the tables, their columns and types checked, their rows not yet read."""
    tables = {name: _open_table(spark, directory, name, manifest) for name in TABLES}
    return Snapshot(manifest=manifest, **tables)


def _open_table(spark: SparkSession, directory: str, name: str, manifest: Manifest) -> DataFrame:
    path = str(Path(directory) / name)
    columns = TABLES[name]
    if not Path(path).is_dir():
        raise SnapshotRefused(f"{directory} has no table {name}/", hint=SCAN_AGAIN)
    check_count(manifest, name, _checked_files(Path(path), name))
    if manifest.buckets and name in CLUSTERED:
        return _bucketed(spark, Path(path).resolve(), name, manifest.buckets)
    return spark.read.schema(spark_schema(columns)).parquet(path).select(*[c.name for c in columns])


def _checked_files(path: Path, name: str) -> int:
    """Return how many rows the files of a table have; refuse it when any of them lacks a column or
    has it with another type.

    Every file is asked: one that an older release wrote must not hide among others.
    """
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] not in "._")
    if not files:
        raise SnapshotRefused(f"table {name}/ cannot be read: it has no file", hint=SCAN_AGAIN)
    rows = 0
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                rows += opened.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            reason = _reason(str(error))
            raise SnapshotRefused(
                f"table {name}/ cannot be read: {file.name}: {reason}", hint=SCAN_AGAIN
            ) from None
        types = {field.name: _TYPE_NAMES.get(str(field.type), str(field.type)) for field in schema}
        faults = [f"column {c.name} is missing" for c in TABLES[name] if c.name not in types]
        faults += [
            f"column {c.name} is {types[c.name]}, must be {c.type.simpleString()}"
            for c in TABLES[name]
            if c.name in types and types[c.name] != c.type.simpleString()
        ]
        if faults:
            raise SnapshotRefused(
                f"table {name}/, {file.name}: {'; '.join(faults)}", hint=SCAN_AGAIN
            )
    return rows


def _bucketed(spark: SparkSession, path: Path, name: str, buckets: int) -> DataFrame:
    """Tell Spark how the files lie; the table is dropped from the catalog by `close_snapshot`."""
    spark.conf.set("spark.sql.sources.bucketing.autoBucketedScan.enabled", "false")
    # With one file a bucket, rows arrive in order: groups end one after the other, nothing is
    # hashed and nothing sorted.
    spark.conf.set("spark.sql.legacy.bucketedTableScan.outputOrdering", "true")
    spark.conf.set("spark.sql.execution.replaceHashWithSortAgg", "true")
    columns = ", ".join(f"{c.name} {c.type.simpleString()}" for c in TABLES[name])
    spark.sql(f"DROP TABLE IF EXISTS {_table_name(name)}")
    location = str(path).replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(
        f"CREATE TABLE {_table_name(name)} ({columns}) USING parquet "
        f"CLUSTERED BY (container_id) SORTED BY (container_id) INTO {buckets} BUCKETS "
        f"LOCATION '{location}'"
    )
    return spark.table(_table_name(name))


def _table_name(name: str) -> str:
    return f"suture_snapshot_{name}"


def close_snapshot(spark: SparkSession, manifest: Manifest) -> None:
    """Forget the tables that `open_snapshot` made known; their files stay."""
    for name in CLUSTERED if manifest.buckets else ():
        spark.sql(f"DROP TABLE IF EXISTS {_table_name(name)}")


def _reason(text: str) -> str:
    """Return the beginning of a library's message, on one line."""
    return " ".join(text.split())[:REASON_CHARACTERS_MAX]


def check_rows(
    snapshot: Snapshot, names: Iterable[str] = TABLES, *, is_proven: bool = False
) -> dict[str, int]:
    """Return how many rows each table has, all counted in one pass.

    Raises SnapshotRefused when any single row of the tables is impossible. Of rows that
    `prove_rows` let pass (`is_proven`) only what it left open is asked.
    """
    rules = {
        name: violations(name, snapshot.manifest, f.col, is_proven=is_proven) for name in names
    }
    counts = [
        snapshot.table(name).agg(
            f.lit(name).alias("name"),
            f.count(f.lit(1)).alias("rows"),
            f.array(*[f.count_if(wrong) for _, wrong in own]).cast("array<long>").alias("wrong"),
        )
        for name, own in rules.items()
    ]
    found = {row["name"]: row for row in reduce(DataFrame.unionByName, counts).collect()}
    for name, own in rules.items():
        for (what, wrong), count in zip(own, found[name]["wrong"], strict=True):
            if count:
                raise SnapshotRefused(
                    f"table {name}/: {count} row(s) where {what}; "
                    f"first: {_examples(snapshot.table(name).filter(wrong), name)}",
                    hint=SCAN_AGAIN,
                )
    return {name: found[name]["rows"] for name in rules}


def whole_table(snapshot: Snapshot, name: str) -> pa.Table:
    """Return all rows of a table, checked one by one."""
    manifest = snapshot.manifest
    if not manifest.rows[name]:  # nor has any of its files one: `open_snapshot` has looked
        return to_arrow_schema(spark_schema(TABLES[name])).empty_table()
    table: pa.Table = snapshot.table(name).toArrow()
    if impossible(name, table, manifest, is_proven=False):
        refuse_rows(snapshot, (name,), is_proven=False)
    check_count(manifest, name, table.num_rows)
    return table


def refuse_rows(snapshot: Snapshot, names: Collection[str], *, is_proven: bool) -> NoReturn:
    """Refuse the snapshot for its impossible rows, by name."""
    check_rows(snapshot, names, is_proven=is_proven)
    raise SnapshotRefused(
        f"tables {', '.join(names)} changed while they were read", hint=SCAN_AGAIN
    )


def prove_rows(snapshot: Snapshot, names: Iterable[str]) -> None:
    """Refuse the snapshot when a row has a null, a negative number or another snapshot's id.

    The condition is left to Parquet: from the statistics of its columns it proves for most files
    that no row can meet it, and then reads none of them. Words and codes are not asked here.
    """
    for name in names:
        wrong = f.lit(False)
        for _, condition in numeric_violations(name, snapshot.manifest, f.col):
            wrong = wrong | condition  # a bare comparison: what is wrapped is not pushed down
        if not snapshot.table(name).filter(wrong).select(f.lit(1)).isEmpty():
            check_rows(snapshot, (name,))


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


def check_there(snapshot: Snapshot) -> None:
    """Refuse the snapshot when a whole table is empty that cannot be.

    Without nodes nobody reported anything. Without a replica, everything looks lost; without a
    container, nothing looks wrong. A control plane that has just lost its state says so.
    """
    rows = snapshot.manifest.rows
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
    if rows["replicas"]:
        return
    going = f.col("state").isin("DELETING", "DELETED")
    lost = snapshot.containers.filter(~going & (f.col("key_count") > 0)).limit(EXAMPLES_MAX)
    named = [str(row["container_id"]) for row in lost.select("container_id").collect()]
    if named:
        raise SnapshotRefused(
            "table replicas/ is empty, and containers hold keys: first: "
            + ", ".join(sorted(named)),
            hint="wait until the datanodes have reported what they hold",
        )


def check_crowds(snapshot: Snapshot, names: Iterable[str]) -> None:
    """Refuse the snapshot when a container has more rows in one of these tables than can be."""
    for name in names:
        if snapshot.manifest.rows[name] <= ROWS_PER_CONTAINER_MAX:
            continue
        sizes = snapshot.table(name).groupBy("container_id").count()
        crowds = sizes.filter(f.col("count") > ROWS_PER_CONTAINER_MAX).orderBy("container_id")
        named = [
            f"(container_id {row['container_id']}: {row['count']} rows)"
            for row in crowds.limit(EXAMPLES_MAX).collect()
        ]
        if named:
            raise SnapshotRefused(
                f"table {name}/: a container has at most {ROWS_PER_CONTAINER_MAX} rows; "
                f"first: {', '.join(named)}",
                hint=SCAN_AGAIN,
            )


def check_pending(snapshot: Snapshot) -> None:
    """Refuse the snapshot when a pending op is about a container or a datanode that is not there.

    A copy that is on its way to nobody would count as one that comes.
    """
    if not snapshot.manifest.rows["pending_ops"]:
        return
    nodes = f.broadcast(snapshot.nodes.select("datanode_id"))
    ids = f.broadcast(snapshot.pending_ops.select("container_id").distinct())
    tables = (snapshot.containers, snapshot.replicas)
    known = [
        table.join(ids, "container_id", "left_semi").select("container_id") for table in tables
    ]
    strange = (
        ("datanode", snapshot.pending_ops.join(nodes, "datanode_id", "left_anti")),
        (
            "container",
            snapshot.pending_ops.join(known[0].union(known[1]), "container_id", "left_anti"),
        ),
    )
    for what, ops in strange:
        if not ops.isEmpty():
            raise SnapshotRefused(
                f"table pending_ops/: row(s) whose {what} is in no other table; "
                f"first: {_examples(ops, 'pending_ops')}",
                hint=SCAN_AGAIN,
            )


def checked_ops(snapshot: Snapshot, nodes: Sequence[Any]) -> pa.Table:
    """Return the pending ops. Raises SnapshotRefused when a row is impossible, a container has too
    many, or one is about a datanode that is not there."""
    ops = whole_table(snapshot, "pending_ops")
    sizes = Counter(ops["container_id"].to_pylist()).values()
    if max(sizes, default=0) > ROWS_PER_CONTAINER_MAX:
        check_crowds(snapshot, ("pending_ops",))
    known = {node["datanode_id"] for node in nodes}
    if not known.issuperset(ops["datanode_id"].to_pylist()):
        check_pending(snapshot)
    return ops


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


def _examples(wrong: DataFrame, name: str) -> str:
    keys = {"containers": ["container_id"], "nodes": ["datanode_id"]}.get(
        name, ["container_id", "datanode_id"]
    )
    rows = wrong.limit(EXAMPLES_MAX).collect()
    return ", ".join(
        "(" + ", ".join(f"{key} {row[key]}" for key in keys) + f": {_brief(row.asDict())})"
        for row in rows
    )


def _brief(row: dict[str, object]) -> str:
    shown = ("state", "replica_index", "health", "op_state", "op", "replication_type")
    return ", ".join(f"{name}={row[name]}" for name in shown if name in row)
