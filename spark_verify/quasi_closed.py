"""Quasi-closed containers: may one be closed by force, is it stuck, what must be kept of it.

An origin is the datanode that took the writes. Until it is certain which origin holds the last
commit, every origin's data is kept (health rules 2.4, 2.5, 2.8).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.case import IN_SERVICE, MAINTENANCE
from spark_verify.replicas import bcsid, count, distinct, highest, is_unhealthy
from spark_verify.rows import REACHABLE_HEALTHS


def judge_quasi_closed(cases: DataFrame) -> DataFrame:
    """Add a struct `qc`: closable, stuck, per-origin shortage and excess, vulnerable replicas."""
    return (
        cases.withColumn("closable", _is_closable())
        .withColumn("origins", _origins())
        .withColumn("vulnerable", _vulnerable())
        .withColumn(
            "qc",
            f.struct(
                f.col("closable").alias("is_closable"),
                _is_stuck().alias("is_stuck"),
                f.exists("origins", lambda o: o["under"] > 0).alias("is_under"),
                f.exists("origins", lambda o: o["over"] > 0).alias("is_over"),
                f.col("origins").alias("origins"),
                f.col("vulnerable").alias("vulnerable"),
                _has_spare_unhealthy().alias("has_spare_unhealthy"),
            ),
        )
        .drop("closable", "origins", "vulnerable")
    )


def _is_closable() -> Column:
    quasi = f.filter("present", lambda r: r["state"] == "QUASI_CLOSED")
    unhealthy = f.filter("present", is_unhealthy)
    last = highest(quasi, lambda r: r["bcsid"], -1)
    seen = distinct(
        f.filter("present", lambda r: r["state"].isin("QUASI_CLOSED", "UNHEALTHY")),
        lambda r: r["origin_id"],
    )
    return (
        (last > -1)
        & (last >= highest(unhealthy, lambda r: r["bcsid"], -1))
        & (f.size(seen) >= f.col("replication_factor"))
    )


def _is_stuck() -> Column:
    everyone = distinct("present", lambda r: r["origin_id"])
    writers = distinct(
        f.filter("present", lambda r: r["state"].isin("QUASI_CLOSED", "OPEN")),
        lambda r: r["origin_id"],
    )
    return (
        (f.col("state") == "QUASI_CLOSED")
        & ~f.col("closable")
        & (f.size(everyone) != 1)
        & (f.size(writers) < f.col("replication_factor"))
    )


def _origins() -> Column:
    """Per origin: how many copies it should have, has in service, and lacks or has too many."""
    last = highest(f.filter("present", lambda r: ~is_unhealthy(r)), lambda r: bcsid(r), -1)

    def counted(origin: Column) -> Column:
        mine = f.filter("present", lambda r: r["origin_id"] == origin)
        is_best = f.exists(mine, lambda r: ~is_unhealthy(r) & (bcsid(r) == last))
        return f.struct(
            origin.alias("origin_id"),
            f.when(is_best, f.col("best_origin_copies"))
            .otherwise(f.col("other_origin_copies"))
            .alias("target"),
            count(mine, lambda r: r["op"] == IN_SERVICE).alias("online"),
            count(mine, lambda r: r["op"] == MAINTENANCE).alias("resting"),
        )

    def weighed(o: Column) -> Column:
        one = f.when(o["online"] == 0, 1).otherwise(0)
        need = f.when(o["resting"] > 0, one).otherwise(o["target"] - o["online"])
        return f.struct(
            o["origin_id"].alias("origin_id"),
            f.when(o["online"] < o["target"], need).otherwise(0).alias("under"),
            f.greatest(f.lit(0), o["online"] - o["target"]).alias("over"),
        )

    origins = f.array_sort(distinct("present", lambda r: r["origin_id"]))
    return f.transform(f.transform(origins, counted), weighed)


def _vulnerable() -> Column:
    """UNHEALTHY replicas that hold the last commit of an origin nobody else has in service."""
    at_last = f.filter(
        "present",
        lambda r: (r["bcsid"] == f.col("sequence_id")) & r["node_health"].isin(*REACHABLE_HEALTHS),
    )
    safe = f.filter(at_last, lambda r: r["op"] == IN_SERVICE)
    lonely = f.filter(
        at_last,
        lambda r: (
            is_unhealthy(r)
            & ~r["is_empty"]
            & r["is_loaded"]
            & ~f.exists(safe, lambda s: s["origin_id"] == r["origin_id"])
        ),
    )
    none = f.filter("present", lambda _: f.lit(False))
    return f.when(f.exists("present", lambda r: ~is_unhealthy(r)), lonely).otherwise(none)


def _has_spare_unhealthy() -> Column:
    """Whether an UNHEALTHY replica may go without its origin going with it."""
    safe = f.filter(
        "present",
        lambda r: (r["op"] == IN_SERVICE) & r["node_health"].isin(*REACHABLE_HEALTHS),
    )
    bad = f.filter(safe, is_unhealthy)
    return f.exists(
        bad,
        lambda r: f.exists(
            safe,
            lambda s: (s["origin_id"] == r["origin_id"]) & (s["datanode_id"] != r["datanode_id"]),
        ),
    )
