"""The judge at work: rows of whole containers in, rows of the result out.

    containers ─┐           a few: collected ───────────────────► cut in pieces ─┐
    replicas   ─┼─ to judge                                                      ├► health.judge
    pending_ops ┘           many: united ─► exchange by container ─► Arrow batches ┘

Spark distributes, the judge decides. A piece ends between two containers, so each is judged with
all its rows side by side, whatever else its piece holds. Each task also returns what it counted, so
that no table is read again only to be counted.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from health.batch import Nodes, violations
from health.judge import judge
from health.rules import Rules
from spark_verify.batches import cut_of
from spark_verify.manifest import Manifest
from spark_verify.results import Rows
from spark_verify.rows import CONTAINERS, JUDGED, PENDING_OPS, REPLICAS, TALLY, Column, spark_schema
from spark_verify.snapshot import Snapshot
from spark_verify.tallies import Tallies
from spark_verify.verdict_rows import Stamp, judged_tables
from spark_verify.violations import impossible

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

FOUND: Final = t.StructType(
    [
        *(t.StructField(name, shape.spark) for name, shape in JUDGED.items()),
        t.StructField("tallies", t.ArrayType(TALLY.spark)),
    ]
)
"""What Spark's tasks return: in each row all is null but the row of one table, or the tallies."""


@dataclass(frozen=True, slots=True)
class Case:
    """What the judge is told beside the rows."""

    nodes: Nodes
    rules: Rules
    stamp: Stamp
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Found:
    """What the judge found: rows of each table of `rows.JUDGED`, and what was counted of them."""

    tables: dict[str, Rows]
    tallies: Tallies


def judged_here(parts: dict[str, pa.Table], case: Case) -> Found:
    """Judge rows that this process holds."""
    tallies = Tallies()
    found = {name: [shape.arrow_schema.empty_table()] for name, shape in JUDGED.items()}
    for piece in pieces(parts) if any(table.num_rows for table in parts.values()) else ():
        for name, table in _judged(piece, case, tallies).items():
            found[name].append(table)
    return Found({name: pa.concat_tables(tables) for name, tables in found.items()}, tallies)


def pieces(parts: dict[str, pa.Table]) -> Iterator[dict[str, pa.Table]]:
    """Cut tables into pieces of some ROWS_PER_BATCH replicas, and no container in two."""
    by_id = {name: table.sort_by("container_id") for name, table in parts.items()}
    ids = {name: table["container_id"].to_numpy() for name, table in by_id.items()}
    firsts = np.unique(ids["replicas"][ROWS_PER_BATCH::ROWS_PER_BATCH])
    ends = {name: [*np.searchsorted(own, firsts), len(own)] for name, own in ids.items()}
    starts = dict.fromkeys(parts, 0)
    for i in range(len(firsts) + 1):
        yield {n: by_id[n].slice(starts[n], ends[n][i] - starts[n]) for n in parts}
        starts = {name: ends[name][i] for name in parts}


def judged(snapshot: Snapshot, case: Case) -> DataFrame:
    """Return what Spark's tasks find of every container of the snapshot, as rows of FOUND."""
    spark = snapshot.containers.sparkSession
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_BATCH))
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert partitions is not None, "Spark has a default for it"
    rows = _united(snapshot).repartition(int(partitions), "container_id")
    return rows.sortWithinPartitions("container_id").mapInArrow(_judging(case), FOUND)


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


def _judging(case: Case) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tallies = Tallies()
        for rows in whole_containers(batches):
            found = _judged({name: _part(rows, name) for name in PARTS}, case, tallies)
            for name, table in found.items():
                for batch in table.combine_chunks().to_batches():
                    yield _found(**{name: batch.to_struct_array()})
        listed = pa.list_(TALLY.arrow)
        yield _found(tallies=pa.array([tallies.rows()], listed))

    return run


def _found(**own: pa.Array) -> pa.RecordBatch:
    types = {name: shape.arrow for name, shape in JUDGED.items()}
    types["tallies"] = pa.list_(TALLY.arrow)
    (count,) = map(len, own.values())
    return pa.RecordBatch.from_pydict(
        {name: own.get(name, pa.nulls(count, kind)) for name, kind in types.items()}
    )


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


def _judged(parts: dict[str, pa.Table], case: Case, tallies: Tallies) -> dict[str, pa.Table]:
    tallies.count_rows(*(parts[name].num_rows for name in PARTS))
    if wrong := [name for name, table in parts.items() if impossible(name, table, case.manifest)]:
        for name in wrong:
            tallies.add("impossible", (name,), (1,))
        return {}  # the snapshot is refused: what cannot be is not judged
    tallies.twice(parts["containers"]["container_id"].to_numpy())
    cut = cut_of(parts["containers"], parts["replicas"], parts["pending_ops"], case.nodes)
    if contradictions := violations(
        cut.batch, lambda row: cut.replicas["datanode_id"][row].as_py()
    ):
        tallies.violations(contradictions)
        return {}
    judgement = judge(cut.batch, case.rules)
    tallies.count(judgement, cut)
    tallies.compare(judgement, parts["containers"])
    return judged_tables(judgement, cut, case.stamp)


def _part(rows: pa.Table, name: str) -> pa.Table:
    column = rows[name]
    present = column.filter(pc.is_valid(column))
    table: pa.Table = pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(chunk) for chunk in present.chunks],
        pa.schema(list(column.type)),
    )
    return table
