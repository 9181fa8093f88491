"""A real control plane and forty simulated datanodes: deaths, returns, a kill -9, and all heals."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.rpc.scm import ScmClient
from agent.rpc.v1 import container_pb2, scm_pb2
from tests.support.fake_datanode import report
from tests.support.scm_process import ScmProcess
from tests.support.simulated_nodes import SimulatedCluster

pytestmark = pytest.mark.slow

NODES = 40
CONTAINERS = 120
CONTAINER_BYTES = 64 * 1024
WAIT_S = 90.0
SETTINGS = {
    "container_bytes_max": CONTAINER_BYTES,
    "heartbeat_interval_ms": 200,
    "stale_after_ms": 4_000,
    "dead_after_ms": 8_000,
    "check_interval_ms": 2_000,
    "safemode_wait_ms": 1_000,
}


def fill(scm: ScmClient, cluster: SimulatedCluster) -> list[int]:
    """Make closed containers with three replicas each."""
    answer = scm.allocate_blocks(
        scm_pb2.AllocateBlocksRequest(client_id="writer", sizes=[CONTAINER_BYTES] * CONTAINERS)
    )
    blocks = list(answer.blocks)
    for block in blocks:
        for endpoint in block.replicas:
            cluster.nodes[endpoint.datanode_id].report_some(
                report(block.block_id.container_id, container_pb2.OPEN, bcsid=block.block_id.bcsid)
            )
    keys = [
        scm_pb2.KeyInfo(
            key=f"key{i}",
            size=CONTAINER_BYTES,
            blocks=[scm_pb2.BlockLocation(block_id=block.block_id, length=CONTAINER_BYTES)],
        )
        for i, block in enumerate(blocks)
    ]
    scm.commit_key(scm_pb2.CommitKeyRequest(client_id="writer", keys=keys))
    scm.finish_writes(scm_pb2.FinishWritesRequest(client_id="writer", close=True))
    return [block.block_id.container_id for block in blocks]


def run_until(cluster: SimulatedCluster, condition: Callable[[], bool]) -> None:
    """Let the datanodes call until the condition holds."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not heal in time"
        cluster.round()


def test_every_container_is_whole_again_after_deaths_and_a_kill(tmp_path: Path) -> None:
    """At every moment each has a living copy, and no datanode ever more than its limits."""
    process = ScmProcess.start(tmp_path, **SETTINGS)
    cluster = SimulatedCluster(process.address, NODES)
    try:
        cluster.start()
        ids = fill(ScmClient(process.address), cluster)
        run_until(cluster, lambda: all(len(cluster.holders(i)) == 3 for i in ids))

        first, second = cluster.holders(ids[0])[:2]
        cluster.dead |= {first, second}
        lost = [i for i in ids if len(cluster.holders(i)) < 3]
        assert all(cluster.holders(i) for i in ids)
        run_until(cluster, lambda: bool(cluster.copied))

        process.kill()
        process = ScmProcess.start(tmp_path, **SETTINGS)
        cluster.restart_on(process.address)
        run_until(cluster, lambda: all(len(cluster.holders(i)) == 3 for i in ids))
        assert set(lost) <= set(cluster.copied)

        cluster.dead.clear()  # they come back with what they had: now there are too many
        for name in (first, second):
            cluster.nodes[name].stub = cluster.nodes[ids_node(cluster)].stub
            cluster.nodes[name].register()
            cluster.nodes[name].report_full(*cluster.nodes[name].replicas.values())
        run_until(cluster, lambda: all(len(cluster.holders(i)) == 3 for i in ids))

        assert cluster.held_most["replicate"] <= 20
        assert cluster.held_most["delete"] <= 40
    finally:
        process.kill()


def ids_node(cluster: SimulatedCluster) -> str:
    """Return the name of a datanode that never died."""
    return cluster.living()[-1].datanode_id
