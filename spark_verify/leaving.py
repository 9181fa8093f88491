"""Nodes that leave: what still holds each back, and what would be locked out if it went now.

A node may be switched off when every container on it is closed, has a good replica in service, and
has enough replicas without it. Ozone asks one counter for that and does not see containers that
are unhealthy, missing or stuck; here every one of them holds the node back.
"""

from collections import Counter
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.case import DECOMMISSION, IN_SERVICE
from spark_verify.health import flag_bit
from spark_verify.replicas import is_unhealthy

SHOWN_MAX: Final = 500


def leaving_nodes(
    judged: DataFrame, nodes: DataFrame, volumes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return one entry per node that is not in service, most held back first.

    `volumes` says how many replicas each node has: plain containers hold nobody back and are not
    among the judged ones.
    """
    held: Counter[str] = Counter()
    for volume in volumes:
        held[volume["datanode_id"]] += volume["replicas"]
    replicas = judged.filter("is_known").withColumn("r", f.explode("present"))
    on_leaving = replicas.filter(f.col("r.op") != IN_SERVICE)
    counts = (
        on_leaving.withColumn("held", _held_by())
        .groupBy(f.col("r.datanode_id").alias("datanode_id"))
        .agg(
            *[f.count_if(f.col("held") == why).alias(why) for why in HELD_BY],
            f.count_if(_locks_out()).alias("locked_out_now"),
            f.count_if((f.col("held") != "") & f.exists("ops", lambda o: o["op"] == "ADD")).alias(
                "in_progress"
            ),
        )
    )
    rows = (
        nodes.filter("op_state <> 'IN_SERVICE'")
        .join(f.broadcast(counts), "datanode_id", "left")
        .na.fill(0)
        .orderBy("datanode_id")
        .limit(SHOWN_MAX)
        .collect()
    )
    found = [_entry(row.asDict(), held[row["datanode_id"]]) for row in rows]
    return sorted(found, key=lambda e: (-e["remaining"], e["datanode_id"]))


HELD_BY: Final = ("unclosed", "no_good_replica", "too_few")
"""Stop conditions in the order they are asked."""


def _entry(row: dict[str, Any], containers: int) -> dict[str, Any]:
    remaining = sum(row[why] for why in HELD_BY)
    return {
        "datanode_id": row["datanode_id"],
        "op_state": row["op_state"],
        "health": row["health"],
        "containers": containers,
        **{why: row[why] for why in HELD_BY},
        "in_progress": row["in_progress"],
        "remaining": remaining,
        "locked_out_now": row["locked_out_now"],
        "may_go": remaining == 0,
    }


def _held_by() -> Column:
    """Return the first stop condition a container does not meet, "" when it meets all."""
    state = f.col("state")
    r = f.col("r")
    online = f.filter("present", lambda o: (o["op"] == IN_SERVICE) & ~is_unhealthy(o))
    is_ec = f.col("replication_type") == "EC"
    closed = state.isin("CLOSED", "QUASI_CLOSED") & f.forall(online, lambda o: o["state"] == state)
    under = f.col("flags").bitwiseAND(f.lit(flag_bit("UNDER_REPLICATED"))) != 0
    lost = f.lit(flag_bit("DATA_AT_RISK") | flag_bit("VULNERABLE"))
    at_risk = f.col("flags").bitwiseAND(lost) != 0
    has_twin = f.exists(online, lambda o: o["replica_index"] == r["replica_index"])
    short = f.when(is_ec & (r["op"] == DECOMMISSION), ~has_twin).otherwise(under)
    return (
        f.when(state.isin("DELETING", "DELETED") | f.col("is_empty"), "")
        .when(~closed, "unclosed")
        .when(at_risk | ((f.size(online) == 0) & ~is_ec), "no_good_replica")
        .when(short, "too_few")
        .otherwise("")
    )


def _locks_out() -> Column:
    """Whether the data could not be read any more without this one replica."""
    r = f.col("r")
    others = f.filter(
        "present",
        lambda o: (o["datanode_id"] != r["datanode_id"]) & ~is_unhealthy(o) & o["is_reachable"],
    )
    indexes = f.size(f.array_distinct(f.transform(others, lambda o: o["replica_index"])))
    readable = f.when(f.col("replication_type") == "EC", indexes >= f.col("ec_data")).otherwise(
        f.size(others) > 0
    )
    return ~readable & ~f.col("is_empty") & f.col("state").isin("CLOSED", "QUASI_CLOSED")
