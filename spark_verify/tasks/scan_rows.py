"""Rows of the plan that need no judge: scans of replicas whose root is not known and could be."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from health.plan.plan_rows import SCAN_PRIORITY
from health.segments import Groups
from health.words import REACHABLE_HEALTHS
from spark_verify.tasks.judge_batches import coded
from spark_verify.tasks.verdict_rows import Stamp, stamped
from spark_verify.tasks.volume_counts import is_in_tree, wants_scan

REASON: Final = "root not known"

SCANS_MAX: Final = 10_000
"""Scans that a partition lists where most of its replicas want one, as they do after a change of
the algorithm: the scanners come by on their own, and a list of millions helps nobody."""


def silent_nodes(nodes: Iterable[Any]) -> tuple[str, ...]:
    """Return the nodes that cannot be told to scan; `nodes` are rows of `nodes/`."""
    return tuple(n["datanode_id"] for n in nodes if n["health"] not in REACHABLE_HEALTHS)


def scan_plan(replicas: pa.Table, silent: Sequence[str], stamp: Stamp) -> pa.Table:
    """Return one row per replica that wants a scan, unless its node is silent; of a mass of them
    SCANS_MAX, as many of each volume as of the others."""
    wanted = wants_scan(replicas)
    rows = replicas.filter(pa.array(wanted))
    is_silent = pc.is_in(
        rows["datanode_id"].cast(pa.string()), value_set=pa.array(silent, pa.string())
    )
    rows = rows.filter(pc.invert(is_silent))
    if rows.num_rows > SCANS_MAX and 2 * int(wanted.sum()) > int(is_in_tree(replicas).sum()):
        rows = rows.take(_first_of_each(rows))
    targets = rows["datanode_id"].cast(pa.string())
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


def _first_of_each(rows: pa.Table) -> pa.Array:
    """Return the places of SCANS_MAX rows: the first of each volume, the second of each, ..."""
    (_, node), (_, volume) = (coded(rows[name]) for name in ("datanode_id", "volume_id"))
    groups = Groups.of(node, volume)
    order = np.argsort(groups.of_row, kind="stable")
    starts = np.cumsum(groups.tally()) - groups.tally()
    turn = np.empty(rows.num_rows, dtype=np.int64)
    turn[order] = np.arange(rows.num_rows) - starts[groups.of_row[order]]
    return pa.array(np.sort(np.argsort(turn, kind="stable")[:SCANS_MAX]))
