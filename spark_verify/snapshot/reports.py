"""Reads the reports of datanodes, and converts them to the tables of a snapshot.

    DIR/<datanode id>/<UTC time>-<start id>.parquet   the newest of each datanode

    reports ─┬─ rows of datanodes ─► nodes/
             └─ rows of replicas ──► replicas/ ─► containers/, unless a snapshot has them

A report expires after three times the interval at which its datanode reports. The datanode then
counts as dead, and its replicas are ignored. Reports do not contain the replication of containers,
the state and the health of datanodes, and the pending operations. If there is a snapshot, these
facts are taken from the snapshot.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, Final

import pyspark.sql.functions as f
from pyspark.sql import DataFrame, SparkSession

from health.tables.report_columns import FILE, OF_DATANODE, REPORT_VERSION, time_in
from spark_verify.errors import FAILURES, SnapshotRefused
from spark_verify.input_columns import AHEAD_MAX_MS, REPORT, TABLES
from spark_verify.options import VerifyOptions
from spark_verify.snapshot import tables
from spark_verify.snapshot.checks import checked_nodes
from spark_verify.snapshot.manifest import SnapshotManifest
from spark_verify.sql_text import local_rows, text, texts

WHAT: Final = "reports"
WRITE_AGAIN: Final = "wait for the next report of the datanode, or remove this file"
NONE: Final = "is report.export set on the datanodes, and to this directory?"
FROM_REPLICAS: Final = ("CLOSED", "QUASI_CLOSED", "CLOSING", "OPEN")
"""States of a container, in order of precedence.

The state of a container is the first of these states that any of its replicas has.
"""


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports of all datanodes of a cluster, converted to the tables of a snapshot."""

    manifest: SnapshotManifest
    snapshot: tables.Snapshot
    times: Mapping[str, int]
    """Time of the report of each datanode in milliseconds since 1970. Expired reports are
    omitted."""
    facts: dict[str, Any]
    """Facts about the reports that are recorded as inputs of the run."""
    silent: Mapping[str, str]
    """Path of the newest report of each datanode whose reports have all expired."""
    recorded: tuple[tables.Snapshot, SnapshotManifest] | None
    """The snapshot of the SCM and its manifest. None if no snapshot is given."""


def open_reports(
    spark: SparkSession,
    directory: str,
    recorded: tuple[str, SnapshotManifest] | None,
    options: VerifyOptions,
    now_ms: int,
) -> Reports:
    """Read the newest report of each datanode in `directory`. Raise SnapshotRefused if a file is
    invalid.

    `recorded` has the directory and the manifest of a snapshot of the SCM, or is None.
    """
    newest = _newest(directory, tables.read_below(spark, directory, WHAT, REPORT)[1])
    tables.check_files(spark, WHAT, {_format_value(file): file for file in newest.values()}, REPORT)
    datanodes = _datanodes(spark, newest, now_ms)
    times = {
        name: row["reported_at_ms"]
        for name, row in datanodes.items()
        if now_ms - row["reported_at_ms"] <= 1000 * (options.max_age_s or 3 * row["interval_s"])
    }
    silent = {name: _format_value(file) for name, file in newest.items() if name not in times}
    if not times:
        raise SnapshotRefused(
            f"cannot use the reports in {directory}: all are too old, first {min(silent.values())}",
            hint="check that the agents run, or accept older reports with --max-age",
        )
    key = f"{zlib.crc32(repr([sorted(newest.values()), sorted(times)]).encode()):08x}"
    as_of_ms, (cluster_id, *_) = max(times.values()), [r["cluster_id"] for r in datanodes.values()]
    manifest = SnapshotManifest(
        0, f"reports-{as_of_ms}-{key}", as_of_ms, 0, cluster_id, {"pending_ops": 0}
    )
    control, known = None, []
    if recorded is not None:
        directory, manifest = recorded
        if manifest.cluster_id != cluster_id:
            raise SnapshotRefused(
                f"{WHAT} are of cluster {cluster_id}, the snapshot is of {manifest.cluster_id}"
            )
        control = tables.open_snapshot(spark, directory), manifest
        known = checked_nodes(control[0]["nodes"], manifest)
    rows_told = tables.read_rows(spark, REPORT, *(newest[name] for name in times))
    replicas = _replicas(rows_told, manifest.snapshot_id)
    nodes = _nodes(datanodes, known, times, manifest.snapshot_id)
    rows = {"replicas": sum(datanodes[name]["replica_count"] for name in times)}
    rows["nodes"] = len(nodes)
    if control is None:
        rows["containers"] = replicas.select("container_id").distinct().count()
        containers = _containers(replicas, options)
        pending = local_rows(spark, TABLES["pending_ops"], [])
    else:
        # The control plane's health states are unknown here, because it derived them from other
        # replicas.
        unknown = f.expr("CAST(NULL AS STRING)")
        containers = control[0]["containers"].withColumn("health_state", unknown)
        pending = control[0]["pending_ops"]
    facts = {"key": key, "datanodes": len(times), "silent": sorted(silent.values())}
    return Reports(
        replace(manifest, rows=manifest.rows | rows),
        {
            "containers": containers,
            "replicas": replicas,
            "nodes": local_rows(spark, TABLES["nodes"], nodes),
            "pending_ops": pending,
        },
        times,
        facts | {"assumed": {} if control else options.assumed},
        silent,
        control,
    )


def _format_value(file: str) -> str:
    return "/".join(file.split("/")[-2:])


def _newest(directory: str, files: Iterable[str]) -> dict[str, str]:
    """Return the path of the newest report of each datanode.

    Raise SnapshotRefused if a file name is invalid, or if two datanodes have the same id.
    """
    by_name: dict[str, dict[str, list[str]]] = {}
    for file in files:
        place, datanode_id, name = file.rsplit("/", 2)
        if not FILE.fullmatch(name):
            raise SnapshotRefused(
                f"{WHAT}: {file} is not <datanode id>/<UTC time>-<start id>.parquet",
                hint="name a directory that has only reports",
            )
        by_name.setdefault(datanode_id, {}).setdefault(place, []).append(name)
    if not by_name:
        raise SnapshotRefused(f"{directory} has no report of a datanode", hint=NONE)
    newest = {}
    for datanode_id, places in by_name.items():
        (place, *others), names = places, sorted(chain(*places.values()))
        starts = [key for key, _ in groupby(names, lambda name: name.rpartition("-")[2])]
        if others or len(starts) != len(set(starts)):
            shown = ", ".join(f"{where}/{datanode_id}/" for where in sorted(places))
            raise SnapshotRefused(
                f"{WHAT}: two datanodes have the id {datanode_id}: {shown}",
                hint="check for a copied disk; stop one of the agents, and remove its reports",
            )
        newest[datanode_id] = f"{place}/{datanode_id}/{names[-1]}"
    return newest


def _datanodes(
    spark: SparkSession, newest: Mapping[str, str], now_ms: int
) -> dict[str, dict[str, Any]]:
    """Return the facts about each datanode that its report contains, by datanode id.

    Raise SnapshotRefused if a report is incomplete, or if it contradicts the name of its file.
    """
    own = ", ".join(c.name for c in OF_DATANODE)
    try:
        found = spark.sql(
            f"""
            SELECT element_at(path, -2) AS datanode_id, count(container_id) AS replicas,
                count_if(NOT datanode_id <=> element_at(path, -2)) AS others, count(*) AS rows,
                collect_set(coalesce(reported_at_ms, 0L)) AS times,
                first(CASE WHEN container_id IS NULL THEN struct({own}) END, true) AS own
            FROM {{rows}} GROUP BY path
            """,  # noqa: S608 -- our names
            rows=tables.read_rows(spark, REPORT, *newest.values()).selectExpr(
                "*", "split(_metadata.file_path, '/') AS path"
            ),
        ).collect()
    except FAILURES as error:
        raise tables.unreadable(WHAT, error) from error
    rows = {row["datanode_id"]: row.asDict(recursive=True) for row in found}
    for name, file in newest.items():
        fault = _fault(rows.get(name), time_in(file.rpartition("/")[2]), now_ms)
        if fault:
            raise SnapshotRefused(f"{WHAT}, {_format_value(file)}: {fault}", hint=WRITE_AGAIN)
    clusters = {row["own"]["cluster_id"]: name for name, row in rows.items()}
    if len(clusters) > 1:
        shown = ", ".join(
            f"{cluster} in {_format_value(newest[n])}" for cluster, n in clusters.items()
        )
        raise SnapshotRefused(f"{WHAT}: cluster_id is {shown}", hint="name reports of one cluster")
    return {
        name: row["own"] | {"datanode_id": name, "reported_at_ms": row["times"][0]}
        for name, row in rows.items()
    }


def _fault(row: Mapping[str, Any] | None, at_ms: int, now_ms: int) -> str:
    """Return the reason why a report is invalid. Return "" if the report is valid."""
    if row is None or row["own"] is None or row["rows"] != row["replicas"] + 1:
        return "container_id must be null in one row, that of the datanode"
    own, count = row["own"], row["replicas"]
    nulls = [c.name for c in OF_DATANODE if own[c.name] is None and c.name != "op_expiry_ms"]
    faults = {
        f"report_version is not {REPORT_VERSION}": own["report_version"] != REPORT_VERSION,
        f"{', '.join(nulls)} is null in the row of the datanode": nulls,
        "datanode_id is not that of the directory in all rows": row["others"],
        "reported_at_ms is not the time in the name in all rows": row["times"] != [at_ms],
        f"replica_count is {own['replica_count']}, of {count} rows": own["replica_count"] != count,
        "reported_at_ms is in the future": at_ms > now_ms + AHEAD_MAX_MS,
    }
    return next((what for what, is_so in faults.items() if is_so), "")


def _nodes(
    datanodes: Mapping[str, Mapping[str, Any]],
    known: Sequence[Mapping[str, Any]],
    times: Mapping[str, int],
    snapshot_id: str,
) -> list[list[Any]]:
    """Return the rows of the table `nodes/`.

    They are the rows of the snapshot, and one row for each other datanode that has a report.
    """
    rows = {row["datanode_id"]: dict(row) for row in known}
    for name, row in datanodes.items():
        own = {column: row.get(column, 0) for column in TABLES["nodes"].names}
        own["snapshot_id"] = snapshot_id
        own["health"] = "HEALTHY" if name in times else "DEAD"
        own["last_heartbeat_at_ms"] = row["reported_at_ms"]
        rows.setdefault(name, own)
    return [
        [(row | {"has_reported": name in times})[column] for column in TABLES["nodes"].names]
        for name, row in rows.items()
    ]


def _replicas(rows: DataFrame, snapshot_id: str) -> DataFrame:
    """Return the rows of the table `replicas/`."""
    constants = {"snapshot_id": text(snapshot_id), "settled_root": "CAST(NULL AS BIGINT)"}
    constants |= {"is_barred": "false", "is_hopeful": "false"}
    columns = (f"{constants.get(name, name)} AS {name}" for name in TABLES["replicas"].names)
    return rows.filter("container_id IS NOT NULL").selectExpr(*columns)


def _containers(replicas: DataFrame, options: VerifyOptions) -> DataFrame:
    """Return the rows of the table `containers/`, computed from the replicas.

    Facts that replicas do not contain get default values. The replication of all containers is
    taken from `options`.
    """
    data, parity = options.ec_data, options.ec_parity
    state = " ".join(f"WHEN bool_or(state = '{word}') THEN '{word}'" for word in FROM_REPLICAS)
    return replicas.sparkSession.sql(
        f"""
        SELECT first(snapshot_id) AS snapshot_id, container_id, max(replica_index) > 0 AS is_ec,
            if(is_ec, 'EC', 'RATIS') AS replication_type,
            if(is_ec, {data + parity}, {options.replication_factor}) AS replication_factor,
            if(is_ec, {data}, NULL) AS ec_data, if(is_ec, {parity}, NULL) AS ec_parity,
            CASE {state} ELSE 'CLOSED' END AS state, max(block_count) AS key_count,
            coalesce(max(bcsid) FILTER (WHERE state IN ({texts(FROM_REPLICAS)})), 0L)
                AS sequence_id,
            CAST(NULL AS BIGINT) AS acknowledged_bcsid, max(used_bytes) AS used_bytes,
            0L AS state_since_ms, bool_or(state = 'OPEN') AS pipeline_alive, false AS suppressed,
            false AS owes_deletes, CAST(NULL AS STRING) AS health_state
        FROM {{replicas}} GROUP BY container_id
        """,  # noqa: S608 -- our names and numbers
        replicas=replicas,
    ).drop("is_ec")
