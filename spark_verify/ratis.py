"""How many replicas of a Ratis container count, and whether they are enough.

Two counts: A without unhealthy replicas, B with them. The rule of thumb behind both: assume that
every pending add fails and every pending delete succeeds (Ozone's RatisContainerReplicaCount).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.case import DECOMMISSION, IN_SERVICE, MAINTENANCE
from spark_verify.replicas import adds, bcsid, count, deletes, deletes_of_healthy, is_unhealthy


def count_ratis(cases: DataFrame) -> DataFrame:
    """Add a struct `ratis` with the counts and what follows from them."""
    bad = is_bad

    def good(replica: Column) -> Column:
        return ~bad(replica)

    counts = f.struct(
        count("present", lambda r: good(r) & (r["op"] == IN_SERVICE)).alias("h"),
        count("present", lambda r: bad(r) & (r["op"] == IN_SERVICE)).alias("u"),
        count("present", lambda r: good(r) & (r["op"] == DECOMMISSION)).alias("d"),
        count("present", lambda r: bad(r) & (r["op"] == DECOMMISSION)).alias("ud"),
        count("present", lambda r: good(r) & (r["op"] == MAINTENANCE)).alias("m"),
        count("present", lambda r: bad(r) & (r["op"] == MAINTENANCE)).alias("um"),
        count(
            "present",
            lambda r: good(r) & (r["op"] == IN_SERVICE) & (r["state"] == f.col("state")),
        ).alias("match"),
        f.size(adds()).alias("adds"),
        f.size(deletes()).alias("deletes"),
        f.size(deletes_of_healthy()).alias("deletes_of_healthy"),
    )
    return cases.withColumn("n", counts).withColumn("ratis", _conclusions()).drop("n")


def is_bad(replica: Column) -> Column:
    """UNHEALTHY, or quasi-closed at another BCSID than the closed container's: stale."""
    stale = (
        (f.col("state") == "CLOSED")
        & (replica["state"] == "QUASI_CLOSED")
        & (bcsid(replica) != f.col("sequence_id"))
    )
    return is_unhealthy(replica) | stale


def _missing(available: Column, maintenance: Column) -> Column:
    """Replicas short of the factor; negative when there are too many."""
    healthy_min = f.least("replication_factor", "maintenance_min")
    delta = f.col("replication_factor") - available
    short = f.greatest(
        f.greatest(f.lit(0), healthy_min - available), f.greatest(f.lit(0), delta - maintenance)
    )
    return f.when(delta > 0, short).otherwise(delta)


def _conclusions() -> Column:
    n = f.col("n")
    missing_a = _missing(n["h"], n["m"])
    missing_b = _missing(n["h"] + n["u"], n["m"] + n["um"])
    need_a = missing_a + n["deletes_of_healthy"]
    need_b = missing_b + n["deletes"]
    healthy = n["h"] + n["d"] + n["m"]
    out_of_service = n["d"] + n["m"]
    return f.struct(
        healthy.alias("healthy"),
        (n["u"] + n["ud"] + n["um"]).alias("unhealthy"),
        n["h"].alias("in_service"),
        n["match"].alias("match"),
        (n["h"] - n["match"]).alias("mismatch"),
        missing_a.alias("missing"),
        need_a.alias("need"),
        (need_a - n["adds"]).alias("need_after"),
        need_b.alias("need_b"),
        (need_b - n["adds"]).alias("need_b_after"),
        (-missing_a).alias("excess"),
        (-need_a).alias("excess_after"),
        (-missing_b).alias("excess_b"),
        (-need_b).alias("excess_b_after"),
        f.greatest(f.lit(0), healthy - n["deletes_of_healthy"] - 1).alias("redundancy"),
        ((need_a > 0) & (need_a <= out_of_service)).alias("is_due_to_out_of_service"),
    )
