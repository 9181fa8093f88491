"""The health of a container: Ozone's chain of 13 handlers, and flags that hide nothing.

Ozone gives a container one state, the last one its chain set; a container that is MISSING and
OVER_REPLICATED shows only one of the two. `health_state` is that state, number for number, so that
old dashboards agree. `flags` is a bitmask of independent conditions, and is what the plan uses.

    1 Open  2 Closing  3 QuasiClosed  4 MismatchedReplicas  5 Empty  6 Deleting  7 QuasiClosedStuck
    8 EcReplication  9 RatisReplication  10 ClosedWithUnhealthy  11 EcMisReplication
    12 RatisUnhealthy  13 VulnerableUnhealthy

STAND_ALONE containers are judged by the Ratis rules: a count of replicas is a count of replicas.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.compare import roots_differ
from spark_verify.ec import count_ec
from spark_verify.placement import judge_placement
from spark_verify.quasi_closed import judge_quasi_closed
from spark_verify.ratis import count_ratis
from spark_verify.replicas import count, is_unhealthy, present
from spark_verify.rules import Rules, with_rules

STATES: Final[dict[str, int]] = {
    "HEALTHY": 0,
    "UNDER_REPLICATED": 1,
    "MIS_REPLICATED": 2,
    "OVER_REPLICATED": 3,
    "MISSING": 4,
    "UNHEALTHY": 5,
    "EMPTY": 6,
    "OPEN_UNHEALTHY": 7,
    "QUASI_CLOSED_STUCK": 8,
    "OPEN_WITHOUT_PIPELINE": 9,
    "UNHEALTHY_UNDER_REPLICATED": 100,
    "UNHEALTHY_OVER_REPLICATED": 101,
    "MISSING_UNDER_REPLICATED": 102,
    "QUASI_CLOSED_STUCK_UNDER_REPLICATED": 103,
    "QUASI_CLOSED_STUCK_OVER_REPLICATED": 104,
    "QUASI_CLOSED_STUCK_MISSING": 105,
}
"""Ozone's health states and their numbers."""

FLAGS: Final = (
    "MISSING",
    "UNDER_REPLICATED",
    "OVER_REPLICATED",
    "MIS_REPLICATED",
    "UNHEALTHY",
    "EMPTY",
    "OPEN_UNHEALTHY",
    "OPEN_WITHOUT_PIPELINE",
    "QUASI_CLOSED_STUCK",
    "VULNERABLE",
    "UNHEALTHY_REPLICA",
    "UNHEALTHY_EXCESS",
    "MISMATCHED_STATE",
    "ROOTS_DIFFER",
    "TOMBSTONES_DIFFER",
    "UNREACHABLE_DIFFERS",
    "SCAN_FINDINGS",
    "DATA_AT_RISK",
    "CONTRADICTORY",
)
"""Bit i of `flags` is the i-th name."""

QUEUE_UNDER: Final = "U"
QUEUE_OVER: Final = "O"
QUEUE_NONE: Final = "-"


def flag_bit(name: str) -> int:
    """Return the bit of a flag."""
    return 1 << FLAGS.index(name)


def flag_names(flags: int) -> list[str]:
    """Return the names of the bits that are set."""
    return [name for i, name in enumerate(FLAGS) if flags >> i & 1]


def judge_health(cases: DataFrame, rules: Rules) -> DataFrame:
    """Add counts, health_state, states_counted, queue and flags to compared cases."""
    judged = with_rules(cases, rules).withColumn("present", present())
    judged = judge_placement(judge_quasi_closed(count_ec(count_ratis(judged))))
    judged = judged.withColumn("is_empty", _is_empty())
    judged = judged.withColumn("verdict", _chain()).withColumns(
        {
            "health_state": f.col("verdict")["state"],
            "queue": f.col("verdict")["queue"],
            "is_qc_stuck": _is_qc_stuck() & _is_judged(),
        }
    )
    return judged.drop("verdict").withColumn("flags", _flags())


def states_counted(health_state: int, is_qc_stuck: bool) -> list[int]:
    """Return every state Ozone's report counts for a container: stuck is counted beside others."""
    stuck = STATES["QUASI_CLOSED_STUCK"]
    if not is_qc_stuck:
        return [health_state] if health_state else []
    return [stuck] if health_state in (0, stuck) else [stuck, health_state]


def _verdict(state: str, queue: Column | str = QUEUE_NONE) -> Column:
    queued = f.lit(queue) if isinstance(queue, str) else queue
    return f.struct(f.lit(STATES[state]).alias("state"), queued.alias("queue"))


def _queue(wanted: Column, queue: str) -> Column:
    return f.when(wanted, queue).otherwise(QUEUE_NONE)


def _chain() -> Column:
    """Return the first handler's verdict that ends the chain; the order is the whole meaning."""
    is_ec = f.col("replication_type") == "EC"
    state = f.col("state")
    chain = f.when(~_is_judged(), _verdict("HEALTHY"))
    chain = chain.when(state == "OPEN", _open())
    chain = chain.when(state == "CLOSING", _closing())
    chain = chain.when(f.col("is_empty"), _verdict("EMPTY"))
    chain = chain.when(state.isin("DELETING", "DELETED", "RECOVERING"), _verdict("HEALTHY"))
    chain = chain.when(is_ec, _ec())
    return chain.otherwise(
        f.coalesce(_stuck(), _ratis(), _ratis_unhealthy(), _vulnerable_or_fine())
    )


def _is_judged() -> Column:
    return f.col("is_known") & ~f.coalesce(f.col("suppressed"), f.lit(False))


def _open() -> Column:
    return (
        f.when(~f.col("pipeline_alive"), _verdict("OPEN_WITHOUT_PIPELINE"))
        .when(f.exists("present", lambda r: r["state"] != "OPEN"), _verdict("OPEN_UNHEALTHY"))
        .otherwise(_verdict("HEALTHY"))
    )


def _closing() -> Column:
    return f.when(f.size("present") == 0, _verdict("MISSING")).otherwise(_verdict("HEALTHY"))


def _is_empty() -> Column:
    """Handler 5: all blocks are deleted, and every replica says so."""
    some = f.size("present") > 0
    all_empty = some & f.forall("present", lambda r: r["is_empty"])
    all_closed = f.forall("present", lambda r: r["state"] == "CLOSED")
    never_filled = (f.size("present") == 0) & (f.col("key_count") == 0)
    closed = f.col("state") == "CLOSED"
    return f.coalesce(
        (closed & all_empty & all_closed)
        | ((f.col("state") == "QUASI_CLOSED") & all_empty)
        | (closed & never_filled),
        f.lit(False),
    )


def _is_qc_stuck() -> Column:
    """Handler 3 counts it: quasi-closed and no way to close by force."""
    return f.coalesce(
        (f.col("state") == "QUASI_CLOSED")
        & (f.col("replication_type") != "EC")
        & ~f.col("qc.is_closable"),
        f.lit(False),
    )


def _stuck() -> Column:
    """Handler 7; null passes the container on."""
    qc = f.col("qc")
    no_add = ~f.exists("ops", lambda o: o["op"] == "ADD")
    no_delete = ~f.exists("ops", lambda o: o["op"] == "DELETE")
    some_healthy = f.exists("present", lambda r: ~is_unhealthy(r))
    fine = f.when(qc["is_stuck"] & some_healthy, _vulnerable_or(_stuck_itself()))
    return (
        f.when(qc["is_stuck"] & (f.size("present") == 0), _verdict("QUASI_CLOSED_STUCK_MISSING"))
        .when(
            qc["is_stuck"] & some_healthy & qc["is_under"],
            _verdict("QUASI_CLOSED_STUCK_UNDER_REPLICATED", _queue(no_add, QUEUE_UNDER)),
        )
        .when(
            qc["is_stuck"] & some_healthy & qc["is_over"],
            _verdict("QUASI_CLOSED_STUCK_OVER_REPLICATED", _queue(no_delete, QUEUE_OVER)),
        )
        .otherwise(fine)
    )


def _stuck_itself() -> Column:
    return _verdict("QUASI_CLOSED_STUCK")


def _ratis() -> Column:
    """Handler 9; null passes the container on to 12 and 13."""
    n = f.col("ratis")
    # Only when enough replicas are in the container's own state: else close the others first.
    is_safe = (n["mismatch"] == 0) & (n["match"] >= f.col("replication_factor"))
    over_queue = _queue((n["excess_after"] > 0) & is_safe, QUEUE_OVER)
    over_queue_b = _queue((n["excess_b_after"] > 0) & is_safe, QUEUE_OVER)
    may_spare = (f.col("state") != "QUASI_CLOSED") | f.col("qc.has_spare_unhealthy")
    over_b = (n["excess_b"] > 0) & (n["healthy"] > 0)
    return (
        f.when((n["need"] > 0) & (f.size("present") == 0), _verdict("MISSING"))
        .when((n["need"] > 0) & (n["healthy"] == 0), f.lit(None))
        .when(
            n["need"] > 0,
            _verdict("UNDER_REPLICATED", _queue(n["need_after"] > 0, QUEUE_UNDER)),
        )
        .when(n["excess"] > 0, _verdict("OVER_REPLICATED", over_queue))
        .when(over_b & may_spare, _verdict("OVER_REPLICATED", over_queue_b))
        .when(
            ~over_b & f.col("is_misplaced"),
            _verdict("MIS_REPLICATED", _queue(f.col("is_misplaced_after"), QUEUE_UNDER)),
        )
    )


def _ratis_unhealthy() -> Column:
    """Handler 12: nothing healthy is left, so even bad replicas are counted and kept."""
    n = f.col("ratis")
    only_bad = (n["healthy"] == 0) & (n["unhealthy"] > 0)
    return f.when(
        only_bad,
        f.when(
            n["need_b"] > 0,
            _verdict("UNHEALTHY_UNDER_REPLICATED", _queue(n["need_b_after"] > 0, QUEUE_UNDER)),
        )
        .when(
            n["excess_b"] > 0,
            _verdict("UNHEALTHY_OVER_REPLICATED", _queue(n["excess_b_after"] > 0, QUEUE_OVER)),
        )
        .otherwise(_verdict("UNHEALTHY")),
    )


def _has_vulnerable() -> Column:
    return (f.col("state") == "QUASI_CLOSED") & (f.size(f.col("qc.vulnerable")) > 0)


def _vulnerable_or(otherwise: Column) -> Column:
    """Handler 13."""
    return f.when(_has_vulnerable(), _verdict("UNHEALTHY_UNDER_REPLICATED", QUEUE_UNDER)).otherwise(
        otherwise
    )


def _vulnerable_or_fine() -> Column:
    return _vulnerable_or(f.when(_is_qc_stuck(), _stuck_itself()).otherwise(_verdict("HEALTHY")))


def _ec() -> Column:
    """Handlers 8, 10 and 11."""
    ec = f.col("ec")
    wanted = ~ec["is_sufficient_after"] & (~ec["is_unrecoverable"] | ec["has_offline_to_move"])
    queue = _queue(wanted, QUEUE_UNDER)
    gone = ~ec["is_sufficient"] & ec["is_unrecoverable"]
    missing, offline = ec["is_missing"], ec["has_offline_only"]
    return (
        f.when(gone & missing & offline, _verdict("MISSING_UNDER_REPLICATED", queue))
        .when(gone & missing, _verdict("MISSING"))
        .when(gone & offline, _verdict("UNHEALTHY_UNDER_REPLICATED", queue))
        .when(gone, _verdict("UNHEALTHY"))
        .when(~ec["is_sufficient"], _verdict("UNDER_REPLICATED", queue))
        .when(ec["is_over"], _verdict("OVER_REPLICATED", _queue(ec["is_over_after"], QUEUE_OVER)))
        .when(
            (f.col("state") == "CLOSED") & ec["is_unhealthy_doubled"],
            _verdict("UNHEALTHY_OVER_REPLICATED"),
        )
        .when(
            f.col("is_misplaced"),
            _verdict("MIS_REPLICATED", _queue(f.col("is_misplaced_after"), QUEUE_UNDER)),
        )
        .otherwise(_verdict("HEALTHY"))
    )


def _flags() -> Column:
    """Return the independent conditions as one bitmask; each is computed on its own."""
    conditions = _conditions()
    assert set(conditions) == set(FLAGS), "every flag has its condition"
    total = f.lit(0).cast("long")
    for name in FLAGS:
        bit = f.lit(flag_bit(name)).cast("long")
        total = total.bitwiseOR(f.when(conditions[name], bit).otherwise(0))
    return total


def _conditions() -> dict[str, Column]:
    ec, n = f.col("ec"), f.col("ratis")
    is_ec = f.col("replication_type") == "EC"
    state = f.col("state")
    holds = _is_judged() & state.isin("CLOSED", "QUASI_CLOSED") & ~f.col("is_empty")
    none = f.size("present") == 0
    only_bad = (n["healthy"] == 0) & ~none
    lost = f.when(is_ec, ec["is_unrecoverable"]).otherwise(n["healthy"] == 0)
    missing = f.when(is_ec, ec["is_missing"]).otherwise(none)
    under_ratis = f.when(only_bad, n["need_b"] > 0).otherwise((n["need"] > 0) & ~none)
    under_ec = ~ec["is_sufficient"] & (~ec["is_unrecoverable"] | ec["has_offline_only"])
    over_ratis = (n["excess"] > 0) | (
        (n["excess_b"] > 0) & ((state != "QUASI_CLOSED") | f.col("qc.has_spare_unhealthy"))
    )
    stuck = f.col("is_qc_stuck") & f.col("qc.is_stuck") & ~none
    under = f.when(stuck & ~only_bad, f.col("qc.is_under")).otherwise(under_ratis)
    over = f.when(stuck & ~only_bad, f.col("qc.is_over")).otherwise(over_ratis)
    countable = f.col("countable")
    is_under = f.when(is_ec, under_ec).otherwise(under)
    # Replicas that are not there cannot stand on a rack: first enough, then well placed.
    misplaced = f.col("is_misplaced") & ~none & ~is_under & ~lost
    odd = f.exists("present", lambda r: ~is_unhealthy(r) & (r["state"] != state))
    return {
        "MISSING": (holds & missing) | (_is_judged() & (state == "CLOSING") & none),
        "UNDER_REPLICATED": holds & is_under,
        "OVER_REPLICATED": holds & f.when(is_ec, ec["is_over"]).otherwise(over),
        "MIS_REPLICATED": holds & misplaced,
        "UNHEALTHY": holds & lost & ~missing,
        "EMPTY": _is_judged() & f.col("is_empty"),
        "OPEN_UNHEALTHY": _is_judged()
        & (state == "OPEN")
        & f.exists("present", lambda r: r["state"] != "OPEN"),
        "OPEN_WITHOUT_PIPELINE": _is_judged() & (state == "OPEN") & ~f.col("pipeline_alive"),
        "QUASI_CLOSED_STUCK": f.col("is_qc_stuck") & ~f.col("is_empty"),
        "VULNERABLE": holds & ~is_ec & _has_vulnerable(),
        "UNHEALTHY_REPLICA": _is_judged() & (count("present", is_unhealthy) > 0),
        "UNHEALTHY_EXCESS": holds & is_ec & ec["has_unhealthy_excess"],
        "MISMATCHED_STATE": holds & odd,
        "ROOTS_DIFFER": _is_judged() & roots_differ(),
        "TOMBSTONES_DIFFER": _is_judged() & f.col("tombstones_differ"),
        "UNREACHABLE_DIFFERS": _is_judged() & f.col("is_unreachable_different"),
        "SCAN_FINDINGS": _is_judged() & f.exists(countable, lambda r: r["finding_count"] > 0),
        "DATA_AT_RISK": holds & lost,
        "CONTRADICTORY": _is_judged() & (f.col("checksum_class") == "CONTRADICTORY"),
    }
