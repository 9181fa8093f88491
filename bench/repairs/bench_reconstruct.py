"""Measures a whole reconstruction over real sockets and disks: the bytes read, and the memory.

The coordinator is a separate process, so that its memory can be measured; the datanodes are in this
one. The group is as large as a container, 5 GB of data in one block, and its last stripe is
partial. Its stripes repeat after a few: their content does not matter here, only that all are on
disk and go over sockets. A small group shows what the large one adds.

A container of many small blocks is rebuilt twice, once with a call for each cell: the cost before
cells of several blocks were combined in one call.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from agent.reconstruct.parity_check import verify_parity
from bench.measure import Measure, at_most
from bench.repairs.ec_coordinator import OneByOne
from merkle.replica import Bcsid, BlockData, BlockId, ChunkInfo, ContainerId
from suture.client.file_pieces import describe
from suture.ec.blockgroup import group_metadata, stripe_checksum, stripe_metadata
from suture.ec.geometry import BlockGroup
from suture.ec.rebuild_task import ShardLocation
from suture.ec.scheme import RS_3_2, Scheme
from suture.wire.clients.peer import Peer
from tests.support.storage.ec_cluster import EcCluster, RecoveringDatanode, write_shard
from tests.support.storage.ec_groups import encoded_group

MIB = 1024**2
SMALL_BYTES = 24 * MIB
LARGE_BYTES = 5_000_000_000
MEMORY_MAX_MB = 300.0
READ_RATIO_MAX = 1.02
LOST = 1  # in a partial stripe, this shard has the longest cell
LARGE = ContainerId(6)
BLOCK = BlockId(1)
STRIPES_DISTINCT = 5
MANY_COUNT = 2_000
MANY_BYTES = 9_000  # of each: one cell and its parity
TOGETHER_RATIO_MAX = 0.7

Cells = Sequence[dict[int, bytes]]


def cells_of(group: BlockGroup) -> tuple[Cells, dict[int, bytes]]:
    """Return a few full stripes, which the group repeats, and its last stripe. Each stripe has its
    cells by index."""
    scheme = group.scheme
    full = encoded_group(scheme, STRIPES_DISTINCT * scheme.stripe_bytes).stripes
    rest_bytes = group.length_bytes % scheme.stripe_bytes
    last = encoded_group(scheme, rest_bytes or scheme.stripe_bytes, seed=2).stripes[0]
    return full, last


def write_shards(cluster: EcCluster, length_bytes: int) -> None:
    """Write one group of this length to all datanodes, like a client, and close it."""
    group = BlockGroup(cluster.scheme, length_bytes)
    full, last = cells_of(group)
    cells = [full[stripe % len(full)] for stripe in range(group.stripe_count - 1)] + [last]
    known = {id(made): {i: describe(0, cell) for i, cell in made.items()} for made in (*full, last)}
    sums = [stripe_checksum([known[id(made)][i] for i in sorted(made)]) for made in cells]

    def write(index: int) -> None:
        store = cluster.nodes[index].store
        store.create_container(LARGE, replica_index=index)
        chunks: list[ChunkInfo] = []
        for stripe, made in enumerate(cells):
            if group.cell_bytes(stripe, index):
                offset = stripe * cluster.scheme.cell_bytes
                chunks.append(known[id(made)][index]._replace(offset=offset))
                store.writer(LARGE).write_chunk(BLOCK, chunks[-1], made[index])
        metadata = group_metadata((), group) + stripe_metadata(sums)
        store.writer(LARGE).put_block(BlockData(BLOCK, Bcsid(1), tuple(chunks), metadata))
        store.close_container(LARGE, bcsid=0, force=True)

    with ThreadPoolExecutor(cluster.scheme.shard_count) as pool:
        list(pool.map(write, cluster.scheme.indexes))


def root_of(node: RecoveringDatanode) -> int:
    """Return the root of a datanode's shard."""
    return node.store.view(LARGE).tree().root


def write_many(cluster: EcCluster) -> None:
    """Write many small groups to all datanodes, and close them."""
    groups = {
        number: encoded_group(cluster.scheme, MANY_BYTES) for number in range(1, MANY_COUNT + 1)
    }

    def write(index: int) -> None:
        write_shard(cluster.nodes[index].store, index, groups, container_id=LARGE)

    with ThreadPoolExecutor(cluster.scheme.shard_count) as pool:
        list(pool.map(write, cluster.scheme.indexes))


def reconstruction(
    scheme: Scheme, write: Callable[[EcCluster], None], *, one_by_one: bool = False
) -> dict[str, int]:
    """Write data, and reconstruct one lost shard of it. Return the coordinator's figures, and the
    processor time of the datanodes.
    """
    with tempfile.TemporaryDirectory(prefix="suture-bench-ec-") as scratch:
        cluster = EcCluster(Path(scratch), scheme, [])
        try:
            write(cluster)
            cluster.serve()
            order = cluster.order([LOST])
            began_s = time.process_time()
            printed = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "bench.repairs.ec_coordinator",
                    json.dumps(
                        {
                            "container_id": LARGE,
                            "scheme": str(scheme),
                            "sources": [(s.datanode_id, s.address, s.index) for s in order.sources],
                            "targets": [(s.datanode_id, s.address, s.index) for s in order.targets],
                            "one_by_one": one_by_one,
                        }
                    ),
                ],
                check=True,
                capture_output=True,
                text=True,
                timeout=600,
            ).stdout
            datanodes_s = time.process_time() - began_s
            made = root_of(cluster.nodes[len(cluster.nodes)])
            assert root_of(cluster.nodes[LOST]) == made, "what was rebuilt is not what was lost"
        finally:
            cluster.close()
    told: dict[str, int] = json.loads(printed)
    return told | {"datanodes_cpu_ms": int(datanodes_s * 1000)}


def parity_cpu_s(scheme: Scheme) -> tuple[float, float]:
    """Return the processor time of verifying the parity of many small groups: with one call per
    cell, and with combined cells. All servers are in this process.
    """
    with tempfile.TemporaryDirectory(prefix="suture-bench-ec-") as scratch:
        cluster = EcCluster(Path(scratch), scheme, [])
        try:
            write_many(cluster)
            cluster.serve()
            took_s = []
            for kind in (OneByOne, Peer):
                began_s = time.process_time()
                _verify(cluster, kind)
                took_s.append(time.process_time() - began_s)
        finally:
            cluster.close()
    return took_s[0], took_s[1]


def _verify(cluster: EcCluster, kind: type[Peer]) -> None:
    peers: dict[str, Peer] = {}

    def dial(shard: ShardLocation) -> Peer:
        return peers.setdefault(shard.address, kind(shard.address))

    shards = [cluster.shard(index, index) for index in cluster.scheme.indexes]
    report = verify_parity(LARGE, cluster.scheme, shards, dial, cluster.executor)
    for peer in peers.values():
        peer.close()
    assert (report.stripe_count, report.faults) == (MANY_COUNT, ())


def cpu_ms(told: dict[str, int]) -> int:
    """Return the processor time of the coordinator and the datanodes, in ms."""
    return told["cpu_ms"] + told["datanodes_cpu_ms"]


def measures() -> list[Measure]:
    """Return the bytes read relative to the data shards, and the coordinator's peak memory."""
    small = reconstruction(RS_3_2, partial(write_shards, length_bytes=SMALL_BYTES))
    large = reconstruction(RS_3_2, partial(write_shards, length_bytes=LARGE_BYTES))
    alone = reconstruction(RS_3_2, write_many, one_by_one=True)
    together = reconstruction(RS_3_2, write_many)
    parity_alone_s, parity_s = parity_cpu_s(RS_3_2)
    speed = LARGE_BYTES / 1e6 / (large["duration_ms"] / 1000)
    return [
        at_most(
            "bytes read by a reconstruction",
            large["read_bytes"] / LARGE_BYTES,
            "x",
            READ_RATIO_MAX,
            compared_with="bytes of the data shards",
        ),
        at_most("peak memory, group of 5 GB", large["peak_bytes"] / 1e6, "MB", MEMORY_MAX_MB),
        Measure("peak memory, group of 24 MiB", small["peak_bytes"] / 1e6, "MB"),
        Measure("speed, data of the group", speed, "MB/s"),
        at_most(
            f"processor time, {MANY_COUNT} blocks of 9 kB",
            cpu_ms(together) / cpu_ms(alone),
            "x",
            TOGETHER_RATIO_MAX,
            compared_with="a call for each cell",
        ),
        Measure("processor time, a block of 9 kB", cpu_ms(together) / MANY_COUNT, "ms"),
        at_most(
            f"processor time, parity of {MANY_COUNT} blocks of 9 kB",
            parity_s / parity_alone_s,
            "x",
            TOGETHER_RATIO_MAX,
            compared_with="a call for each cell",
        ),
        Measure("processor time, parity of a block of 9 kB", parity_s / MANY_COUNT * 1000, "ms"),
        Measure("time, a block of 9 kB", together["duration_ms"] / MANY_COUNT, "ms"),
    ]
