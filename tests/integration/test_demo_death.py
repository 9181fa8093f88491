"""The demo's dead node, where a writer left a replica behind: a busy machine brings that about."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suture.client.cluster_client import ClusterClient
from tests.support.nursery import forked
from tests.support.storage.three_replicas import content
from tools.demo import death, selfheal
from tools.demo.cluster import Cluster
from tools.demo.death import Death
from tools.demo.liar import smallest_of
from tools.demo.stage import REPLICAS, Stage, wait_until
from tools.demo.story import collect

pytestmark = pytest.mark.slow

QUICKLY = {"stale_after_ms": 1_500, "dead_after_ms": 4_000, "heal_after_ms": 500}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Five datanodes, as in the demo after its first act: the control plane heals nothing."""
    with Cluster(
        tmp_path / "cluster",
        volumes=1,
        heartbeat_interval_ms=200,
        agent_sections="[scan]\nenabled = false\nwatch = false\n",
        scm_settings=QUICKLY | {"heal": "false"},
        launch=forked,
    ) as running:
        yield running


def all_that_hold(stage: Stage, container_id: int) -> list[str]:
    """Return a container's three datanodes, once all three have reported their replica."""
    holders: list[str] = []

    def are_reported() -> bool:
        [info] = stage.infos_of([container_id])
        holders[:] = [item.datanode.datanode_id for item in info.replicas]
        return len(holders) == REPLICAS

    wait_until(are_reported, f"all three replicas of container {container_id} are reported")
    return holders


def test_a_replica_that_was_left_behind_is_caught_up(cluster: Cluster, tmp_path: Path) -> None:
    """One of three replicas missed the last files, and the datanode of another dies. With
    healing on again, as in the rest of the demo, there are three equal replicas without the dead
    node.
    """
    files = tmp_path / "files"
    files.mkdir()
    for number in range(60):
        (files / f"{number}").write_bytes(content(number, 0, 9_000 + number))
    sources = collect([files])
    with ClusterClient(cluster.scm.address) as client:
        stage = Stage(cluster, client)
        stage.learn_addresses()
        told = Death()
        death.store(told, stage, sources)
        behind, dead, _ = all_that_hold(stage, told.open_id)
        cluster.nodes[stage.indexes[behind]].kill()
        more = [replace(one, key=f"more/{one.key}") for one in smallest_of(sources, "")]
        stored, _ = client.put(more, lanes=1, close=False)
        cluster.start_again(stage.indexes[behind])
        wait_until(lambda: stage.is_heard(behind), "who was left behind is back")

        selfheal.heal_again(stage)
        told.datanode_id, told.containers = dead, [told.open_id]
        cluster.nodes[stage.indexes[dead]].kill()
        assert [] == list(death.outlive(told, stage, told.checksums))

    assert [2] * len(more) == [one.replicas_min for one in stored]
