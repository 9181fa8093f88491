"""The run in numbers: what summary.json says, and what the report draws."""

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark_verify.compare import CLASSES
from spark_verify.rows import CONTAINER_STATES
from spark_verify.snapshot import Snapshot

SAMPLE_MAX: Final = 100
"""Container ids shown per class, as in Ozone's report."""

CLEAN: Final = 0
WORK_TO_DO: Final = 2
DATA_AT_RISK: Final = 3


def summarise(
    snapshot: Snapshot, judged: DataFrame, plan: DataFrame, *, run_id: str
) -> dict[str, Any]:
    """Return every number of the run as plain JSON values."""
    manifest = snapshot.manifest
    states = _counts(judged.filter("is_known"), "state")
    classes = _counts(judged.filter("is_known"), "checksum_class")
    at_risk = _sample(judged.filter("is_at_risk"))
    planned = plan.agg(f.count(f.lit(1)).alias("rows"), f.sum("bytes_estimated").alias("b")).first()
    assert planned is not None, "an aggregate without groups has one row"
    summary: dict[str, Any] = {
        "run_id": run_id,
        "snapshot_id": manifest.snapshot_id,
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "as_of_ms": manifest.as_of_ms,
        "rows": manifest.rows,
        "states": {name: states.get(name, 0) for name in CONTAINER_STATES},
        "checksum_classes": {name: classes.get(name, 0) for name in CLASSES},
        "eligibility": _counts(judged.filter("is_known"), "eligibility"),
        "samples": {
            name: _sample(judged.filter(f.col("is_known") & (f.col("checksum_class") == name)))
            for name in CLASSES
            if classes.get(name) and name != "MATCH"
        },
        "unknown_containers": _sample(judged.filter("NOT is_known")),
        "tombstones_differ": _sample(judged.filter("tombstones_differ")),
        "unreachable_different": _sample(judged.filter("is_unreachable_different")),
        "at_risk": at_risk,
        "plan": {"reconcile": planned["rows"], "bytes_estimated": planned["b"] or 0},
        "minority": minority_by_volume(judged),
    }
    summary["exit_code"] = exit_code(summary)
    return summary


def exit_code(summary: dict[str, Any]) -> int:
    """Return the process exit code that the numbers ask for."""
    if summary["at_risk"]["count"]:
        return DATA_AT_RISK
    return WORK_TO_DO if summary["plan"]["reconcile"] else CLEAN


def minority_by_volume(judged: DataFrame) -> list[dict[str, Any]]:
    """Return where the replicas that lost the vote lie, most of them first."""
    lost = f.filter("known", lambda r: f.array_contains("minority", r["datanode_id"]))
    rows = (
        judged.filter(f.size("minority") > 0)
        .select(f.explode(lost).alias("r"))
        .groupBy("r.datanode_id", "r.volume_id")
        .count()
        .orderBy(f.desc("count"), "datanode_id", "volume_id")
        .limit(SAMPLE_MAX)
        .collect()
    )
    return [
        {"datanode_id": row["datanode_id"], "volume_id": row["volume_id"], "count": row["count"]}
        for row in rows
    ]


def _counts(rows: DataFrame, column: str) -> dict[str, int]:
    found = rows.groupBy(column).count().orderBy(column).collect()
    return {row[column]: row["count"] for row in found}


def _sample(rows: DataFrame) -> dict[str, Any]:
    """Return how many rows there are and the first ids of them."""
    ids = rows.select("container_id").orderBy("container_id").limit(SAMPLE_MAX).collect()
    count = len(ids) if len(ids) < SAMPLE_MAX else rows.count()
    return {"count": count, "container_ids": [row["container_id"] for row in ids]}
