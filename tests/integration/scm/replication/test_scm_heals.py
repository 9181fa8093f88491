"""Replicas that are lost are made again by real datanodes, on the control plane's own orders."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tests.support.storage.three_replicas import content
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

FILE_BYTES = 300_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of four datanodes, which one may die in; scans off."""
    running = forked_cluster(
        tmp_path / "cluster",
        agents=4,
        container_bytes_max=4 * 1024**2,
        scm_settings={"stale_after_ms": 1_500, "dead_after_ms": 3_000, "close_retry_ms": 100},
    )
    with running:
        yield running


@pytest.fixture
def container_id(suture: CommandLine, tmp_path: Path) -> int:
    """Return a closed container with one file."""
    source = tmp_path / "file"
    source.write_bytes(content(1, 0, FILE_BYTES))
    [made] = suture.json("put", str(source), "--close")["container_ids"]
    suture.wait_until_closed([made])
    return int(made)


def replicas(suture: CommandLine, container_id: int) -> dict[str, dict[str, Any]]:
    """Return a container's replicas by datanode."""
    info = suture.json("scm", "containers", str(container_id))
    return {r["datanode"]["datanode_id"]: r for r in info["replicas"]}


def alive(suture: CommandLine, container_id: int) -> list[str]:
    """Return the datanodes that answer and have a closed replica."""
    return sorted(
        node
        for node, held in replicas(suture, container_id).items()
        if held["node_health"] == "HEALTHY" and held["replica"]["state"] == "CLOSED"
    )


def test_a_deleted_replica_is_made_again(
    suture: CommandLine, container_id: int, tmp_path: Path
) -> None:
    """By a datanode that has one, on one that has none; all is whole then, and can be read."""
    victim = alive(suture, container_id)[0]
    shown = suture.json("scm", "delete", str(container_id), "--datanode", victim, "--dry-run")[
        "decisions"
    ]
    assert [(3, 2)] == [(d["copies_before"], d["copies_after"]) for d in shown]
    before = replicas(suture, container_id)[victim]["reported_at_ms"]

    suture("scm", "delete", str(container_id), "--datanode", victim, "--yes", "--wait-s", "30")
    suture.wait_until(
        lambda: (
            len(alive(suture, container_id)) == 3
            and replicas(suture, container_id).get(victim, {}).get("reported_at_ms") != before
        )
    )

    suture.status_when_well()
    for node in alive(suture, container_id):
        back = tmp_path / "back"
        suture("get", "file", "--datanode", node, "--output", str(back))
        assert content(1, 0, FILE_BYTES) == back.read_bytes()


def test_the_replicas_of_a_datanode_that_dies_are_made_again(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """Its volume is gone, too: nothing of it comes back."""
    victim = alive(suture, container_id)[0]
    address = replicas(suture, container_id)[victim]["datanode"]["address"]
    index = next(i for i, node in enumerate(cluster.nodes) if node.address == address)
    cluster.nodes[index].kill()
    for volume in cluster.volume_paths(index):
        shutil.rmtree(volume)

    suture.wait_until(
        lambda: len(alive(suture, container_id)) == 3 and victim not in alive(suture, container_id)
    )

    roots = {
        held["replica"]["tree"]["root"]
        for node, held in replicas(suture, container_id).items()
        if node != victim
    }
    assert 1 == len(roots)


def test_a_removed_key_leaves_nothing_behind(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """Its blocks go from all three replicas, and with them the container."""
    suture("rm", "file", "--yes")
    suture("get", "file", code=1)

    suture.wait_until(
        lambda: suture.json("scm", "containers", str(container_id))["state"] == "DELETED"
    )

    left = [
        path
        for index in range(4)
        for volume in cluster.volume_paths(index)
        for path in volume.glob("hdds/*/current/containerDir*/*/chunks/*")
    ]
    assert [] == left


def test_a_datanode_is_decommissioned_and_switched_off(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """All it has is elsewhere first, it knows its state, and nothing is missing without it."""
    leaving = alive(suture, container_id)[0]
    address = replicas(suture, container_id)[leaving]["datanode"]["address"]
    suture("scm", "decommission", leaving, "--yes")

    def is_ready() -> bool:
        [departure] = suture.json_any("scm", "decommission-status")["departures"]
        return bool(departure["safe_to_stop"] and departure["persisted"])

    suture.wait_until(is_ready)
    [departure] = suture.json("scm", "decommission-status")["departures"]
    assert ("DECOMMISSIONED", True, 0) == (
        departure["op_state"],
        departure["persisted"],
        departure["required_count"],
    )
    next(node for node in cluster.nodes if node.address == address).kill()
    others = [node for node in alive(suture, container_id) if node != leaving]
    assert 3 == len(others)
