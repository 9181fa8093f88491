"""What to do about it: rows the SCM may act on, each with its reason and its priority.

A plan is advice about an instant that is past: the SCM re-checks every row on live state and drops
rows whose time is over. Nothing here chooses a target or counts a budget; that is the SCM's.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.compare import is_disputed
from spark_verify.rows import RECONCILE_PLAN, TREE_STATES

PLAN_LIFE_MS: Final = 30 * 60 * 1000
"""After it the SCM must not act: the cluster has reported itself anew by then."""

CHUNK_BYTES: Final = 4 * 1024**2
"""What one finding costs to repair: a chunk of the default size."""

ELIGIBILITY: Final = (
    "OK",
    "CONTAINER_NOT_FOUND",
    "INELIGIBLE_CONTAINER_STATE",
    "NO_REPLICAS_FOUND",
    "INELIGIBLE_REPLICA_STATES",
    "INELIGIBLE_REPLICATION_TYPE",
    "NOT_ENOUGH_REQUIRED_NODES",
    "NOT_ENOUGH_REACHABLE_REPLICAS",
    "RECONCILE_PENDING",
)
"""Ozone's result codes in Ozone's order, then two of ours: a reconcile that no peer could answer,
and one that is already under way."""


def eligibility() -> Column:
    """Return whether the container of a compared case may be reconciled, or the first reason."""
    strange = f.exists("replicas", lambda r: ~r["state"].isin(*TREE_STATES))
    return (
        f.when(~f.col("is_known"), "CONTAINER_NOT_FOUND")
        .when(~f.col("state").isin("CLOSED", "QUASI_CLOSED"), "INELIGIBLE_CONTAINER_STATE")
        .when(f.size("replicas") == 0, "NO_REPLICAS_FOUND")
        .when(strange, "INELIGIBLE_REPLICA_STATES")
        .when(f.col("replication_type") != "RATIS", "INELIGIBLE_REPLICATION_TYPE")
        .when(f.col("replication_factor") <= 1, "NOT_ENOUGH_REQUIRED_NODES")
        .when(f.size("countable") <= 1, "NOT_ENOUGH_REACHABLE_REPLICAS")
        .when(f.exists("ops", lambda o: o["op"] == "RECONCILE"), "RECONCILE_PENDING")
        .otherwise("OK")
    )


def reconcile_reasons() -> Column:
    """Return every reason to reconcile a compared case, worst first; empty when there is none."""
    split = f.col("checksum_class") == "MISMATCH_SPLIT"
    minority = f.col("checksum_class") == "MISMATCH_MINORITY"
    contradictory = f.col("checksum_class") == "CONTRADICTORY"
    unhealthy = f.exists("countable", lambda r: r["state"] == "UNHEALTHY")
    findings = f.exists("countable", lambda r: r["finding_count"] > 0)
    return f.array_compact(
        f.array(
            f.when(contradictory, "replicas contradict each other"),
            f.when(split, "roots differ, no majority"),
            f.when(minority, "roots differ, minority"),
            f.when(unhealthy, "replica UNHEALTHY"),
            f.when(findings, "scan findings"),
            f.when(f.col("tombstones_differ"), "tombstones differ"),
        )
    )


def is_mendable() -> Column:
    """Return whether an erasure-coded container has a damaged shard to mend in place.

    Ozone refuses to reconcile those (`eligibility` says so); our datanodes compute a damaged chunk
    from its stripe. It needs as many good shards as the code has data shards. Shards of one index
    whose roots differ are told and not touched: nothing says which is right.
    """
    good = f.filter("countable", is_good)
    indexes = f.array_distinct(f.transform(good, lambda r: r["replica_index"]))
    damaged = f.exists(
        "countable", lambda r: (r["state"] == "UNHEALTHY") | (r["finding_count"] > 0)
    )
    under_way = f.exists("ops", lambda o: o["op"] == "RECONCILE")
    return (
        (f.col("replication_type") == "EC")
        & (f.col("eligibility") == "INELIGIBLE_REPLICATION_TYPE")
        & damaged
        & ~under_way
        & ~is_disputed()
        & (f.size(indexes) >= f.col("ec_data"))
    )


def is_good(replica: Column) -> Column:
    """Whether nothing is known against a replica."""
    return replica["state"].isin("CLOSED", "QUASI_CLOSED") & (replica["finding_count"] == 0)


def remaining_redundancy() -> Column:
    """Return how many good and agreeing replicas may still be lost; -1 when there is none.

    With a split vote nobody knows who is right: each root counts for itself. For EC: how many
    indexes more may be lost. Null for a container that is not closed.
    """
    good = f.filter("countable", is_good)
    agreeing = f.transform(
        "votes",
        lambda v: f.size(
            f.filter(
                good,
                lambda r: (r["root"] == v["root"]) & (r["tree_algorithm"] == v["algorithm"]),
            )
        ),
    )
    disputed = is_disputed()
    closed = f.col("state").isin("CLOSED", "QUASI_CLOSED")
    ratis = f.when(disputed, f.array_max(agreeing)).otherwise(f.size(good)) - 1
    ec = f.col("replication_type") == "EC"
    return f.when(closed, f.when(ec, f.col("ec.redundancy")).otherwise(ratis))


def bytes_estimated() -> Column:
    """Return about how many bytes the repair moves: what is missing, and the damaged chunks.

    A replica that differs has at least one damaged chunk, whether or not a scan found it yet.
    """
    longest = f.array_max(f.transform("countable", lambda r: r["used_bytes"]))
    split = f.col("checksum_class") == "MISMATCH_SPLIT"

    def repair(replica: Column) -> Column:
        differs = split | f.array_contains("minority", replica["datanode_id"])
        chunks = f.greatest(replica["finding_count"], f.when(differs, 1).otherwise(0))
        damage = f.least(chunks.cast("long") * CHUNK_BYTES, replica["used_bytes"])
        return longest - replica["used_bytes"] + damage

    return f.aggregate("countable", f.lit(0).cast("long"), lambda total, r: total + repair(r))


def judge_reconcile(compared: DataFrame) -> DataFrame:
    """Add eligibility, reconcile_reasons, remaining_redundancy and bytes_estimated.

    `compared` must have been judged by `health.judge_health`.
    """
    return compared.withColumns(
        {
            "eligibility": eligibility(),
            "reconcile_reasons": reconcile_reasons(),
            "remaining_redundancy": remaining_redundancy(),
            "bytes_estimated": f.coalesce(bytes_estimated(), f.lit(0).cast("long")),
        }
    )


def reconcile_plan(judged: DataFrame, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return the rows that `reconcile_plan/` is chosen from."""
    copies = (f.col("eligibility") == "OK") & (f.size("reconcile_reasons") > 0)
    wanted = judged.filter(
        (copies | is_mendable()) & ~f.col("suppressed") & (f.col("checksum_class") != "EMPTY")
    )
    replicas = f.transform(
        "countable",
        lambda r: f.struct(
            r["datanode_id"].alias("datanode_id"),
            r["state"].alias("state"),
            r["root"].alias("root"),
            r["tree_algorithm"].alias("tree_algorithm"),
        ),
    )
    rows = wanted.select(
        "container_id",
        f.lit("reconcile").alias("action"),
        f.col("remaining_redundancy").alias("priority"),
        f.array_join("reconcile_reasons", "; ").alias("reason"),
        "checksum_class",
        replicas.alias("replicas"),
        "bytes_estimated",
        f.lit(snapshot_id).alias("snapshot_id"),
        f.lit(run_id).alias("run_id"),
        f.lit(as_of_ms).cast("long").alias("as_of_ms"),
        f.lit(as_of_ms + PLAN_LIFE_MS).cast("long").alias("expires_at_ms"),
    )
    return rows.select(*RECONCILE_PLAN.fieldNames())
