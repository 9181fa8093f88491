"""Scores a run of the verification: compares its table `health` with the seeded faults."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from health.words import flag_names
from spark_verify.errors import SnapshotRefused
from spark_verify.runs import RUN, attempt_of, table_of
from spark_verify.storage import address_of, spark_path, storage_of

EXAMPLES_MAX = 10


def score(spark: SparkSession, snapshot: str, run: str) -> dict[str, Any]:
    """Return, for each kind of seeded fault, how many containers were classified exactly as seeded.

    A container without a seeded fault is a false positive if it has a flag or a mismatch class.
    """
    truth_address = f"{address_of(snapshot)}/truth"
    if not storage_of(truth_address, spark).listed():
        raise SnapshotRefused(
            f"{snapshot} has no truth/", hint="only `bench.verification.synthetic` writes it"
        )
    truth = spark.read.parquet(spark_path(truth_address))
    out, _, run_id = address_of(run).rpartition(f"/{RUN}")
    attempt = attempt_of(storage_of(out, spark), run_id)
    if attempt is None:
        raise SnapshotRefused(f"{run} is no finished run", hint="give its run_id=... directory")
    health = spark.read.parquet(spark_path(table_of(out, "health", run_id=run_id, attempt=attempt)))
    health = health.select("container_id", "flags", "checksum_class")
    is_seeded = f.col("fault") != ""
    no_mismatch = ~f.col("checksum_class").startswith("MISMATCH")
    right = (f.col("flags") == f.col("expected_flags")) & f.when(
        is_seeded, f.col("checksum_class") == f.col("expected_class")
    ).otherwise(no_mismatch)
    judged = truth.join(health, "container_id", "left").withColumn(
        "is_right", f.coalesce(right, f.lit(False))
    )
    rows = (
        judged.groupBy("fault")
        .agg(f.count(f.lit(1)).alias("seeded"), f.count_if("is_right").alias("right"))
        .orderBy("fault")
        .collect()
    )
    wrong = judged.filter(~f.col("is_right")).orderBy("container_id").limit(EXAMPLES_MAX)
    faults = {row["fault"]: row.asDict() for row in rows if row["fault"]}
    clean = next((row for row in rows if not row["fault"]), None)
    return {
        "seeded": sum(fault["seeded"] for fault in faults.values()),
        "right": sum(fault["right"] for fault in faults.values()),
        "false_positives": clean["seeded"] - clean["right"] if clean else 0,
        "faults": faults,
        "wrong": [
            {
                "container_id": row["container_id"],
                "fault": row["fault"],
                "expected": [*flag_names(row["expected_flags"]), row["expected_class"]],
                "found": [*flag_names(row["flags"] or 0), row["checksum_class"]],
            }
            for row in wrong.collect()
        ],
    }
