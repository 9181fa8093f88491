"""The schemas of everything the job reads and writes, in one place, versioned.

Spark has no unsigned 64-bit integer, so roots and tombstone checksums travel as signed longs in
two's complement: the same 64 bits, read with a sign. They are only ever compared for equality.
`root_text` gives the unsigned hexadecimal word that every other part of Suture prints.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import types as t

from health.words import (
    CONTAINER_STATES,
    NODE_HEALTHS,
    OP_STATES,
    OPS,
    REPLICA_STATES,
    REPLICATION_TYPES,
    Health,
)

SCHEMA_VERSION: Final = 4
"""Of the input. A snapshot of another version is refused: an older one lacks columns."""

RESULT_VERSION: Final = 2
"""Of the output, written into its manifest and summary."""

ROWS_PER_CONTAINER_MAX: Final = 1_023
"""Replicas, or pending ops, of one container: some twenty are usual. What is judged side by side is
bounded, and so is what the screen counts."""

AHEAD_MAX_MS: Final = 3_600_000
"""How far an instant may lie in the future: clocks differ, but not by more than an hour."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its words are checked when `words` is not empty."""

    name: str
    type: t.DataType
    nullable: bool = False
    words: tuple[str, ...] = ()


def _columns(text: str, words: dict[str, tuple[str, ...]] | None = None) -> tuple[Column, ...]:
    """Parse `name type` lines; a trailing `?` means nullable."""
    kinds: dict[str, t.DataType] = {
        "long": t.LongType(),
        "int": t.IntegerType(),
        "string": t.StringType(),
        "boolean": t.BooleanType(),
        "double": t.DoubleType(),
    }
    columns = []
    for line in text.strip().splitlines():
        name, kind = line.split()
        columns.append(
            Column(name, kinds[kind.rstrip("?")], kind.endswith("?"), (words or {}).get(name, ()))
        )
    return tuple(columns)


CONTAINERS: Final = _columns(
    """
    snapshot_id string
    container_id long
    replication_type string
    replication_factor int
    ec_data int?
    ec_parity int?
    state string
    sequence_id long
    acknowledged_bcsid long?
    key_count long
    used_bytes long
    state_since_ms long
    pipeline_alive boolean
    suppressed boolean
    owes_deletes boolean
    health_state string?
    """,
    {
        "replication_type": REPLICATION_TYPES,
        "state": CONTAINER_STATES,
        "health_state": tuple(state.name for state in Health),
    },
)
REPLICAS: Final = _columns(
    """
    snapshot_id string
    container_id long
    datanode_id string
    replica_index int
    state string
    origin_datanode_id string
    bcsid long?
    block_count long
    used_bytes long
    is_empty boolean
    tree_algorithm string?
    root long?
    tombstones_checksum long?
    tombstone_count int?
    tree_generation long?
    volume_id string
    data_scan_at_ms long?
    finding_count int
    is_contradictory boolean
    is_barred boolean
    is_hopeful boolean
    load_error string?
    reported_at_ms long
    """,
    {"state": REPLICA_STATES},
)
NODES: Final = _columns(
    """
    snapshot_id string
    datanode_id string
    address string
    rack string
    version string
    health string
    op_state string
    op_expiry_ms long?
    last_heartbeat_at_ms long
    has_reported boolean
    capacity_bytes long
    available_bytes long
    queued_replicate int
    queued_reconstruct int
    queued_delete int
    queued_reconcile int
    """,
    {"health": NODE_HEALTHS, "op_state": OP_STATES},
)
PENDING_OPS: Final = _columns(
    """
    snapshot_id string
    container_id long
    op string
    datanode_id string
    replica_index int
    deadline_ms long
    command_id long
    """,
    {"op": OPS},
)

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "containers": CONTAINERS,
    "replicas": REPLICAS,
    "nodes": NODES,
    "pending_ops": PENDING_OPS,
}
"""The input: one directory of Parquet files each."""


def spark_schema(columns: tuple[Column, ...]) -> t.StructType:
    """Return the Spark schema of a table."""
    return t.StructType([t.StructField(c.name, c.type, c.nullable) for c in columns])


PLAN_REPLICA: Final = t.StructType(
    [
        t.StructField("datanode_id", t.StringType(), nullable=False),
        t.StructField("state", t.StringType(), nullable=False),
        t.StructField("root", t.LongType(), nullable=True),
        t.StructField("tree_algorithm", t.StringType(), nullable=True),
    ]
)

RECONCILE_PLAN: Final = t.StructType(
    [
        t.StructField("container_id", t.LongType(), nullable=False),
        t.StructField("action", t.StringType(), nullable=False),
        t.StructField("priority", t.IntegerType(), nullable=False),
        t.StructField("reason", t.StringType(), nullable=False),
        t.StructField("checksum_class", t.StringType(), nullable=False),
        t.StructField("replicas", t.ArrayType(PLAN_REPLICA, containsNull=False), nullable=False),
        t.StructField("bytes_estimated", t.LongType(), nullable=False),
        t.StructField("snapshot_id", t.StringType(), nullable=False),
        t.StructField("run_id", t.StringType(), nullable=False),
        t.StructField("as_of_ms", t.LongType(), nullable=False),
        t.StructField("expires_at_ms", t.LongType(), nullable=False),
    ]
)
"""What the SCM takes in (`reconcile_plan/`); it re-checks every row on live state."""


ACTION_PLAN: Final = t.StructType(
    [
        t.StructField("container_id", t.LongType(), nullable=False),
        t.StructField("action", t.StringType(), nullable=False),
        t.StructField("priority", t.IntegerType(), nullable=False),
        t.StructField("reason", t.StringType(), nullable=False),
        t.StructField("sources", t.ArrayType(t.StringType()), nullable=False),
        t.StructField("doubts", t.ArrayType(t.StringType()), nullable=False),
        t.StructField("targets", t.ArrayType(t.StringType()), nullable=False),
        t.StructField("indexes", t.ArrayType(t.IntegerType()), nullable=False),
        t.StructField("copies", t.IntegerType(), nullable=False),
        t.StructField("is_forced", t.BooleanType(), nullable=False),
        t.StructField("bytes_estimated", t.LongType(), nullable=False),
        t.StructField("snapshot_id", t.StringType(), nullable=False),
        t.StructField("run_id", t.StringType(), nullable=False),
        t.StructField("as_of_ms", t.LongType(), nullable=False),
        t.StructField("expires_at_ms", t.LongType(), nullable=False),
    ]
)
"""`plan/`: replicate, reconstruct, delete, close and scan. `sources` are datanodes to copy from,
`doubts` what speaks against those of them that nothing better could be found for (the reason says
it, too), `targets` datanodes told to act on their own replica, `copies` how many new replicas are
needed."""

HEALTH: Final = (
    "container_id",
    "state",
    "replication_type",
    "health_state",
    "flags",
    "queue",
    "is_qc_stuck",
    "checksum_class",
    "eligibility",
    "remaining_redundancy",
    "replica_count",
    "is_known",
    "snapshot_id",
)
"""Columns of `health/`: one row per container."""


def root_text(root: int | None) -> str:
    """Return a root as the unsigned 16-digit word that people see; "-" when there is none."""
    return "-" if root is None else f"{root & 0xFFFF_FFFF_FFFF_FFFF:016x}"
