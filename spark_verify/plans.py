"""Rows of the plan that need no judge: scans of replicas whose root is not known and could be."""

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from health.plan.actions import SCAN_PRIORITY
from health.words import REACHABLE_HEALTHS, TREE_STATES
from spark_verify.rows import ACTION_PLAN
from spark_verify.verdict_rows import Stamp


def wants_scan() -> Column:
    """Whether a replica's root could be known and is not."""
    is_tree = f.col("state").isin(*TREE_STATES) | f.col("load_error").isNotNull()
    return is_tree & f.col("root").isNull()


def silent_nodes(nodes: Iterable[Any]) -> list[str]:
    """Return the nodes that cannot be told to scan; `nodes` are rows of `nodes/`."""
    return [node["datanode_id"] for node in nodes if node["health"] not in REACHABLE_HEALTHS]


def scan_plan(replicas: DataFrame, silent: Sequence[str], stamp: Stamp) -> DataFrame:
    """Return one row per replica that wants a scan, unless its node is silent: no shuffle."""
    none = f.array()
    rows = replicas.filter(wants_scan() & ~f.col("datanode_id").isin(*silent)).select(
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
        *[f.lit(value).alias(name) for name, value in stamp.columns().items()],
    )
    return rows.select(*[f.col(c.name).cast(c.dataType) for c in ACTION_PLAN.spark])
