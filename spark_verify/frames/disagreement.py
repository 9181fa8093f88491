"""Compares the replicas that datanodes report with the replicas that the SCM has recorded."""

from typing import Final

import pyspark.sql.functions as f
from pyspark.sql import DataFrame

from spark_verify.input_columns import TABLES, schema_of
from spark_verify.result_tables import COMPARED
from spark_verify.snapshot.reports import Reports
from spark_verify.sql_text import local_rows, texts

KEY: Final = ("container_id", "datanode_id")
REPORT_TIME: Final = schema_of("datanode_id string, report_ms long")
ROOTS: Final = ("root", "tombstones_checksum")
GROWING: Final = ("bcsid", "block_count", "used_bytes")
"""Columns that are not compared while clients write to a replica, because their values change."""

WRITABLE: Final = "('OPEN', 'CLOSING', 'RECOVERING')"
FROM_SNAPSHOT: Final = ("settled_root", "is_barred", "is_hopeful")


def compared(recorded: DataFrame, reported: DataFrame) -> DataFrame:
    """Join the recorded and the reported replicas. Return one row for each replica.

    A row has the structs `recorded` and `reported`. A struct is null if its table lacks the
    replica.
    """
    own = ", ".join(name for name in TABLES["replicas"].names if name not in KEY)
    left, right = (
        table.selectExpr(*KEY, f"struct({own}) AS {name}")
        for table, name in ((recorded, "recorded"), (reported, "reported"))
    )
    return left.join(right, list(KEY), "full")


def reported(both: DataFrame) -> DataFrame:
    """Return the reported replicas as rows of the table `replicas/`.

    Columns that reports do not have are taken from the snapshot.
    """
    own = {name: f"reported.{name}" for name in TABLES["replicas"].names}
    own |= {name: f"coalesce(recorded.{name}, reported.{name})" for name in FROM_SNAPSHOT}
    own |= {name: name for name in KEY}
    return both.filter("reported IS NOT NULL").selectExpr(*(f"{v} AS {k}" for k, v in own.items()))


def disagreement(both: DataFrame, reports: Reports) -> DataFrame:
    """Return the rows of the table `disagreement/`: replicas whose report and record differ.

    Datanodes whose reports are too old are omitted.
    """
    spark, as_of_ms = both.sparkSession, reports.manifest.as_of_ms
    times = local_rows(spark, REPORT_TIME, list(reports.times.items()))
    names = COMPARED.names
    is_written = f"recorded.state IN {WRITABLE} AND reported.state IN {WRITABLE}"
    differs = ", ".join(
        f"if(NOT (recorded.{name} <=> reported.{name})"
        f"{f' AND NOT ({is_written})' if name in GROWING else ''}, '{name}', NULL)"
        for name in names
    )
    sides = (
        f"CASE WHEN {side} IS NOT NULL THEN struct({', '.join(f'{side}.{n}' for n in names)}) END "
        f"AS {side}"
        for side in ("recorded", "reported")
    )
    kind = f"""
        CASE WHEN reported IS NULL THEN 'missing' WHEN recorded IS NULL THEN 'stray'
        WHEN recorded.tree_algorithm = reported.tree_algorithm
            AND arrays_overlap(differs, array({texts(ROOTS)})) THEN 'other_root'
        WHEN size(differs) > 0 THEN 'stale' END"""
    rows = both.join(f.broadcast(times), "datanode_id").selectExpr(
        "*",
        f"CASE WHEN recorded IS NULL OR reported IS NULL THEN CAST(array() AS ARRAY<STRING>) "
        f"ELSE array_compact(array({differs})) END AS differs",
    )
    return (
        rows.selectExpr("*", f"{kind} AS kind")
        .filter("kind IS NOT NULL")
        .selectExpr(
            *(*KEY, "kind", "differs", *sides),
            "recorded.reported_at_ms AS recorded_at_ms",
            "report_ms AS reported_at_ms",
            f"coalesce(recorded.reported_at_ms > report_ms, false) OR report_ms > "
            f"{as_of_ms}L AS is_later",
        )
        .sort(*KEY)
    )
