"""Rows of the plan that need no judge: scans of replicas whose root is not known and could be."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from health.plan.actions import SCAN_PRIORITY
from health.words import REACHABLE_HEALTHS, TREE_STATES
from spark_verify.results import Rows
from spark_verify.rows import ACTION_PLAN
from spark_verify.verdict_rows import Stamp, stamped
from spark_verify.violations import ColumnOf, Condition, is_null

REASON = "root not known"


def wants_scan(column: ColumnOf) -> Condition:
    """Whether a replica's root could be known and is not."""
    is_tree = column("state").isin(list(TREE_STATES)) | ~is_null(column("load_error"))
    return is_tree & is_null(column("root"))


def silent_nodes(nodes: Iterable[Any]) -> list[str]:
    """Return the nodes that cannot be told to scan; `nodes` are rows of `nodes/`."""
    return [node["datanode_id"] for node in nodes if node["health"] not in REACHABLE_HEALTHS]


def scan_plan(replicas: Rows, silent: Sequence[str], stamp: Stamp) -> Rows:
    """Return one row per replica that wants a scan, unless its node is silent: no shuffle."""
    if isinstance(replicas, DataFrame):
        return _scans_of_spark(replicas, silent, stamp)
    is_silent = pc.field("datanode_id").isin(pa.array(silent, pa.string()))
    rows = replicas.filter(wants_scan(pc.field) & ~is_silent)
    count = rows.num_rows
    nothing = pa.array([[]] * count, pa.list_(pa.string()))
    targets = rows["datanode_id"].combine_chunks()
    columns = {
        "container_id": rows["container_id"],
        "action": pa.repeat("scan", count),
        "priority": pa.repeat(SCAN_PRIORITY, count),
        "reason": pa.repeat(REASON, count),
        "sources": nothing,
        "doubts": nothing,
        "targets": pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), targets),
        "indexes": pa.array([[]] * count, pa.list_(pa.int32())),
        "copies": pa.repeat(0, count),
        "is_forced": pa.repeat(pa.scalar(False), count),
        "bytes_estimated": rows["used_bytes"],
    }
    return stamped("plan", columns, stamp)


def _scans_of_spark(replicas: DataFrame, silent: Sequence[str], stamp: Stamp) -> DataFrame:
    none = f.array()
    rows = replicas.filter(wants_scan(f.col) & ~f.col("datanode_id").isin(*silent)).select(
        "container_id",
        f.lit("scan").alias("action"),
        f.lit(SCAN_PRIORITY).alias("priority"),
        f.lit(REASON).alias("reason"),
        none.alias("sources"),
        none.alias("doubts"),
        f.array("datanode_id").alias("targets"),
        none.alias("indexes"),
        f.lit(0).alias("copies"),
        f.lit(False).alias("is_forced"),
        f.col("used_bytes").alias("bytes_estimated"),
        *[f.lit(value).alias(name) for name, value in stamp.columns().items()],
    )
    return rows.select(*[f.col(c.name).cast(c.dataType) for c in ACTION_PLAN.spark])
