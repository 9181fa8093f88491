"""Synthetic clusters of any size with seeded faults, and the truth about them.

Everything follows from (seed, container id), so two runs give the same cluster. `truth/` beside the
snapshot has, for each container, the seeded fault, and the flags and class that a verification must
give. Ordinary conditions have flags 0: nodes in maintenance, EC, replicas not yet scanned and trees
of two algorithms.

Replicas of one container are on neighbouring nodes; neighbours are on different racks.

    python -m bench.verification.synthetic generate DIR --containers N
    python -m bench.verification.synthetic score SNAPSHOT RUN
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type

from health.tables.snapshot_columns import SCHEMA_VERSION
from health.words import flag_bit
from spark_verify.input_columns import TABLES
from spark_verify.session import open_session

AS_OF_MS: Final = 1_760_000_000_000
MILLION: Final = 1_000_000

_DAMAGED: Final = ("UNDER_REPLICATED", "ROOTS_DIFFER", "UNHEALTHY_REPLICA", "SCAN_FINDINGS")
"""Flags of a container with a damaged replica. The damaged replica does not count as a copy, so the
container is also under-replicated."""

FAULTS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    # what was done to a Ratis container: flags it must get, class it must get
    "FLIPPED": (_DAMAGED, "MISMATCH_MINORITY"),
    "DIVERGED": (("ROOTS_DIFFER",), "MISMATCH_MINORITY"),
    "SPLIT": (("ROOTS_DIFFER",), "MISMATCH_SPLIT"),
    "LOST_ONE": (("UNDER_REPLICATED",), "MATCH"),
    "LOST_ALL": (("MISSING", "DATA_AT_RISK"), "EMPTY"),
    "ALL_BAD": (("UNHEALTHY", "UNHEALTHY_REPLICA", "SCAN_FINDINGS", "DATA_AT_RISK"), "MATCH"),
    "EXTRA": (("OVER_REPLICATED",), "MATCH"),
    "ORPHANS": (("TOMBSTONES_DIFFER",), "MATCH"),
    "ONE_RACK": (("MIS_REPLICATED",), "MATCH"),
    # to an EC container
    "EC_LOST_ONE": (("UNDER_REPLICATED",), "NOT_COMPARABLE"),
    "EC_LOST_MANY": (("MISSING", "DATA_AT_RISK"), "NOT_COMPARABLE"),
    "EC_BAD": (("UNDER_REPLICATED", "UNHEALTHY_REPLICA", "SCAN_FINDINGS"), "NOT_COMPARABLE"),
    # FLIPPED above, because of one bad volume
    "BAD_VOLUME": (_DAMAGED, "MISMATCH_MINORITY"),
}
RATIS_FAULTS: Final = tuple(FAULTS)[:9]
EC_FAULTS: Final = tuple(FAULTS)[9:12]

ROWS_PER_GROUP: Final = 100_000
"""Number of rows in a row group, as in the control plane's snapshots."""

SLOTS: Final = 5
"""Maximum number of replicas of a container. EC 3-2 needs five."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a cluster."""

    containers: int
    seed: int = 1
    nodes: int = 48
    racks: int = 8
    ec_per_million: int = 200_000
    open_per_million: int = 50_000
    unscanned_per_million: int = 100_000
    faults_per_million: int = 5_000
    maintenance_every: int = 24
    """Every n-th node is in maintenance, where n is this number; 0 = no node."""
    old_every: int = 16
    """Every n-th node runs an older release with the other tree algorithm, where n is this number;
    0 = no node."""
    bad_node: int = -1
    """Number of the node whose volume v2 damages its replicas; -1 = no node."""
    bad_per_million: int = 300_000
    """Number of damaged replicas per million replicas on volume v2 of `bad_node`."""

    @property
    def node_count(self) -> int:
        """Number of nodes, rounded up so that neighbours are always on different racks."""
        return -(-max(self.nodes, 2 * SLOTS) // self.racks) * self.racks


def generate(spark: SparkSession, shape: Shape, directory: Path) -> dict[str, int]:
    """Write the snapshot and its truth into the new `directory`; return the row counts."""
    directory.mkdir(parents=True)
    snapshot_id = f"generated-{shape.seed}-{shape.containers}"
    boxes = containers(spark, shape)
    tables = {
        "containers": _container_rows(boxes),
        "replicas": _replica_rows(boxes, shape),
        "nodes": _node_rows(spark, shape),
        "pending_ops": spark.range(0).select(
            *[
                f.lit(None).cast(from_arrow_type(c.type)).alias(c.name)
                for c in TABLES["pending_ops"]
            ]
        ),
    }
    counts = {}
    for name, columns in TABLES.items():
        rows = tables[name].withColumn("snapshot_id", f.lit(snapshot_id))
        rows = rows.select(*[column.name for column in columns])
        writer = rows.write.option("compression", "zstd")
        writer = writer.option("parquet.block.row.count.limit", str(ROWS_PER_GROUP))
        writer.parquet(str(directory / name))
        counts[name] = spark.read.parquet(str(directory / name)).count()
    _truth(boxes).write.parquet(str(directory / "truth"))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "snapshot_id": snapshot_id,
        "as_of_ms": AS_OF_MS,
        "term": 1,
        "cluster_id": "generated",
        "rows": counts,
    }
    (directory / "manifest.json").write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    return counts


def _draw(shape: Shape, what: str, *more: Column) -> Column:
    """Return a number below a million that depends only on the container and on `what`."""
    return f.pmod(
        f.xxhash64(f.col("container_id"), *more, f.lit(shape.seed), f.lit(what)), f.lit(MILLION)
    )


def containers(spark: SparkSession, shape: Shape) -> DataFrame:
    """Return every container with its plan: type, state, first node, fault."""
    count = shape.node_count
    ids = spark.range(1, shape.containers + 1).withColumnRenamed("id", "container_id")
    first = f.pmod(f.xxhash64("container_id", f.lit(shape.seed), f.lit("node")), f.lit(count))
    drawn = ids.withColumns(
        {
            "is_ec": _draw(shape, "ec") < shape.ec_per_million,
            "is_open": _draw(shape, "open") < shape.open_per_million,
            "first": first.cast("int"),
        }
    )
    ordinary = ~f.col("is_open") & ~_touches(shape.maintenance_every, shape)
    kind = f.when(f.col("is_ec"), _pick(shape, EC_FAULTS)).otherwise(_pick(shape, RATIS_FAULTS))
    seeded = f.when(ordinary & (_draw(shape, "fault") < shape.faults_per_million), kind)
    on_bad_volume = (
        ordinary
        & ~f.col("is_ec")
        & (f.col("first") == shape.bad_node)
        & (_volume(shape, f.lit(0)) == "v2")
        & (_draw(shape, "bad") < shape.bad_per_million)
    )
    fault = f.when(on_bad_volume, "BAD_VOLUME").otherwise(f.coalesce(seeded, f.lit("")))
    return drawn.withColumn("fault", fault)


def _pick(shape: Shape, faults: tuple[str, ...]) -> Column:
    names = f.array(*[f.lit(name) for name in faults])
    return f.element_at(names, (_draw(shape, "kind") % len(faults) + 1).cast("int"))


def _touches(every: int, shape: Shape) -> Column:
    """Return a column: True if one of the container's replicas may be on an `every`-th node."""
    if not every:
        return f.lit(False)
    places = [(f.col("first") + i) % shape.node_count % every == every - 1 for i in range(SLOTS)]
    touched = places[0]
    for place in places[1:]:
        touched = touched | place
    return touched


def _volume(shape: Shape, place: Column) -> Column:
    return f.concat(f.lit("v"), (_draw(shape, "volume", place) % 4).cast("string"))


def _container_rows(boxes: DataFrame) -> DataFrame:
    is_ec = f.col("is_ec")
    return boxes.select(
        "container_id",
        f.when(is_ec, "EC").otherwise("RATIS").alias("replication_type"),
        f.when(is_ec, SLOTS).otherwise(3).alias("replication_factor"),
        f.when(is_ec, 3).alias("ec_data"),
        f.when(is_ec, 2).alias("ec_parity"),
        f.when(f.col("is_open"), "OPEN").otherwise("CLOSED").alias("state"),
        f.lit(10).cast("long").alias("sequence_id"),
        f.lit(None).cast("long").alias("acknowledged_bcsid"),
        f.lit(100).cast("long").alias("key_count"),
        (f.col("container_id") % 5000 * 1_000_000 + 4096).alias("used_bytes"),
        f.lit(AS_OF_MS - 86_400_000).cast("long").alias("state_since_ms"),
        f.lit(True).alias("pipeline_alive"),
        f.lit(False).alias("suppressed"),
        f.lit(False).alias("owes_deletes"),
        f.lit(None).cast("string").alias("health_state"),
    )


def _places(boxes: DataFrame) -> DataFrame:
    """Return one row per existing replica, with its place counted from 0."""
    fault = f.col("fault")
    wanted = (
        f.when(fault == "LOST_ONE", 2)
        .when(fault == "LOST_ALL", 0)
        .when(fault == "EXTRA", 4)
        .when(fault == "EC_LOST_ONE", 4)
        .when(fault == "EC_LOST_MANY", 2)
        .when(f.col("is_ec"), SLOTS)
        .otherwise(3)
    )
    places = f.filter(f.sequence(f.lit(0), f.lit(SLOTS - 1)), lambda i: i < wanted)
    return boxes.withColumn("place", f.explode(places))


def _replica_rows(boxes: DataFrame, shape: Shape) -> DataFrame:
    place, fault, is_ec = f.col("place"), f.col("fault"), f.col("is_ec")
    step = f.when(fault == "ONE_RACK", shape.racks).otherwise(1)
    node = ((f.col("first") + place * step) % shape.node_count).cast("int")
    rows = _places(boxes).withColumn("node", node)
    every = max(shape.old_every, 1)
    is_old = (f.col("node") % every == every - 1) if shape.old_every else f.lit(False)
    index = f.when(is_ec, place + 1).otherwise(0)
    is_first = place == 0
    is_flipped = (fault.isin("FLIPPED", "BAD_VOLUME", "EC_BAD") & is_first) | (fault == "ALL_BAD")
    content = f.xxhash64("container_id", index)
    other = f.xxhash64("container_id", index, place, f.lit("other"))
    differs = (fault.isin("FLIPPED", "DIVERGED", "BAD_VOLUME") & is_first) | (fault == "SPLIT")
    unscanned = (fault == "") & (_draw(shape, "unscanned", place) < shape.unscanned_per_million)
    no_tree = unscanned | f.col("is_open")
    algorithm = f.when((fault == "") & is_old, "crc32c").otherwise("xxh3_64")
    rows = rows.select(
        "container_id",
        _node_id(f.col("node")).alias("datanode_id"),
        index.alias("replica_index"),
        f.when(f.col("is_open"), "OPEN")
        .when(is_flipped, "UNHEALTHY")
        .otherwise("CLOSED")
        .alias("state"),
        _node_id(f.col("node")).alias("origin_datanode_id"),
        f.lit(10).cast("long").alias("bcsid"),
        f.lit(100).cast("long").alias("block_count"),
        (f.col("container_id") % 5000 * 1_000_000 + 4096).alias("used_bytes"),
        f.lit(False).alias("is_empty"),
        f.when(~no_tree, algorithm).alias("tree_algorithm"),
        f.when(~no_tree, f.when(differs, other).otherwise(content)).alias("root"),
        f.lit(None).cast("long").alias("settled_root"),
        f.when(
            ~no_tree, f.when((fault == "ORPHANS") & is_first, 5).otherwise(0).cast("long")
        ).alias("tombstones_checksum"),
        f.when(~no_tree, 0).alias("tombstone_count"),
        f.when(~no_tree, 1).cast("long").alias("tree_generation"),
        _volume(shape, place).alias("volume_id"),
        f.when(~no_tree, f.lit(AS_OF_MS) - _draw(shape, "scan", place) * 604 - 60_000).alias(
            "data_scan_at_ms"
        ),
        f.when(is_flipped, 1).otherwise(0).alias("finding_count"),
        f.lit(False).alias("is_contradictory"),
        f.lit(False).alias("is_barred"),
        f.lit(False).alias("is_hopeful"),
        f.lit(None).cast("string").alias("load_error"),
        f.lit(AS_OF_MS - 30_000).cast("long").alias("reported_at_ms"),
    )
    # As the control plane writes them: all replicas of a container are in its partition.
    return rows.sortWithinPartitions("container_id", "datanode_id")


def _node_id(node: Column) -> Column:
    return f.concat(f.lit("dn-"), f.lpad(node.cast("string"), 5, "0"))


def _node_rows(spark: SparkSession, shape: Shape) -> DataFrame:
    node = f.col("id").cast("int")
    rests = shape.maintenance_every
    is_resting = (node % rests == rests - 1) if rests else f.lit(False)
    is_old = (node % shape.old_every == shape.old_every - 1) if shape.old_every else f.lit(False)
    zero = f.lit(0)
    return spark.range(shape.node_count).select(
        _node_id(node).alias("datanode_id"),
        f.concat(f.lit("10.0.0."), node.cast("string"), f.lit(":9859")).alias("address"),
        f.concat(f.lit("/rack-"), (node % shape.racks).cast("string")).alias("rack"),
        f.when(is_old, "0.0.9").otherwise("0.1.0").alias("version"),
        f.lit("HEALTHY").alias("health"),
        f.when(is_resting, "IN_MAINTENANCE").otherwise("IN_SERVICE").alias("op_state"),
        f.lit(None).cast("long").alias("op_expiry_ms"),
        f.lit(AS_OF_MS - 5000).cast("long").alias("last_heartbeat_at_ms"),
        f.lit(True).alias("has_reported"),
        f.lit(100 * 10**12).cast("long").alias("capacity_bytes"),
        f.lit(40 * 10**12).cast("long").alias("available_bytes"),
        *[zero.alias(f"queued_{what}") for what in ("replicate", "reconstruct")],
        *[zero.alias(f"queued_{what}") for what in ("delete", "reconcile")],
    )


def _truth(boxes: DataFrame) -> DataFrame:
    flags, classes = f.lit(0).cast("long"), f.lit("")
    for fault, (names, checksum_class) in FAULTS.items():
        value = sum(flag_bit(name) for name in names)
        flags = f.when(f.col("fault") == fault, f.lit(value).cast("long")).otherwise(flags)
        classes = f.when(f.col("fault") == fault, checksum_class).otherwise(classes)
    return boxes.select(
        "container_id",
        "fault",
        flags.alias("expected_flags"),
        classes.alias("expected_class"),
    )


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("generate")
def generate_command(
    directory: Annotated[Path, typer.Argument(help="New directory of the snapshot.")],
    containers: Annotated[int, typer.Option(min=1, help="How many containers.")] = 100_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same cluster.")] = 1,
    nodes: Annotated[int, typer.Option(min=10, help="How many datanodes, at least.")] = 48,
    racks: Annotated[int, typer.Option(min=5, help="How many racks.")] = 8,
    faults_per_million: Annotated[int, typer.Option(min=0, max=1_000_000)] = 5_000,
    unscanned_per_million: Annotated[int, typer.Option(min=0, max=1_000_000)] = 100_000,
    old_every: Annotated[int, typer.Option(min=0, help="Nodes of which one is old; 0: none.")] = 16,
    maintenance_every: Annotated[
        int, typer.Option(min=0, help="Nodes of which one is in maintenance; 0: none.")
    ] = 24,
    bad_node: Annotated[int, typer.Option(help="Number of a node with a bad volume.")] = -1,
) -> None:
    """Write a synthetic cluster with seeded faults, and the truth about it."""
    shape = Shape(
        containers,
        seed=seed,
        nodes=nodes,
        racks=racks,
        faults_per_million=faults_per_million,
        unscanned_per_million=unscanned_per_million,
        old_every=old_every,
        maintenance_every=maintenance_every,
        bad_node=bad_node,
    )
    made = generate(open_session(row_count=4 * containers), shape, directory)
    typer.echo(json.dumps({"path": str(directory)} | made))


@app.command("score")
def score_command(
    snapshot: Annotated[Path, typer.Argument(help="A generated snapshot.")],
    run: Annotated[str, typer.Argument(help="The run_id=... directory of its verification.")],
) -> None:
    """Compare a run with the seeded truth; exit code 2 when anything was classed wrongly."""
    from bench.verification.score import score

    rows = json.loads((snapshot / "manifest.json").read_text(encoding="utf-8"))["rows"]["replicas"]
    found = score(open_session(row_count=rows), str(snapshot), run)
    typer.echo(json.dumps(found, indent=2))
    raise typer.Exit(2 if found["wrong"] else 0)


if __name__ == "__main__":
    app()
