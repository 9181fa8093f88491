"""Whether the replicas stand on enough racks: Ozone's rack-aware and rack-scatter policies.

All replicas enter, also unhealthy ones and those on leaving nodes. Copies beyond the factor widen
what a rack may hold, so neither over-replication nor a leaving node looks mis-replicated.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.replicas import count, deletes, distinct


def judge_placement(cases: DataFrame) -> DataFrame:
    """Add is_misplaced and is_misplaced_after (all pending ops done)."""
    now = f.transform("present", lambda r: r["rack"])
    leaving = f.transform(deletes(), lambda o: o["datanode_id"])
    staying = f.transform(
        f.filter("present", lambda r: ~f.array_contains(leaving, r["datanode_id"])),
        lambda r: r["rack"],
    )
    arriving = f.transform(
        f.filter("ops", lambda o: (o["op"] == "ADD") & o["rack"].isNotNull()), lambda o: o["rack"]
    )
    return cases.withColumns(
        {"racks": now, "racks_after": f.concat(staying, arriving)}
    ).withColumns(
        {
            "is_misplaced": _is_misplaced(f.col("racks")),
            "is_misplaced_after": _is_misplaced(f.col("racks_after")),
        }
    )


def _is_misplaced(racks: Column) -> Column:
    factor = f.col("replication_factor")
    is_ec = f.col("replication_type") == "EC"
    cluster = f.col("rack_count")
    required = f.least(cluster, f.when(is_ec, factor).otherwise(2))
    scatter = f.ceil(factor / f.greatest(required, f.lit(1))).cast("int")
    aware = f.when(required == 1, factor).otherwise(f.greatest(factor - 1, f.lit(1)))
    extra = f.greatest(f.lit(0), f.size(racks) - factor)
    per_rack_max = f.when(is_ec, scatter).otherwise(aware) + extra
    distinct_racks = distinct(racks, lambda rack: rack)
    crowded = f.exists(
        distinct_racks, lambda rack: count(racks, lambda other: other == rack) > per_rack_max
    )
    short = f.size(distinct_racks) < required
    trivial = (factor == 1) | (required <= 1)
    return f.when(trivial, f.size(racks) == 0).otherwise(short | crowded)
