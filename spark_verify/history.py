"""What the run before this one said: the trend, and divergences that no repair moves.

When all replicas of a container are healthy by their own reading and yet differ, a reconcile
cannot help: it would be ordered again at every run. So a container whose roots are the same as when
it was last planned is planned ever more rarely: at its 1st, 2nd, 3rd, 5th, 9th ... run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_verify.manifest import Manifest
from spark_verify.results import Rows
from spark_verify.rows import DIVERGENT, RESULT_VERSION
from spark_verify.runs import read_summary


@dataclass(frozen=True, slots=True)
class Previous:
    """A finished run of an earlier instant of the same cluster."""

    directory: Path
    summary: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return what a trend is drawn from."""
        names = ("run_id", "as_of_ms", "containers", "flagged", "flags", "checksum_classes")
        return {name: self.summary[name] for name in names}


def previous_run(out: Path, manifest: Manifest, run_id: str) -> Previous | None:
    """Return the latest finished run before this snapshot's instant; None when there is none."""
    found = []
    for success in out.glob("run_id=*/_SUCCESS"):
        summary = read_summary(success.parent)
        if summary is None or _version(summary) != RESULT_VERSION:
            continue  # damaged, or of another version: nothing follows from it
        is_same = summary["cluster_id"] == manifest.cluster_id and not summary["changed_nodes"]
        if is_same and summary["as_of_ms"] < manifest.as_of_ms and summary["run_id"] != run_id:
            found.append(Previous(success.parent, summary))
    return max(found, key=lambda p: (p.summary["as_of_ms"], p.summary["run_id"]), default=None)


def _version(summary: dict[str, Any]) -> object:
    inputs = summary.get("inputs")
    return inputs.get("result_version") if isinstance(inputs, dict) else None


def with_attempts(plan: Rows, previous: Previous, spark: SparkSession) -> Rows:
    """Fill in `attempts`, runs that found the same roots before, and `is_backed_off`."""
    if isinstance(plan, pa.Table):
        joined = with_attempts(spark.createDataFrame(plan, DIVERGENT.spark), previous, spark)
        return joined.toArrow().cast(plan.schema)
    before = spark.read.parquet(str(previous.directory / "divergent")).select(
        "container_id", f.col("replicas").alias("before"), f.col("attempts").alias("tried")
    )
    joined = plan.drop("attempts", "is_backed_off").join(before, "container_id", "left")
    is_same = f.coalesce(f.col("before") == f.col("replicas"), f.lit(False))
    attempts = f.when(is_same, f.col("tried") + 1).otherwise(0)
    counted = joined.withColumn("attempts", attempts)
    return counted.withColumn("is_backed_off", f.bit_count("attempts") > 1).select(*plan.columns)
