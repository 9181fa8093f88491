"""A case: one container with all its replicas and pending ops in one row.

    containers ──────────────────────────────┐
    replicas ⋈ nodes (broadcast) ─ group by ─┼─► case: container columns, replicas[], ops[]
    pending_ops ───────────────── group by ──┘

Everything that judges (`compare`, `health`, `plan`) is a column expression over a case. Arrays are
sorted, so equal input gives equal output whatever the order of rows.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_verify.rows import REACHABLE_HEALTHS
from spark_verify.snapshot import Snapshot

IN_SERVICE: Final = "S"
DECOMMISSION: Final = "D"  # DECOMMISSIONING and DECOMMISSIONED: counts nowhere
MAINTENANCE: Final = "M"  # ENTERING_MAINTENANCE and IN_MAINTENANCE

REPLICA_FIELDS: Final = (
    "replica_index",
    "datanode_id",
    "state",
    "origin_id",
    "bcsid",
    "used_bytes",
    "is_empty",
    "tree_algorithm",
    "root",
    "tombstones_checksum",
    "finding_count",
    "is_loaded",
    "is_contradictory",
    "volume_id",
    "op",
    "node_health",
    "rack",
    "is_reachable",
    "is_gone",
)
"""Of one element of `replicas`; index and datanode first, because the array is sorted by them."""


REPLICA_COLUMNS: Final = (
    "container_id",
    "datanode_id",
    "replica_index",
    "state",
    "origin_datanode_id",
    "bcsid",
    "used_bytes",
    "is_empty",
    "tree_algorithm",
    "root",
    "tombstones_checksum",
    "volume_id",
    "finding_count",
    "is_contradictory",
    "load_error",
)
"""What of a replica's row a case is made of."""


def build_cases(snapshot: Snapshot) -> DataFrame:
    """Return one row per container of the snapshot, and one per container only replicas name."""
    replicas = (
        located_replicas(snapshot)
        .groupBy("container_id")
        .agg(f.array_sort(f.collect_list(f.struct(*REPLICA_FIELDS))).alias("replicas"))
    )
    op = f.struct("op", "datanode_id", "replica_index", "rack")
    ops = (
        snapshot.pending_ops.join(
            f.broadcast(snapshot.nodes.select("datanode_id", "rack")), "datanode_id", "left"
        )
        .groupBy("container_id")
        .agg(f.array_sort(f.collect_list(op)).alias("ops"))
    )
    width = f.when(f.col("replication_type") == "EC", f.col("ec_data") + f.col("ec_parity"))
    containers = snapshot.containers.drop("snapshot_id").withColumns(
        {
            "is_known": f.lit(True),
            "replication_factor": f.coalesce(width, f.col("replication_factor")),
        }
    )
    joined = containers.join(replicas, "container_id", "full_outer").join(
        ops, "container_id", "left"
    )
    empty = {name: f.array().cast(joined.schema[name].dataType) for name in ("replicas", "ops")}
    return joined.withColumns(
        {
            "is_known": f.col("is_known").isNotNull(),
            "replicas": f.coalesce("replicas", empty["replicas"]),
            "ops": f.coalesce("ops", empty["ops"]),
        }
    )


def located_replicas(snapshot: Snapshot) -> DataFrame:
    """Return the replicas with what their node adds: where it stands and whether it answers."""
    nodes = snapshot.nodes.select(
        "datanode_id",
        "rack",
        f.col("health").alias("node_health"),
        op_class().alias("op"),
        f.col("health").isin(*REACHABLE_HEALTHS).alias("is_reachable"),
        # A dead node's replicas are lost, unless it is expected back.
        ((f.col("health") == "DEAD") & (f.col("op_state") != "IN_MAINTENANCE")).alias("is_gone"),
    )
    origin = f.when(f.col("origin_datanode_id") == "", f.col("datanode_id")).otherwise(
        f.col("origin_datanode_id")
    )
    return (
        snapshot.replicas.withColumn("origin_id", origin)
        .withColumn(
            # A replica that could not be loaded is there and is bad, whatever it was before.
            "state",
            f.when(f.col("load_error").isNotNull(), f.lit("UNHEALTHY")).otherwise(f.col("state")),
        )
        .withColumn("is_loaded", f.col("load_error").isNull())
        .join(f.broadcast(nodes), "datanode_id", "left")
        .withColumns(
            {
                "is_reachable": f.coalesce("is_reachable", f.lit(False)),
                "is_gone": f.coalesce("is_gone", f.lit(False)),
            }
        )
        .select("container_id", *REPLICA_FIELDS)
    )


def op_class() -> Column:
    """Return a node's operational state as one of the three that are counted apart."""
    state = f.col("op_state")
    return (
        f.when(state == "IN_SERVICE", IN_SERVICE)
        .when(state.isin("DECOMMISSIONING", "DECOMMISSIONED"), DECOMMISSION)
        .otherwise(MAINTENANCE)
    )


def violation() -> Column:
    """Return why a case is impossible, as text naming its rows; null when it is possible."""
    replicas = f.col("replicas")
    nodes = f.transform(replicas, lambda r: r["datanode_id"])
    twice = f.filter(nodes, lambda d: f.size(f.filter(nodes, lambda e: e == d)) > 1)
    homeless = f.filter(replicas, lambda r: r["node_health"].isNull())
    width = f.when(
        f.col("replication_type") == "EC", f.col("ec_data") + f.col("ec_parity")
    ).otherwise(0)
    low = f.when(f.col("replication_type") == "EC", 1).otherwise(0)
    astray = f.filter(replicas, lambda r: (r["replica_index"] < low) | (r["replica_index"] > width))
    return (
        f.when(f.size(twice) > 0, f.concat(f.lit("two replicas on datanode "), twice[0]))
        .when(
            f.size(homeless) > 0,
            f.concat(
                f.lit("a replica on datanode "),
                homeless[0]["datanode_id"],
                f.lit(" that table nodes/ does not list"),
            ),
        )
        .when(
            f.col("is_known") & (f.size(astray) > 0),
            f.concat(
                f.lit("replica index "),
                astray[0]["replica_index"].cast("string"),
                f.lit(" out of range on datanode "),
                astray[0]["datanode_id"],
            ),
        )
    )
