"""The columns of a datanode's report, declared once for the agent and the Spark job.

    DIR/<datanode id>/<UTC time>-<start id>.parquet

A file has one row for the datanode, with a null `container_id`, and one row for each replica. The
row of the datanode has nulls in the columns of replicas, and the rows of replicas have nulls in the
columns of the datanode. The columns of a replica are those columns of a snapshot's table `replicas`
that a datanode can fill in.
"""

import re
from datetime import UTC, datetime
from typing import Final

from health.tables.snapshot_columns import REPLICAS, Column

REPORT_VERSION: Final = 1
"""The version of these columns. The Spark job rejects a report of another version."""

NOT_KNOWN_THERE: Final = ("settled_root", "is_barred", "is_hopeful")
"""Columns of a snapshot's table `replicas` that only the control plane can fill in."""

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
"""Columns that have values only in the row of the datanode."""

OF_REPLICA: Final = tuple(
    Column(one.name, one.kind, True, one.words)
    for one in REPLICAS
    if one.name not in ("snapshot_id", "datanode_id", "reported_at_ms", *NOT_KNOWN_THERE)
)
"""Columns that have values only in the rows of replicas."""

REPORT: Final = (
    Column("datanode_id", "string"),
    Column("reported_at_ms", "long"),
    *OF_REPLICA,
    *OF_DATANODE,
)

FILE: Final = re.compile(r"(\d{8}T\d{6}\.\d{3}Z)-([0-9a-f]{16})\.parquet")
"""Pattern of the name of a report: the start time of the report, and the id of the agent's start
that wrote the report."""


def file_name(reported_at_ms: int, start_id: int) -> str:
    """Return the name of a report's file. The names sort by time."""
    at = datetime.fromtimestamp(reported_at_ms // 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{reported_at_ms % 1000:03d}Z-{start_id:016x}.parquet"


def time_in(name: str) -> int:
    """Return the time in the name of a report's file, in ms since 1970. Raise ValueError if the
    name has another form."""
    match = FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not <UTC time>-<start id>.parquet")
    at = datetime.strptime(match[1][:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(at.timestamp()) * 1000 + int(match[1][16:19])
