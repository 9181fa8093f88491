"""Collects all rows of a container into one row, a case, for the judge.

    container_id | containers: [struct] | replicas: [struct] | pending_ops: [struct]

`containers` is empty if only replicas or pending operations name the container.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from spark_verify.input_columns import CONTAINERS, PENDING_OPS, REPLICAS
from spark_verify.snapshot.tables import Snapshot

JUDGED_REPLICA_COLUMNS: Final = (
    "datanode_id",
    "replica_index",
    "state",
    "origin_datanode_id",
    "bcsid",
    "used_bytes",
    "is_empty",
    "tree_algorithm",
    "root",
    "settled_root",
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
"""Replica columns that the judge or its output rows need."""

NESTED: Final[dict[str, tuple[str, ...]]] = {
    "containers": tuple(
        c.name for c in CONTAINERS if c.name not in ("snapshot_id", "container_id")
    ),
    "replicas": tuple(c.name for c in REPLICAS if c.name in JUDGED_REPLICA_COLUMNS),
    "pending_ops": tuple(
        c.name for c in PENDING_OPS if c.name not in ("snapshot_id", "container_id")
    ),
}
"""Fields of each table's rows within a case."""


def cases(snapshot: Snapshot, wanted: DataFrame) -> DataFrame:
    """Return one row per container in `wanted`, with a single exchange."""
    parts = [
        _nested(snapshot.table(name), name, fields).join(wanted, "container_id", "left_semi")
        for name, fields in NESTED.items()
    ]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    lists = ", ".join(f"collect_list({name}) AS {name}" for name in NESTED)
    return rows.sparkSession.sql(
        f"SELECT container_id, {lists} FROM {{rows}} GROUP BY container_id",  # noqa: S608 -- our names
        rows=rows,
    )


def _nested(table: DataFrame, name: str, fields: Sequence[str]) -> DataFrame:
    return table.selectExpr("container_id", f"struct({', '.join(fields)}) AS {name}")
