"""The judge on Spark: containers, replicas and pending operations in, one row per container out.

    containers ─┐
    replicas   ─┼─ union ─► exchange by container ─► sorted ─► Arrow batches ─► health.judge
    pending_ops ┘

Spark distributes, the judge decides. A batch ends between two containers, so each is judged with
all its rows side by side, whatever else its batch holds. The last row of each task has no container
id and carries what the task counted, so that no table is read again only to be counted.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from health.batch import Nodes, violations
from health.judge import judge
from health.rules import Rules
from spark_verify.batches import cut_of
from spark_verify.rows import CONTAINERS, PENDING_OPS, REPLICAS, Column, spark_schema
from spark_verify.snapshot import Snapshot
from spark_verify.tallies import Tallies
from spark_verify.verdict_rows import JUDGED_ROW, judged_rows, tally_row

ROWS_PER_BATCH: Final = 50_000
"""Rows judged at once: enough that numpy's calls cost nothing, few enough for caches."""

JUDGED_REPLICA_COLUMNS: Final = (
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
    "block_count",
    "tombstone_count",
    "is_barred",
    "is_hopeful",
)
"""What of a replica's row is judged; the rest need not be decoded."""


def _kept(columns: Iterable[Column], names: Iterable[str]) -> tuple[Column, ...]:
    wanted = {column.name: column for column in columns}
    return tuple(wanted[name] for name in names)


PARTS: Final = {
    "containers": tuple(c for c in CONTAINERS if c.name != "snapshot_id"),
    "replicas": _kept(REPLICAS, JUDGED_REPLICA_COLUMNS),
    "pending_ops": tuple(c for c in PENDING_OPS if c.name != "snapshot_id"),
}
"""The tables that a container's rows come from, in the order in which they are united."""


def judged(snapshot: Snapshot, nodes: Nodes, rules: Rules) -> DataFrame:
    """Return every container of the snapshot with all that is concluded about it, and rows of
    tallies without a container id."""
    spark = snapshot.containers.sparkSession
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_BATCH))
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert partitions is not None, "Spark has a default for it"
    rows = _united(snapshot).repartition(int(partitions), "container_id")
    return rows.sortWithinPartitions("container_id").mapInArrow(
        _judging(nodes, rules), JUDGED_ROW.spark
    )


def _united(snapshot: Snapshot) -> DataFrame:
    """Return the rows of all three tables, each table's columns in a struct of its own."""
    frames = []
    for name in PARTS:
        structs = [
            f.struct(*[c.name for c in columns]).alias(other)
            if other == name
            else f.lit(None).cast(spark_schema(columns)).alias(other)
            for other, columns in PARTS.items()
        ]
        frames.append(snapshot.table(name).select("container_id", *structs))
    first, *others = frames
    for frame in others:
        first = first.unionByName(frame)
    return first


def _judging(
    nodes: Nodes, rules: Rules
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tallies = Tallies()
        for rows in whole_containers(batches):
            if judged_batch := _judged(rows, nodes, rules, tallies):
                yield judged_batch
        yield tally_row(tallies.rows())

    return run


def whole_containers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows, which ascend by container, such that no container is in two tables."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        ids = batch.column("container_id")
        if not len(ids):
            continue
        cut = pc.index(ids, ids[len(ids) - 1]).as_py()
        if cut or (held and held[-1].column("container_id")[-1] != ids[0]):
            yield pa.Table.from_batches([*held, batch.slice(0, cut)], batch.schema)
            held = []
        held.append(batch.slice(cut))
    if held:
        yield pa.Table.from_batches(held)


def _judged(rows: pa.Table, nodes: Nodes, rules: Rules, tallies: Tallies) -> pa.RecordBatch | None:
    parts = {name: _part(rows, name) for name in PARTS}
    tallies.count_rows(*(part.num_rows for part in parts.values()))
    tallies.twice(parts["containers"]["container_id"].to_numpy())
    cut = cut_of(parts["containers"], parts["replicas"], parts["pending_ops"], nodes)
    if wrong := violations(cut.batch, lambda row: cut.replicas["datanode_id"][row].as_py()):
        tallies.violations(wrong)
        return None  # the snapshot is refused: what cannot be is not judged
    judgement = judge(cut.batch, rules)
    tallies.count(judgement, cut)
    tallies.compare(judgement, parts["containers"])
    return judged_rows(judgement, cut)


def _part(rows: pa.Table, name: str) -> pa.Table:
    column = rows[name]
    present = column.filter(pc.is_valid(column))
    table: pa.Table = pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(chunk) for chunk in present.chunks],
        pa.schema(list(column.type)),
    )
    return table
