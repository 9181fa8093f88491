"""Rows of the plan that need no judge: scans of replicas whose root is not known and could be."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from health.plan.actions import SCAN_PRIORITY
from health.words import REACHABLE_HEALTHS
from spark_verify.tasks.verdict_rows import Stamp, stamped
from spark_verify.tasks.volumes import wants_scan

REASON = "root not known"


def silent_nodes(nodes: Iterable[Any]) -> tuple[str, ...]:
    """Return the nodes that cannot be told to scan; `nodes` are rows of `nodes/`."""
    return tuple(n["datanode_id"] for n in nodes if n["health"] not in REACHABLE_HEALTHS)


def scan_plan(replicas: pa.Table, silent: Sequence[str], stamp: Stamp) -> pa.Table:
    """Return one row per replica that wants a scan, unless its node is silent."""
    rows = replicas.filter(pa.array(wants_scan(replicas)))
    targets = rows["datanode_id"].cast(pa.string())
    is_silent = pc.is_in(targets, value_set=pa.array(silent, pa.string()))
    rows, targets = rows.filter(pc.invert(is_silent)), targets.filter(pc.invert(is_silent))
    count = rows.num_rows
    nothing = pa.array([[]] * count, pa.list_(pa.string()))
    ends = pa.array(np.arange(count + 1), pa.int32())
    columns = {
        "container_id": rows["container_id"],
        "action": pa.repeat("scan", count),
        "priority": pa.repeat(SCAN_PRIORITY, count),
        "reason": pa.repeat(REASON, count),
        "sources": nothing,
        "doubts": nothing,
        "targets": pa.ListArray.from_arrays(ends, targets.combine_chunks()),
        "indexes": pa.array([[]] * count, pa.list_(pa.int32())),
        "copies": pa.repeat(0, count),
        "is_forced": pa.repeat(pa.scalar(False), count),
        "bytes_estimated": rows["used_bytes"],
    }
    return stamped("plan", columns, stamp)
