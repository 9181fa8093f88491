"""Which indexes of an EC container are there, and whether they are enough.

UNHEALTHY replicas are put aside: they never count for or against, except that data on them keeps
a container from being MISSING (Ozone's ECContainerReplicaCount).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.case import DECOMMISSION, IN_SERVICE, MAINTENANCE
from spark_verify.replicas import Test, adds, count, deletes_of_healthy, is_unhealthy


def count_ec(cases: DataFrame) -> DataFrame:
    """Add a struct `ec` with index sets and what follows from them; null for other types."""
    is_ec = f.col("replication_type") == "EC"
    width = f.coalesce(f.col("ec_data") + f.col("ec_parity"), f.lit(1))
    gone = f.transform(deletes_of_healthy(), lambda o: o["replica_index"])
    sets = f.struct(
        f.sequence(f.lit(1), width).alias("all"),
        gone.alias("gone"),
        _indexes(lambda r: ~is_unhealthy(r) & (r["op"] == IN_SERVICE)).alias("in_service"),
        _distinct(lambda r: ~is_unhealthy(r) & (r["op"] == DECOMMISSION)).alias("decommission"),
        _distinct(lambda r: ~is_unhealthy(r) & (r["op"] == MAINTENANCE)).alias("maintenance"),
        _distinct(is_unhealthy).alias("unhealthy"),
        _distinct(lambda r: r["state"] == "CLOSED").alias("closed"),
        f.array_distinct(f.transform(adds(), lambda o: o["replica_index"])).alias("adds"),
    )
    return (
        cases.withColumn("i", f.when(is_ec, sets))
        .withColumn("online", _online())
        .withColumn("ec", f.when(is_ec, _conclusions()))
        .drop("i", "online")
    )


def _indexes(test: Test) -> Column:
    return f.transform(f.filter("present", test), lambda r: r["replica_index"])


def _distinct(test: Test) -> Column:
    return f.array_distinct(_indexes(test))


def _copies(array: Column, index: Column) -> Column:
    return count(array, lambda i: i == index)


def _online() -> Column:
    """The indexes that stay in service after all pending deletes."""
    i = f.col("i")
    return f.filter(i["all"], lambda x: _copies(i["in_service"], x) > _copies(i["gone"], x))


def _sufficient(online: Column, maintenance: Column) -> Column:
    width = f.col("ec_data") + f.col("ec_parity")
    redundancy = f.least("ec_parity", "ec_redundancy")
    with_maintenance = f.size(f.array_union(online, maintenance)) == width
    enough = f.size(online) >= f.col("ec_data") + redundancy
    return (f.size(online) == width) | (with_maintenance & enough)


def _conclusions() -> Column:
    i, online = f.col("i"), f.col("online")
    with_adds = f.array_intersect(i["all"], f.array_union(online, i["adds"]))
    offline = f.array_union(i["decommission"], i["maintenance"])
    readable = f.array_union(f.array_distinct(i["in_service"]), offline)
    kept = f.array_union(online, offline)
    offline_only = f.array_except(offline, online)
    sufficient = _sufficient(online, i["maintenance"])
    unavailable = f.when(sufficient, f.array_except(i["all"], i["all"])).otherwise(
        f.array_except(i["all"], f.array_union(with_adds, offline))
    )
    maintenance_only = f.array_except(i["maintenance"], with_adds)
    spare = f.greatest(f.lit(0), f.col("ec_parity") - f.least("ec_parity", "ec_redundancy"))
    return f.struct(
        sufficient.alias("is_sufficient"),
        _sufficient(with_adds, i["maintenance"]).alias("is_sufficient_after"),
        (f.size(kept) < f.col("ec_data")).alias("is_unrecoverable"),
        (f.size(f.array_union(kept, i["unhealthy"])) < f.col("ec_data")).alias("is_missing"),
        (f.size(readable) < f.col("ec_data")).alias("is_unreadable"),
        (f.size(offline_only) > 0).alias("has_offline_only"),
        (f.size(f.array_except(offline_only, i["adds"])) > 0).alias("has_offline_to_move"),
        f.exists(i["all"], lambda x: _copies(i["in_service"], x) > 1).alias("is_over"),
        f.exists(i["all"], lambda x: _copies(i["in_service"], x) - _copies(i["gone"], x) > 1).alias(
            "is_over_after"
        ),
        f.array_sort(unavailable).alias("unavailable"),
        f.array_sort(f.array_except(i["decommission"], with_adds)).alias("decommission_only"),
        f.array_sort(maintenance_only).alias("maintenance_only"),
        f.greatest(f.lit(0), f.size(maintenance_only) - spare).alias("maintenance_copies"),
        (f.col("ec_parity") - f.size(unavailable)).alias("redundancy"),
        (
            (f.size(i["unhealthy"]) > 0)
            & (f.size(f.array_except(i["unhealthy"], i["closed"])) == 0)
        ).alias("is_unhealthy_doubled"),
        (f.size(f.array_intersect(i["unhealthy"], i["closed"])) > 0).alias("has_unhealthy_excess"),
    )
