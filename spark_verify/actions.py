"""The plan besides reconcile: replicate, reconstruct, delete, close; each row with its reason.

Nothing here chooses a target node or spends a budget: the SCM does, on live state. What may be
destroyed is chosen most carefully (health rules 3.6): pending adds never count and pending deletes
always do, only replicas on answering in-service nodes may go, one per container and run, the same
one whoever plans, never while roots differ, never the last good one, never an origin's or an
index's last, and never so that the racks get worse.
"""

from collections.abc import Iterable
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.case import IN_SERVICE
from spark_verify.plan import PLAN_LIFE_MS
from spark_verify.replicas import adds, bcsid, deletes, highest, is_unhealthy
from spark_verify.rows import ACTION_PLAN, TREE_STATES

OUT_OF_SERVICE_PRIORITY: Final = 5
"""Nothing is lost yet: the leaving node still has its replica (Ozone's weight)."""

MISPLACED_PRIORITY: Final = 6
DELETE_PRIORITY: Final = 7
SCAN_PRIORITY: Final = 8

RACKS_AWARE: Final = 2
"""Racks on which a Ratis container is placed well enough."""

_NO_NAMES: Final = "array<string>"
_NO_INDEXES: Final = "array<int>"


def action_plan(judged: DataFrame, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return the rows of `plan/` for judged containers, most urgent first."""
    judged = judged.filter("is_known AND NOT suppressed")
    parts = [
        _replicate(judged),
        _replicate_origins(judged),
        _replicate_vulnerable(judged),
        _reconstruct(judged),
        _move_indexes(judged),
        _delete_excess(judged),
        _delete_unhealthy_index(judged),
        _delete_empty(judged),
        _close(judged),
    ]
    rows = reduce(DataFrame.unionByName, parts)
    return stamped(rows, snapshot_id, run_id, as_of_ms).orderBy(
        "priority", "container_id", "action"
    )


def scan_plan(replicas: DataFrame, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return one row per replica whose root is not known though it could be: no shuffle."""
    unscanned = replicas.filter(
        f.col("state").isin(*TREE_STATES) & f.col("root").isNull() & f.col("is_reachable")
    )
    rows = _rows(
        unscanned,
        "scan",
        f.lit(SCAN_PRIORITY),
        f.lit("root not known"),
        targets=f.array("datanode_id"),
        bytes_estimated=f.col("used_bytes"),
    )
    return stamped(rows, snapshot_id, run_id, as_of_ms)


def stamped(rows: DataFrame, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Add what every row carries, in the declared order of columns."""
    return rows.withColumns(
        {
            "snapshot_id": f.lit(snapshot_id),
            "run_id": f.lit(run_id),
            "as_of_ms": f.lit(as_of_ms).cast("long"),
            "expires_at_ms": f.lit(as_of_ms + PLAN_LIFE_MS).cast("long"),
        }
    ).select(*ACTION_PLAN.fieldNames())


def _rows(
    chosen: DataFrame,
    action: str,
    priority: Column,
    reason: Column,
    *,
    sources: Column | None = None,
    targets: Column | None = None,
    indexes: Column | None = None,
    copies: Column | None = None,
    is_forced: Column | None = None,
    bytes_estimated: Column | None = None,
) -> DataFrame:
    none = f.array()
    return chosen.select(
        "container_id",
        f.lit(action).alias("action"),
        priority.cast("int").alias("priority"),
        reason.alias("reason"),
        (none.cast(_NO_NAMES) if sources is None else sources).alias("sources"),
        (none.cast(_NO_NAMES) if targets is None else targets).alias("targets"),
        (none.cast(_NO_INDEXES) if indexes is None else indexes).alias("indexes"),
        (f.lit(0) if copies is None else copies).cast("int").alias("copies"),
        (f.lit(False) if is_forced is None else is_forced).alias("is_forced"),
        (f.lit(0) if bytes_estimated is None else bytes_estimated)
        .cast("long")
        .alias("bytes_estimated"),
    )


def _names(replicas: Column) -> Column:
    return f.transform(replicas, lambda r: r["datanode_id"])


def _leaving() -> Column:
    """Datanodes that a pending DELETE empties of this container."""
    return f.transform(deletes(), lambda o: o["datanode_id"])


def _ratis_sources() -> Column:
    """Who may be copied: the best kind there is, at the highest BCSID, on a node that answers."""
    usable = f.filter(
        "present",
        lambda r: r["is_reachable"] & ~f.array_contains(_leaving(), r["datanode_id"]),
    )
    closed = f.filter(usable, lambda r: r["state"] == "CLOSED")
    quasi = f.filter(usable, lambda r: r["state"] == "QUASI_CLOSED")
    sick = f.filter(usable, is_unhealthy)
    take_quasi = (f.size(closed) == 0) | (f.col("state") == "QUASI_CLOSED")
    healthy = f.when(take_quasi, f.concat(closed, quasi)).otherwise(closed)
    chosen = f.when(f.size(healthy) > 0, healthy).otherwise(sick)
    last = highest(chosen, bcsid, -1)
    return f.filter(chosen, lambda r: bcsid(r) == last)


def _replicate(judged: DataFrame) -> DataFrame:
    n = f.col("ratis")
    only_bad = n["healthy"] == 0
    need = f.when(only_bad, n["need_b_after"]).otherwise(n["need_after"])
    is_short = f.col("health_state").isin(1, 100) & (need > 0)
    is_misplaced = f.col("health_state") == 2
    chosen = judged.filter(
        (f.col("replication_type") != "EC") & (f.col("queue") == "U") & (is_short | is_misplaced)
    ).withColumn("from", _ratis_sources())
    priority = (
        f.when(is_misplaced, MISPLACED_PRIORITY)
        .when(n["is_due_to_out_of_service"], OUT_OF_SERVICE_PRIORITY)
        .otherwise(n["redundancy"])
    )
    reason = (
        f.when(is_misplaced, "too few racks")
        .when(only_bad, "too few replicas, none healthy")
        .when(n["is_due_to_out_of_service"], "node leaves")
        .otherwise("too few replicas")
    )
    copies = f.when(is_misplaced, 1).otherwise(need)
    return _rows(
        chosen.filter(f.size("from") > 0),
        "replicate",
        priority,
        reason,
        sources=_names(f.col("from")),
        copies=copies,
        bytes_estimated=copies * f.col("used_bytes"),
    )


def _replicate_origins(judged: DataFrame) -> DataFrame:
    chosen = judged.filter((f.col("health_state") == 103) & (f.col("queue") == "U"))
    origins = chosen.withColumn("origin", f.explode("qc.origins")).filter("origin.under > 0")
    mine = f.filter("present", lambda r: r["origin_id"] == f.col("origin.origin_id"))
    return _rows(
        origins,
        "replicate",
        f.lit(1),
        f.concat(f.lit("stuck quasi-closed, origin "), f.col("origin.origin_id")),
        sources=_names(mine),
        copies=f.col("origin.under"),
        bytes_estimated=f.col("origin.under") * f.col("used_bytes"),
    )


def _replicate_vulnerable(judged: DataFrame) -> DataFrame:
    replicas = f.col("qc.vulnerable")
    chosen = judged.filter(
        (f.col("state") == "QUASI_CLOSED")
        & (f.col("replication_type") != "EC")
        & (f.size(replicas) > f.size(adds()))
        & (f.col("health_state") == 100)
        & (f.col("ratis.healthy") > 0)
    ).withColumn("one", f.explode(replicas))
    return _rows(
        chosen,
        "replicate",
        f.lit(0),
        f.lit("only copy of an origin's last commit, UNHEALTHY"),
        sources=f.array("one.datanode_id"),
        copies=f.lit(1),
        bytes_estimated=f.col("used_bytes"),
    )


def _ec_sources() -> Column:
    """One CLOSED replica per index on an answering node, in service preferred."""
    usable = f.filter(
        "present",
        lambda r: (
            (r["state"] == "CLOSED")
            & r["is_reachable"]
            & ~f.array_contains(_leaving(), r["datanode_id"])
        ),
    )
    ranked = f.concat(
        f.filter(usable, lambda r: r["op"] == IN_SERVICE),
        f.filter(usable, lambda r: r["op"] != IN_SERVICE),
    )
    indexes = f.array_sort(f.array_distinct(f.transform(ranked, lambda r: r["replica_index"])))
    return f.transform(indexes, lambda i: f.filter(ranked, lambda r: r["replica_index"] == i)[0])


def _reconstruct(judged: DataFrame) -> DataFrame:
    ec = f.col("ec")
    chosen = judged.filter(
        (f.col("replication_type") == "EC")
        & (f.col("queue") == "U")
        & (f.size(ec["unavailable"]) > 0)
    ).withColumn("from", _ec_sources())
    return _rows(
        chosen.filter(f.size("from") >= f.col("ec_data")),
        "reconstruct",
        ec["redundancy"],
        f.concat(f.lit("missing indexes "), f.array_join(ec["unavailable"].cast(_NO_NAMES), ", ")),
        sources=_names(f.col("from")),
        indexes=ec["unavailable"],
        copies=f.size(ec["unavailable"]),
        bytes_estimated=(f.col("ec_data") + f.size(ec["unavailable"]))
        * f.array_max(f.transform("present", lambda r: r["used_bytes"])),
    )


def _move_indexes(judged: DataFrame) -> DataFrame:
    """Copy the indexes whose only replica is on a leaving node, one row each."""
    ec = f.col("ec")
    resting = f.slice(ec["maintenance_only"], 1, f.greatest(ec["maintenance_copies"], f.lit(0)))
    chosen = judged.filter(
        (f.col("replication_type") == "EC") & (f.col("queue") == "U")
    ).withColumn("index", f.explode(f.array_union(ec["decommission_only"], resting)))
    here = f.filter(
        "present",
        lambda r: (r["replica_index"] == f.col("index")) & ~is_unhealthy(r) & r["is_reachable"],
    )
    return _rows(
        chosen.withColumn("from", here).filter(f.size("from") > 0),
        "replicate",
        f.lit(OUT_OF_SERVICE_PRIORITY),
        f.concat(f.lit("node leaves, index "), f.col("index").cast("string")),
        sources=_names(f.col("from")),
        indexes=f.array("index"),
        copies=f.lit(1),
        bytes_estimated=f.col("from")[0]["used_bytes"],
    )


def _deletable() -> Column:
    """In service, answering, not being deleted already; in an order everyone agrees on."""
    usable = f.filter(
        "present",
        lambda r: (
            (r["op"] == IN_SERVICE)
            & r["is_reachable"]
            & ~f.array_contains(_leaving(), r["datanode_id"])
        ),
    )
    keyed = f.transform(
        usable,
        lambda r: f.struct(
            f.xxhash64(f.col("container_id"), r["datanode_id"]).alias("order"), r.alias("r")
        ),
    )
    return f.transform(f.array_sort(keyed), lambda k: k["r"])


def _delete_excess(judged: DataFrame) -> DataFrame:
    """One replica of an over-replicated Ratis or EC container."""
    candidates, state = f.col("candidates"), f.col("state")
    is_ec = f.col("replication_type") == "EC"
    matching = f.filter(candidates, lambda r: r["state"] == state)

    def is_spare(replica: Column) -> Column:
        """Whether rack, origin and index are all still there without it."""
        others = f.filter(matching, lambda r: r["datanode_id"] != replica["datanode_id"])
        racks_left = f.array_distinct(f.transform(others, lambda r: r["rack"]))
        same_rack = f.exists(others, lambda r: r["rack"] == replica["rack"]) | (
            ~is_ec & (f.size(racks_left) >= RACKS_AWARE)
        )
        same_origin = f.exists(others, lambda r: r["origin_id"] == replica["origin_id"])
        same_index = f.exists(others, lambda r: r["replica_index"] == replica["replica_index"])
        return same_rack & (same_origin | (state == "CLOSED")) & same_index

    enough = is_ec | (f.size(matching) >= f.col("replication_factor"))
    strange = f.filter(candidates, lambda r: r["state"] != state)
    good = f.filter(matching, lambda r: is_spare(r) & (r["finding_count"] == 0))
    surplus = is_ec | (f.size(matching) > f.col("replication_factor"))
    # A strange replica goes first; in a quasi-closed container it may be an origin's only one.
    victims = f.when(~is_ec & (state == "CLOSED") & (f.size(strange) > 0), strange).otherwise(
        f.when(surplus, good).otherwise(f.slice(good, 1, 0))
    )
    chosen = (
        judged.filter(
            f.col("health_state").isin(3, 104)
            & (f.col("queue") == "O")
            & ~f.col("checksum_class").startswith("MISMATCH")
        )
        .withColumn("candidates", _deletable())
        .filter(enough)
        .withColumn("victim", f.slice(victims, 1, 1))
        .filter(f.size("victim") == 1)
    )
    return _delete(chosen, f.lit("more replicas than needed"), is_forced=True)


def _delete_unhealthy_index(judged: DataFrame) -> DataFrame:
    """The UNHEALTHY twin of an EC index that also has a CLOSED replica in service."""
    twins = f.filter(
        "candidates",
        lambda r: (
            is_unhealthy(r)
            & f.exists(
                "candidates",
                lambda o: (o["state"] == "CLOSED") & (o["replica_index"] == r["replica_index"]),
            )
        ),
    )
    chosen = (
        judged.filter((f.col("replication_type") == "EC") & (f.col("health_state") == 101))
        .withColumn("candidates", _deletable())
        .withColumn("victim", f.slice(twins, 1, 1))
        .filter(f.size("victim") == 1)
    )
    return _delete(chosen, f.lit("unhealthy, its index has a good replica"), is_forced=True)


def _delete_empty(judged: DataFrame) -> DataFrame:
    """Every replica of an emptied container that says itself that it is empty; never forced."""
    going = f.col("is_empty") | (f.col("state") == "DELETING")
    victims = f.filter(
        "present",
        lambda r: (
            r["is_empty"]
            & (r["state"] != "UNHEALTHY")
            & ~f.array_contains(_leaving(), r["datanode_id"])
        ),
    )
    chosen = judged.filter(going).withColumn("victim", victims).filter(f.size("victim") > 0)
    return _delete(chosen, f.lit("empty"), is_forced=False)


def _delete(chosen: DataFrame, reason: Column, *, is_forced: bool) -> DataFrame:
    victim = f.col("victim")
    return _rows(
        chosen,
        "delete",
        f.lit(DELETE_PRIORITY),
        reason,
        targets=_names(victim),
        indexes=f.transform(victim, lambda r: r["replica_index"]),
        is_forced=f.lit(is_forced),
    )


def _close(judged: DataFrame) -> DataFrame:
    """Handlers 1 to 4: replicas that must follow their container's state."""
    state, is_ec = f.col("state"), f.col("replication_type") == "EC"
    last = highest(
        f.filter("present", lambda r: r["state"] == "QUASI_CLOSED"), lambda r: r["bcsid"], -1
    )
    follow = f.filter("present", lambda r: r["state"].isin("OPEN", "CLOSING"))
    closing = f.filter("present", lambda r: r["state"].isin("OPEN", "CLOSING", "QUASI_CLOSED"))
    late = f.filter(
        "present",
        lambda r: (r["state"] == "QUASI_CLOSED") & (r["bcsid"] == f.col("sequence_id")),
    )
    leading = f.filter("present", lambda r: (r["state"] == "QUASI_CLOSED") & (r["bcsid"] == last))
    cases: Iterable[tuple[Column, Column, Column, str]] = (
        (f.col("health_state").isin(7, 9), follow, f.lit(False), "open container is not writable"),
        (state == "CLOSING", closing, is_ec, "container is closing"),
        (state.isin("CLOSED", "QUASI_CLOSED"), follow, is_ec, "replica is behind its container"),
        ((state == "CLOSED") & ~is_ec, late, f.lit(True), "quasi-closed at the final BCSID"),
        (
            (state == "QUASI_CLOSED") & ~is_ec & f.col("qc.is_closable"),
            leading,
            f.lit(True),
            "all origins seen, highest BCSID",
        ),
    )
    parts = [
        _rows(
            judged.filter(when).withColumn("who", who).filter(f.size("who") > 0),
            "close",
            f.lit(MISPLACED_PRIORITY),
            f.lit(reason),
            targets=_names(f.col("who")),
            is_forced=forced,
        )
        for when, who, forced, reason in cases
    ]
    return reduce(DataFrame.unionByName, parts)
