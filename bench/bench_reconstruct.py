"""A whole reconstruction over real sockets and disks: what it reads, and the memory it takes.

The coordinator is a process of its own, so that its memory is its own; the datanodes are in this
one. A group of 5 GB takes no more memory than a group of a few stripes beyond its list of chunks:
two sizes are measured, and the larger one is held to the bound.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from agent.ec.scheme import RS_3_2, Scheme
from bench.measure import Measure, at_most
from tests.support.ec_cluster import CONTAINER, EcCluster

MIB = 1024**2
SIZES_BYTES = (24 * MIB, 192 * MIB)
MEMORY_MAX_MB = 300.0
READ_RATIO_MAX = 1.02


def reconstruction(scheme: Scheme, length_bytes: int) -> dict[str, int]:
    """Rebuild one lost shard of a group; return what the coordinator tells."""
    with tempfile.TemporaryDirectory(prefix="suture-bench-ec-") as scratch:
        cluster = EcCluster(Path(scratch), scheme, [length_bytes])
        try:
            cluster.serve()
            order = cluster.order([1])
            printed = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "bench.ec_coordinator",
                    json.dumps(
                        {
                            "container_id": CONTAINER,
                            "scheme": str(scheme),
                            "sources": [(s.datanode_id, s.address, s.index) for s in order.sources],
                            "targets": [(s.datanode_id, s.address, s.index) for s in order.targets],
                        }
                    ),
                ],
                check=True,
                capture_output=True,
                text=True,
                timeout=600,
            ).stdout
            lost, made = (cluster.nodes[i].store.tree(CONTAINER) for i in (1, len(cluster.nodes)))
            assert lost.root == made.root, "what was rebuilt is not what was lost"
        finally:
            cluster.close()
    told: dict[str, int] = json.loads(printed)
    return told


def measures() -> list[Measure]:
    """Return the bytes read for those of the data shards, and the coordinator's peak memory."""
    small, large = (reconstruction(RS_3_2, size_bytes) for size_bytes in SIZES_BYTES)
    speed = SIZES_BYTES[1] / 1e6 / (large["duration_ms"] / 1000)
    return [
        at_most(
            "bytes read by a reconstruction",
            large["read_bytes"] / SIZES_BYTES[1],
            "x",
            READ_RATIO_MAX,
            compared_with="bytes of the data shards",
        ),
        at_most("peak memory, group of 192 MiB", large["peak_bytes"] / 1e6, "MB", MEMORY_MAX_MB),
        Measure("peak memory, group of 24 MiB", small["peak_bytes"] / 1e6, "MB"),
        Measure("speed, data of the group", speed, "MB/s"),
    ]
