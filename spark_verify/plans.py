"""The tables of a plan: what the judge wants done, as rows that the control plane may act on.

A plan is advice about an instant that is past: the control plane checks every row on live state and
drops rows whose time is over. Nothing here chooses a target or counts a budget.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from health.plan.actions import SCAN_PRIORITY
from health.words import REACHABLE_HEALTHS, TREE_STATES
from spark_verify.rows import ACTION_PLAN, RECONCILE_PLAN
from spark_verify.snapshot import Snapshot

PLAN_LIFE_MS: Final = 30 * 60 * 1000
"""After it the control plane must not act: by then the cluster has reported again."""


def reconcile_plan(judged: DataFrame, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return the rows that `reconcile_plan/` is chosen from."""
    countable = f.filter("replicas", lambda r: r["is_countable"])
    shown = ("datanode_id", "state", "root", "tree_algorithm")
    replicas = f.transform(countable, lambda r: f.struct(*[r[n].alias(n) for n in shown]))
    rows = judged.filter("is_wanted").select(
        "container_id",
        f.lit("reconcile").alias("action"),
        f.col("remaining_redundancy").alias("priority"),
        "reason",
        "checksum_class",
        replicas.alias("replicas"),
        "bytes_estimated",
    )
    return _stamped(rows, snapshot_id, run_id, as_of_ms).select(*RECONCILE_PLAN.fieldNames())


def action_plan(judged: DataFrame, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return the rows of `plan/` for judged containers, most urgent first within each file."""
    rows = judged.select("container_id", f.explode("actions").alias("row"))
    rows = rows.select("container_id", "row.*")
    stamped = _stamped(rows, snapshot_id, run_id, as_of_ms).select(*ACTION_PLAN.fieldNames())
    return stamped.sortWithinPartitions("priority", "container_id", "action")


def scan_plan(snapshot: Snapshot, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return one row per replica whose root is not known though it could be: no shuffle."""
    answering = snapshot.nodes.filter(f.col("health").isin(*REACHABLE_HEALTHS))
    is_tree = f.col("state").isin(*TREE_STATES) | f.col("load_error").isNotNull()
    unscanned = snapshot.replicas.filter(is_tree & f.col("root").isNull())
    none = f.array()
    rows = unscanned.join(f.broadcast(answering.select("datanode_id")), "datanode_id").select(
        "container_id",
        f.lit("scan").alias("action"),
        f.lit(SCAN_PRIORITY).alias("priority"),
        f.lit("root not known").alias("reason"),
        none.cast("array<string>").alias("sources"),
        none.cast("array<string>").alias("doubts"),
        f.array("datanode_id").alias("targets"),
        none.cast("array<int>").alias("indexes"),
        f.lit(0).alias("copies"),
        f.lit(False).alias("is_forced"),
        f.col("used_bytes").alias("bytes_estimated"),
    )
    return _stamped(rows, snapshot_id, run_id, as_of_ms).select(*ACTION_PLAN.fieldNames())


def replica_classes(judged: DataFrame, *, snapshot_id: str) -> DataFrame:
    """Return one row per replica of every judged container: all that the numbers did not clear."""
    replicas = judged.select("container_id", "checksum_class", f.explode("replicas").alias("r"))
    shown = (
        *("datanode_id", "replica_index", "volume_id", "state", "root", "tree_algorithm"),
        *("finding_count", "is_reachable", "role", "is_minority"),
    )
    return replicas.select(
        "container_id",
        *[f.col(f"r.{name}") for name in shown],
        "checksum_class",
        f.lit(snapshot_id).alias("snapshot_id"),
    )


def _stamped(rows: DataFrame, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Add what every row of a plan carries."""
    return rows.withColumns(
        {
            "snapshot_id": f.lit(snapshot_id),
            "run_id": f.lit(run_id),
            "as_of_ms": f.lit(as_of_ms).cast("long"),
            "expires_at_ms": f.lit(as_of_ms + PLAN_LIFE_MS).cast("long"),
        }
    )
