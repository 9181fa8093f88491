"""The schemas of everything the job reads and writes, in one place, versioned.

Spark has no unsigned 64-bit integer, so roots and tombstone checksums travel as signed longs in
two's complement: the same 64 bits, read with a sign. They are only ever compared for equality.
`root_text` gives the unsigned hexadecimal word that every other part of Suture prints.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from health.tables import snapshot

SCHEMA_VERSION: Final = snapshot.SCHEMA_VERSION
"""Of the input. A snapshot of another version is refused: an older one lacks columns."""

RESULT_VERSION: Final = 2
"""Of the output, written into its manifest and summary."""

ROWS_PER_CONTAINER_MAX: Final = 16_383
"""Replicas, or pending ops, of one container: some twenty are usual, and ten thousand are what a
replication without brakes leaves. What is judged side by side is bounded."""

SAMPLE_MAX: Final = 100
"""Container ids kept per kind of container unless an option says otherwise, as many as Ozone's
report shows."""

AHEAD_MAX_MS: Final = 3_600_000
"""How far an instant may lie in the future: clocks differ, but not by more than an hour."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its words are checked when `words` is not empty."""

    name: str
    type: pa.DataType
    nullable: bool = False
    words: tuple[str, ...] = ()


_KINDS: Final[dict[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    name: tuple(Column(c.name, _KINDS[c.kind], c.is_nullable, c.words) for c in columns)
    for name, columns in snapshot.TABLES.items()
}
"""The input: one directory of Parquet files each."""

CONTAINERS: Final = TABLES["containers"]
REPLICAS: Final = TABLES["replicas"]
PENDING_OPS: Final = TABLES["pending_ops"]


def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return pa.schema([pa.field(c.name, c.type, c.nullable) for c in columns])


def _schema(text: str, **structs: pa.Schema) -> pa.Schema:
    """Parse `name type` lines: `*` is a list; `structs` are further types."""
    kinds = _KINDS | {name: pa.struct(list(own)) for name, own in structs.items()}
    fields = []
    for line in text.strip().splitlines():
        name, kind = line.split()
        base = kinds[kind.rstrip("*")]
        fields.append(pa.field(name, pa.list_(base) if kind.endswith("*") else base))
    return pa.schema(fields)


HEALTH: Final = _schema(
    """
    container_id long
    state string
    replication_type string
    health_state int
    flags long
    queue string
    is_qc_stuck boolean
    checksum_class string
    eligibility string
    remaining_redundancy int
    replica_count int
    is_known boolean
    snapshot_id string
    """
)
"""`health/`: one row per container."""

REPLICA_CLASS: Final = _schema(
    """
    container_id long
    datanode_id string
    replica_index int
    volume_id string
    state string
    root long
    tree_algorithm string
    finding_count int
    is_reachable boolean
    role string
    is_minority boolean
    checksum_class string
    snapshot_id string
    """
)
"""`replica_class/`: one row per replica of every container with which anything is the matter."""

PLAN_REPLICA: Final = _schema(
    """
    datanode_id string
    state string
    root long
    tree_algorithm string
    """
)
DIVERGENT: Final = _schema(
    """
    container_id long
    action string
    priority int
    reason string
    checksum_class string
    replicas replica*
    bytes_estimated long
    snapshot_id string
    run_id string
    as_of_ms long
    expires_at_ms long
    attempts int
    is_backed_off boolean
    """,
    replica=PLAN_REPLICA,
)
"""`divergent/`. Without the last two columns, and without what is backed off, it is what the SCM
takes in (`reconcile_plan/`) and checks again on live state, row by row."""

ACTION_PLAN: Final = _schema(
    """
    container_id long
    action string
    priority int
    reason string
    sources string*
    doubts string*
    targets string*
    indexes int*
    copies int
    is_forced boolean
    bytes_estimated long
    snapshot_id string
    run_id string
    as_of_ms long
    expires_at_ms long
    """
)
"""`plan/`: replicate, reconstruct, delete, close and scan. `sources` are datanodes to copy from,
`doubts` what speaks against those of them that nothing better could be found for (the reason says
it, too), `targets` datanodes told to act on their own replica, `copies` how many new replicas are
needed."""

JUDGED: Final = {
    "health": HEALTH,
    "replica_class": REPLICA_CLASS,
    "divergent": DIVERGENT,
    "plan": ACTION_PLAN,
}
"""The tables that the judge fills."""


def root_text(root: int | None) -> str:
    """Return a root as the unsigned 16-digit word that people see; "-" when there is none."""
    return "-" if root is None else f"{root & 0xFFFF_FFFF_FFFF_FFFF:016x}"
