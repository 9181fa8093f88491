"""The plan besides reconcile: replicate, reconstruct, delete, close; each row with its reason.

Nothing here chooses a target node or spends a budget: the SCM does, on live state. What may be
destroyed is chosen most carefully (health rules 3.6): pending adds never count and pending deletes
always do, only replicas on answering in-service nodes may go, one per container and run, the same
one whoever plans, never while roots differ, never the last good one, never an origin's or an
index's last, and never so that the racks get worse.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.case import IN_SERVICE
from spark_verify.compare import is_disputed
from spark_verify.doubts import best_of, doubts, is_doubtful, sound_of, told_doubts
from spark_verify.plan import PLAN_LIFE_MS
from spark_verify.ratis import is_bad
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
    is_ec = f.col("replication_type") == "EC"
    known = judged.filter("is_known AND NOT suppressed").withColumn("doubts", doubts())
    known = known.withColumns(
        {
            "from": f.when(is_ec, _ec_sources()).otherwise(_ratis_sources()),
            "candidates": _deletable(),
        }
    )
    # One pass: every rule gives an array of rows, null when it does not apply.
    rules = [
        _replicate(),
        _replicate_origins(),
        _replicate_vulnerable(),
        _reconstruct(),
        _move_indexes(),
        _delete_excess(),
        _delete_unhealthy_index(),
        _delete_empty(),
        *_close(),
    ]
    rows = known.select(
        "container_id", f.explode(f.flatten(f.array_compact(f.array(*rules)))).alias("row")
    ).select("container_id", "row.*")
    # In one file: to sort over several, Spark would compute all rules twice.
    whole = stamped(rows, snapshot_id, run_id, as_of_ms).repartition(1)
    return whole.sortWithinPartitions("priority", "container_id", "action")


def scan_plan(replicas: DataFrame, *, snapshot_id: str, run_id: str, as_of_ms: int) -> DataFrame:
    """Return one row per replica whose root is not known though it could be: no shuffle."""
    unscanned = replicas.filter(
        f.col("state").isin(*TREE_STATES) & f.col("root").isNull() & f.col("is_reachable")
    )
    row = _row(
        "scan",
        f.lit(SCAN_PRIORITY),
        f.lit("root not known"),
        targets=f.array("datanode_id"),
        bytes_estimated=f.col("used_bytes"),
    )
    rows = unscanned.select("container_id", row.alias("row")).select("container_id", "row.*")
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


def _row(
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
) -> Column:
    none = f.array()
    told = none.cast(_NO_NAMES) if sources is None else told_doubts(sources)
    warning = f.concat(f.lit("; no better source than "), f.array_join(told, "; "))
    return f.struct(
        f.lit(action).alias("action"),
        priority.cast("int").alias("priority"),
        f.concat(reason, f.when(f.size(told) > 0, warning).otherwise("")).alias("reason"),
        (none.cast(_NO_NAMES) if sources is None else sources).alias("sources"),
        told.alias("doubts"),
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


def _usable() -> Column:
    """Replicas that can be read: on a node that answers, loaded, not about to be deleted."""
    return f.filter(
        "present",
        lambda r: (
            r["is_reachable"] & r["is_loaded"] & ~f.array_contains(_leaving(), r["datanode_id"])
        ),
    )


def _ratis_sources() -> Column:
    """Who may be copied: the best kind there is, at the highest BCSID, on a node that answers.

    One in doubt only when all that have as many commits are.
    """
    usable = _usable()
    closed = f.filter(usable, lambda r: r["state"] == "CLOSED")
    quasi = f.filter(usable, lambda r: r["state"] == "QUASI_CLOSED")
    sick = f.filter(usable, is_unhealthy)
    take_quasi = (f.size(closed) == 0) | (f.col("state") == "QUASI_CLOSED")
    healthy = f.when(take_quasi, f.concat(closed, quasi)).otherwise(closed)
    chosen = f.when(f.size(healthy) > 0, healthy).otherwise(sick)
    last = highest(chosen, bcsid, -1)
    whole = f.filter(quasi, lambda r: bcsid(r) == f.greatest(last, f.col("sequence_id")))
    return best_of(f.filter(chosen, lambda r: bcsid(r) == last), whole)


def _replicate() -> Column:
    n = f.col("ratis")
    only_bad = n["healthy"] == 0
    need = f.when(only_bad, n["need_b_after"]).otherwise(n["need_after"])
    is_short = f.col("health_state").isin(1, 100) & (need > 0)
    is_misplaced = f.col("health_state") == 2
    applies = (
        (f.col("replication_type") != "EC") & (f.col("queue") == "U") & (is_short | is_misplaced)
    )
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
    row = _row(
        "replicate",
        priority,
        reason,
        sources=_names(f.col("from")),
        copies=copies,
        bytes_estimated=copies * f.col("used_bytes"),
    )
    return f.when(applies & (f.size("from") > 0), f.array(row))


def _replicate_origins() -> Column:
    def here(origin: Column) -> Column:
        mine = f.filter(_usable(), lambda r: r["origin_id"] == origin["origin_id"])
        healthy = f.filter(mine, lambda r: ~is_unhealthy(r))
        chosen = f.when(f.size(healthy) > 0, healthy).otherwise(mine)
        last = highest(chosen, bcsid, -1)
        return best_of(f.filter(chosen, lambda r: bcsid(r) == last))

    def row(origin: Column) -> Column:
        return _row(
            "replicate",
            f.lit(1),
            f.concat(f.lit("stuck quasi-closed, origin "), origin["origin_id"]),
            sources=_names(here(origin)),
            copies=origin["under"],
            bytes_estimated=origin["under"] * f.col("used_bytes"),
        )

    short = f.filter(
        f.col("qc.origins"), lambda origin: (origin["under"] > 0) & (f.size(here(origin)) > 0)
    )
    applies = (f.col("health_state") == 103) & (f.col("queue") == "U")
    return f.when(applies, f.transform(short, row))


def _replicate_vulnerable() -> Column:
    replicas = f.col("qc.vulnerable")
    applies = (
        (f.col("state") == "QUASI_CLOSED")
        & (f.col("replication_type") != "EC")
        & (f.size(replicas) > f.size(adds()))
        & (f.col("health_state") == 100)
        & (f.col("ratis.healthy") > 0)
    )
    rows = f.transform(
        replicas,
        lambda one: _row(
            "replicate",
            f.lit(0),
            f.lit("only copy of an origin's last commit, UNHEALTHY"),
            sources=f.array(one["datanode_id"]),
            copies=f.lit(1),
            bytes_estimated=f.col("used_bytes"),
        ),
    )
    return f.when(applies, rows)


def _ec_sources() -> Column:
    """One CLOSED replica per index on an answering node, in service preferred.

    Those in doubt only if they are needed, and last.
    """
    usable = f.filter(_usable(), lambda r: r["state"] == "CLOSED")
    serving = f.filter(usable, lambda r: r["op"] == IN_SERVICE)
    others = f.filter(usable, lambda r: r["op"] != IN_SERVICE)
    sound = f.concat(sound_of(serving), sound_of(others))
    ranked = f.concat(sound, f.filter(f.concat(serving, others), is_doubtful))
    indexes = f.array_sort(f.array_distinct(f.transform(ranked, lambda r: r["replica_index"])))
    chosen = f.transform(indexes, lambda i: f.filter(ranked, lambda r: r["replica_index"] == i)[0])
    enough = f.size(sound_of(chosen)) >= f.col("ec_data")
    return f.when(enough, sound_of(chosen)).otherwise(
        f.concat(sound_of(chosen), f.filter(chosen, is_doubtful))
    )


def _reconstruct() -> Column:
    ec = f.col("ec")
    applies = (
        (f.col("replication_type") == "EC")
        & (f.col("queue") == "U")
        & (f.size(ec["unavailable"]) > 0)
        & (f.size("from") >= f.col("ec_data"))
    )
    row = _row(
        "reconstruct",
        ec["redundancy"],
        f.concat(f.lit("missing indexes "), f.array_join(ec["unavailable"].cast(_NO_NAMES), ", ")),
        sources=_names(f.col("from")),
        indexes=ec["unavailable"],
        copies=f.size(ec["unavailable"]),
        bytes_estimated=(f.col("ec_data") + f.size(ec["unavailable"]))
        * f.array_max(f.transform("present", lambda r: r["used_bytes"])),
    )
    return f.when(applies, f.array(row))


def _move_indexes() -> Column:
    """Copy the indexes whose only replica is on a leaving node, one row each."""
    ec = f.col("ec")
    resting = f.slice(ec["maintenance_only"], 1, f.greatest(ec["maintenance_copies"], f.lit(0)))

    def here(index: Column) -> Column:
        return best_of(
            f.filter(_usable(), lambda r: (r["replica_index"] == index) & ~is_unhealthy(r))
        )

    def row(index: Column) -> Column:
        return _row(
            "replicate",
            f.lit(OUT_OF_SERVICE_PRIORITY),
            f.concat(f.lit("node leaves, index "), index.cast("string")),
            sources=_names(here(index)),
            indexes=f.array(index),
            copies=f.lit(1),
            bytes_estimated=here(index)[0]["used_bytes"],
        )

    indexes = f.filter(
        f.array_union(ec["decommission_only"], resting), lambda index: f.size(here(index)) > 0
    )
    applies = (f.col("replication_type") == "EC") & (f.col("queue") == "U")
    return f.when(applies, f.transform(indexes, row))


def _deletable() -> Column:
    """In service, answering, not being deleted already; in the order of the control plane.

    The bad ones by what they lack, then by a checksum of container and datanode: it confirms only
    the victim that it would choose itself (HDDS-4589).
    """
    usable = f.filter(
        "present",
        lambda r: (
            (r["op"] == IN_SERVICE)
            & r["is_reachable"]
            & ~f.array_contains(_leaving(), r["datanode_id"])
        ),
    )

    def place(replica: Column) -> Column:
        return f.crc32(f.concat_ws(":", f.col("container_id"), replica["datanode_id"]))

    def has(replica: Column) -> Column:
        return f.when(is_bad(replica), bcsid(replica)).otherwise(f.col("sequence_id"))

    keyed = f.transform(
        usable,
        lambda r: f.struct(has(r).alias("has"), place(r).alias("place"), r.alias("r")),
    )
    return f.transform(f.array_sort(keyed), lambda k: k["r"])


def _delete_excess() -> Column:
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
    applies = f.col("health_state").isin(3, 104) & (f.col("queue") == "O") & ~is_disputed() & enough
    return _delete(
        applies, f.slice(victims, 1, 1), f.lit("more replicas than needed"), is_forced=True
    )


def _delete_unhealthy_index() -> Column:
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
    applies = (f.col("replication_type") == "EC") & (f.col("health_state") == 101)
    reason = f.lit("unhealthy, its index has a good replica")
    return _delete(applies, f.slice(twins, 1, 1), reason, is_forced=True)


def _delete_empty() -> Column:
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
    return _delete(going, victims, f.lit("empty"), is_forced=False)


def _delete(applies: Column, victims: Column, reason: Column, *, is_forced: bool) -> Column:
    row = _row(
        "delete",
        f.lit(DELETE_PRIORITY),
        reason,
        targets=_names(victims),
        indexes=f.transform(victims, lambda r: r["replica_index"]),
        is_forced=f.lit(is_forced),
    )
    return f.when(applies & (f.size(victims) > 0), f.array(row))


def _close() -> list[Column]:
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
    return [
        f.when(
            when & (f.size(who) > 0),
            f.array(
                _row(
                    "close",
                    f.lit(MISPLACED_PRIORITY),
                    f.lit(reason),
                    targets=_names(who),
                    is_forced=forced,
                )
            ),
        )
        for when, who, forced, reason in cases
    ]
