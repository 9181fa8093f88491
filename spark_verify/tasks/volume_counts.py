"""What is counted of each volume: replicas, scans that are due, and when the others were last
verified."""

import zlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from health.segments import Bools, Groups
from health.words import TREE_STATES
from spark_verify.input_columns import AHEAD_MAX_MS
from spark_verify.tasks.judge_batches import coded

DAY_MS: Final = 86_400_000
AGE_DAYS: Final = (1, 2, 4, 7, 14, 30)
"""Upper ends of the age classes; behind them stand "older" and "never"."""

KEYS: Final = ("datanode_id", "volume_id")


def count_volumes(replicas: pa.Table, as_of_ms: int) -> pa.Table:
    """Return one row per node and volume of these replicas, each number a column."""
    (nodes, node), (volumes, volume) = (coded(replicas[name]) for name in KEYS)
    groups = Groups.of(node, volume)
    in_tree, wanting = is_in_tree(replicas), wants_scan(replicas)
    is_read, at = _numbers(replicas["data_scan_at_ms"])
    ahead_ms = as_of_ms + AHEAD_MAX_MS
    counted = {
        "tree_states": in_tree,
        "scans": wanting,
        # A datanode whose clock is far ahead says nothing about when it read.
        "never": in_tree & ~(is_read & (at <= ahead_ms)),
    }
    newest = ahead_ms
    for i, days in enumerate((*AGE_DAYS, None)):
        oldest = as_of_ms - days * DAY_MS if days else np.iinfo(np.int64).min
        counted[f"age_{i}"] = in_tree & is_read & (at <= newest) & (at >= oldest)
        newest = oldest - 1 if days else newest
    scan_bytes = np.zeros(groups.count, dtype=np.int64)
    used = replicas["used_bytes"].to_numpy()
    np.add.at(scan_bytes, groups.of_row[wanting], used[wanting])
    return pa.table(
        {
            "datanode_id": nodes.take(pa.array(node[groups.first])).cast(pa.string()),
            "volume_id": volumes.take(pa.array(volume[groups.first])).cast(pa.string()),
            "replicas": groups.tally(),
            "scan_bytes": scan_bytes,
        }
        | {name: groups.tally(mask) for name, mask in counted.items()}
    )


def summed(counted: Iterable[pa.Table]) -> pa.Table:
    """Return the sum of what several tasks counted, in the order of its keys: all that is text."""
    table = pa.concat_tables(counted)
    keys = [field.name for field in table.schema if pa.types.is_string(field.type)]
    numbers = [name for name in table.column_names if name not in keys]
    sums = table.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in numbers])
    names = [name.removesuffix("_sum") for name in sums.column_names]
    return sums.rename_columns(names).sort_by([(key, "ascending") for key in keys])


def by_datanode(table: pa.Table, count: int) -> list[pa.Table]:
    """Return rows in `count` tables, those of a datanode in one, which follows from its id."""
    if count == 1:
        return [table]
    words, codes = coded(table["datanode_id"])
    share_of = [zlib.crc32(word.encode()) % count for word in words.to_pylist()]
    shares = np.array([*share_of, 0], dtype=np.int64)[codes]
    return [table.filter(pa.array(shares == share)) for share in range(count)]


def is_in_tree(replicas: pa.Table) -> Bools:
    """Return which replicas are in a state in which they have a tree."""
    words, codes = coded(replicas["state"])
    found = pc.is_in(words, value_set=pa.array(TREE_STATES, pa.string()))
    mask: Bools = np.append(found.to_numpy(zero_copy_only=False), False)[codes]
    return mask


def has_root(replicas: pa.Table) -> Bools:
    """Return of which replicas the root is known."""
    return _numbers(replicas["root"])[0]


def wants_scan(replicas: pa.Table) -> Bools:
    """Return which replicas have a root that could be known and is not."""
    is_broken = replicas["load_error"].is_valid().to_numpy()
    found: Bools = (is_in_tree(replicas) | is_broken) & ~has_root(replicas)
    return found


def _numbers(column: pa.ChunkedArray) -> tuple[Bools, Any]:
    """Return of which rows a number is there, and the numbers, 0 where it is not."""
    return column.is_valid().to_numpy(), pc.fill_null(column, 0).to_numpy()
