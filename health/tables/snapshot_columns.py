"""The columns of a snapshot of the cluster, declared once for its writer and its reader.

    containers   replicas   nodes   pending_ops

The control plane writes the tables, and the Spark job reads them. This module names the types of
columns by words, so that it needs no file library. Writer and reader map the words to their own
types.

There is no unsigned 64-bit kind, because Spark has none: roots and checksums of tombstones are
signed longs with the same bits.

The manifest next to the tables may list the keys with blocks in containers that the control plane
considers lost or at risk: the first by name, and their number.

    "keys_at_risk": {"key_count": 1_003, "container_count": 2,
                     "keys": [{"key": "a", "container_ids": [7, 9]}, ...]}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from health.words import (
    CONTAINER_STATES,
    NODE_HEALTHS,
    OP_STATES,
    OPS,
    REPLICA_STATES,
    REPLICATION_TYPES,
    HealthState,
)

SCHEMA_VERSION: Final = 5
"""Version of these columns. Snapshots of other versions are rejected, because their columns
differ."""

RESULT_VERSION: Final = 3
"""Version of the result tables of a verification, which the manifest of the results contains.
Results of other versions are not applied."""

Row = Mapping[str, Any]
"""The values of one row by column name, without the snapshot's id. A column that may be null may be
omitted."""

KEYS_TOLD_MAX: Final = 100
"""Maximum number of keys at risk that a manifest names."""

ROWS_PER_CONTAINER_MAX: Final = 16_383
"""Maximum number of replicas, or of pending ops, of one container. About twenty are usual; a faulty
replication without a limit may create ten thousand. The maximum bounds the memory of the health
check and the length of a plan's row."""

Kind = Literal["long", "int", "string", "boolean"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. If `words` is not empty, it lists the values that the column may
    have."""

    name: str
    kind: Kind
    is_nullable: bool = False
    words: tuple[str, ...] = ()


_KINDS: Final[dict[str, Kind]] = {
    "long": "long",
    "int": "int",
    "string": "string",
    "boolean": "boolean",
}


def _columns(text: str, words: dict[str, tuple[str, ...]] | None = None) -> tuple[Column, ...]:
    """Return the columns for a text with one line `name kind` per column. A kind with the suffix
    `?` may be null."""
    columns = []
    for line in text.strip().splitlines():
        name, kind = line.split()
        found = _KINDS[kind.rstrip("?")]
        columns.append(Column(name, found, kind.endswith("?"), (words or {}).get(name, ())))
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
        "health_state": tuple(state.name for state in HealthState),
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
    settled_root long?
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
"""Tables, each a directory of Parquet files."""


def signed(number: int) -> int:
    """Return the signed 64-bit integer with the same bits as an unsigned 64-bit integer."""
    return number - 2**64 if number >= 2**63 else number
