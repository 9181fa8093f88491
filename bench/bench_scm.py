"""The control plane's replica map: memory, and how long a restart reads it.

A restart must serve three million replicas within a minute, in at most 400 bytes each.
"""

import gc
import random
import tracemalloc
from typing import Final

from bench.measure import Measure, at_most, duration_s
from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree import Summary
from scm import records
from scm.facts import Replica
from scm.replica_table import ReplicaTable

REPLICA_COUNT: Final = 60_000
REPLICAS_PER_CONTAINER: Final = 3
NODE_COUNT: Final = 100
MEMORY_BYTES_MAX: Final = 400


def measures() -> list[Measure]:
    """Measure both."""
    replicas = made()
    rows = [records.replica_row(replica) for replica in replicas]
    load_s = duration_s(lambda: loaded(rows))
    return [
        at_most("replica map, memory", memory_bytes(rows), "bytes/replica", MEMORY_BYTES_MAX),
        Measure("replica map, reading a row at a restart", load_s / len(rows) * 1e6, "us"),
        Measure("replica map, a row", sum(map(len, rows)) / len(rows), "bytes"),
    ]


def made() -> list[Replica]:
    """Return replicas as a cluster has them: few words, all kinds of numbers."""
    rng = random.Random(1)  # noqa: S311 - no secret
    nodes = [f"{rng.randrange(2**64):016x}-{i:019d}" for i in range(NODE_COUNT)]
    return [
        Replica(
            container_id=i // REPLICAS_PER_CONTAINER + 1,
            datanode_id=nodes[(i // REPLICAS_PER_CONTAINER * 7 + i * 13) % NODE_COUNT],
            state=ReplicaState.CLOSED,
            bytes_used=rng.randrange(2**32),
            block_count=rng.randrange(300, 5_000),
            bcsid=rng.randrange(300, 5_000),
            origin_datanode_id=nodes[i % NODE_COUNT],
            replica_index=0,
            is_empty=False,
            tree=Summary(Algorithm.XXH3_64, rng.randrange(2**64), i % 99, i % 5_000, 0, 0),
            volume_id=nodes[i % NODE_COUNT],
            data_scan_at_ms=1_700_000_000_000 + rng.randrange(10**9),
            finding_count=0,
            load_error="",
            reported_at_ms=1_700_000_000_000 + rng.randrange(10**9),
        )
        for i in range(REPLICA_COUNT)
    ]


def loaded(rows: list[bytes]) -> ReplicaTable:
    """Return the map of these rows."""
    table = ReplicaTable()
    for row in rows:
        table.load(row)
    return table


def memory_bytes(rows: list[bytes]) -> float:
    """Return what one replica takes in the map, indexes and all."""
    gc.collect()
    tracemalloc.start()
    try:
        table = loaded(rows)
        return tracemalloc.get_traced_memory()[0] / len(table)
    finally:
        tracemalloc.stop()
