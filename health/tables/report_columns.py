"""The columns of a datanode's report: one declaration for the agent and the Spark job.

    DIR/<datanode id>/<UTC time>-<start id>.parquet

A file has one row for the datanode, with a null `container_id`, and one row for each replica. A row
is null in the columns of the other kind of row. The columns of a replica are the columns of a
snapshot's `replicas` that a datanode knows.
"""

import re
from datetime import UTC, datetime
from typing import Final

from health.tables.snapshot_columns import REPLICAS, Column

REPORT_VERSION: Final = 1
"""The version of these columns. The job refuses a report of another version."""

NOT_KNOWN_THERE: Final = ("settled_root", "is_barred", "is_hopeful")
"""Columns of a snapshot's replica that only the control plane fills in."""

OF_DATANODE: Final = (
    Column("report_version", "int", True),
    Column("cluster_id", "string", True),
    Column("interval_s", "int", True),
    Column("address", "string", True),
    Column("rack", "string", True),
    Column("version", "string", True),
    Column("op_state", "string", True),
    Column("op_expiry_ms", "long", True),
    Column("capacity_bytes", "long", True),
    Column("available_bytes", "long", True),
    Column("replica_count", "long", True),
)
"""Columns that only the row of the datanode has."""

OF_REPLICA: Final = tuple(
    Column(one.name, one.kind, True, one.words)
    for one in REPLICAS
    if one.name not in ("snapshot_id", "datanode_id", "reported_at_ms", *NOT_KNOWN_THERE)
)
"""Columns that only the row of a replica has."""

REPORT: Final = (
    Column("datanode_id", "string"),
    Column("reported_at_ms", "long"),
    *OF_REPLICA,
    *OF_DATANODE,
)

FILE: Final = re.compile(r"(\d{8}T\d{6}\.\d{3}Z)-([0-9a-f]{16})\.parquet")
"""The name of a report: its start time, and the id of the agent's start that wrote it."""


def file_name(reported_at_ms: int, start_id: int) -> str:
    """Return the name of a report; names sort by time."""
    at = datetime.fromtimestamp(reported_at_ms // 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{reported_at_ms % 1000:03d}Z-{start_id:016x}.parquet"


def time_in(name: str) -> int:
    """Return the time in the name of a report, in ms since 1970. Raise ValueError for a name of
    another form."""
    match = FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not <UTC time>-<start id>.parquet")
    at = datetime.strptime(match[1][:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(at.timestamp()) * 1000 + int(match[1][16:19])
