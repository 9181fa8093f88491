"""A datanode loses the index of one of its volumes, in a real cluster."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from agent.store.files.layout import VolumeLayout
from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.errors import Code, UnavailableError
from suture.wire.clients.block_peer import Endpoint
from suture.wire.v1 import scm_pb2
from tests.support.command_line import CommandLine
from tests.support.faults.held_rebuild import BATCH
from tests.support.nursery import forked
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster, launched

pytestmark = [pytest.mark.fault, pytest.mark.slow]

CONTAINERS: Final = 16
HEARTBEAT_MS: Final = 100
HEARTBEATS: Final = 40  # of the control plane, which looks for missing replicas after each change


@dataclass(slots=True)
class World:
    """A cluster of four datanodes with two volumes each, and the containers that it stores."""

    cluster: Cluster
    client: ClusterClient
    gate: Path
    ids: list[int]
    held_ids: list[int] = field(default_factory=list)  # those of the first datanode

    def __post_init__(self) -> None:
        """Note the containers of the first datanode."""
        address = self.cluster.nodes[0].address
        self.held_ids = [number for number, held in self.holders().items() if address in held]

    def holders(self) -> dict[int, dict[str, tuple[int, int]]]:
        """Return state and root of each replica by container and address, as the SCM knows them."""
        found = {}
        for number in self.ids:
            request = scm_pb2.GetContainerInfoRequest(container_id=number)
            held = self.client.scm.get_container_info(request).container.replicas
            found[number] = {
                one.datanode.address: (one.replica.state, one.replica.tree.root) for one in held
            }
        return found

    def start(self) -> None:
        """Start the first datanode; its rebuild goes as far as the gate allows."""
        process = self.cluster.nodes[0]
        process.launch = launched
        config = self.cluster.write_config(0, process.address)
        module = "tests.support.faults.held_rebuild"
        process.arguments = [module, str(self.gate), "--config", str(config)]
        process.start()

    def allow(self, count: int) -> None:
        """Let the datanode make `count` commits in all."""
        self.gate.write_text(str(count))

    def node(self) -> scm_pb2.NodeInfo:
        """Return the SCM's record of the first datanode."""
        nodes = self.client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
        return next(node for node in nodes if node.address == self.cluster.nodes[0].address)

    def served(self) -> set[int]:
        """Return the containers that the first datanode serves; it refuses the others as BUSY."""
        peer = self.client.peer(Endpoint("", self.cluster.nodes[0].address))
        found = set()
        for number in self.held_ids:
            try:
                peer.replica(ContainerId(number))
            except UnavailableError as error:
                if error.code is not Code.BUSY:
                    raise
            else:
                found.add(number)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a cluster with closed containers, three equal replicas of each."""
    with (
        Cluster(
            tmp_path / "c",
            agents=4,
            agent_sections="[scan]\nenabled = false\nwatch = false\n",
            heartbeat_interval_ms=HEARTBEAT_MS,
            launch=forked,
        ) as cluster,
        ClusterClient(cluster.scm.address) as client,
    ):
        source = tmp_path / "file"
        source.write_bytes(b"content" * 1_000)
        for number in range(CONTAINERS):
            client.put([SourceFile(f"file{number}", source, 7_000)], lanes=1, close=True)
        request = scm_pb2.CountContainersRequest()
        wait_until(lambda: client.scm.count_containers(request).whole == CONTAINERS)
        listed = client.scm.list_container_infos(scm_pb2.ListContainerInfosRequest()).containers
        gate = tmp_path / "gate"
        gate.write_text("0")
        yield World(cluster, client, gate, [one.container_id for one in listed])


def lose_index(path: Path) -> set[int]:
    """Remove a volume's index; return the containers of the volume."""
    [known] = (path / "hdds").glob("*/VOLUMES")
    layout = VolumeLayout(path, known.parent.name)
    shutil.rmtree(layout.database)
    return {int(one.name) for one in layout.current.glob("*/*")}


def test_host_serves_its_other_volume_while_an_index_is_rebuilt(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The SCM keeps the replicas on record and orders no copies. A kill in the middle loses no
    loaded replica, and in the end all replicas are equal again."""
    before = world.holders()
    process = world.cluster.nodes[0]
    assert 0 == process.stop()
    path = max(
        world.cluster.volume_paths(0), key=lambda one: len(list(one.glob("hdds/*/current/*/*")))
    )
    lost = lose_index(path)
    assert len(lost) > 2 * BATCH
    suture = CommandLine(world.cluster.scm.address, capsys)

    world.start()  # returns when the datanode listens, before any replica is loaded

    assert set(world.held_ids) - lost == world.served()
    told = f"rebuilding its lost index: 0 of {len(lost)} replicas loaded"
    assert told in " ".join(suture("volumes").split())
    began_ms = world.node().last_heartbeat_at_ms
    wait_until(lambda: world.node().last_heartbeat_at_ms > began_ms + HEARTBEATS * HEARTBEAT_MS)
    assert before == world.holders()
    queues = world.client.scm.get_queues(scm_pb2.GetQueuesRequest())
    assert (0, 0) == (queues.under_replicated_count, queues.pending_add_count)

    suture("scm", "pause", "--kind", "copies")  # of loaded replicas, which are UNHEALTHY at first
    world.allow(1)
    wait_until(lambda: BATCH == len(world.served() & lost))
    process.kill()
    world.allow(0)
    world.start()
    assert BATCH == len(world.served() & lost)
    assert f"0 of {len(lost) - BATCH} replicas loaded" in " ".join(suture("volumes").split())

    world.allow(CONTAINERS)
    wait_until(lambda: set(world.held_ids) == world.served())
    suture("reconcile", *map(str, sorted(lost)))
    wait_until(lambda: before == world.holders())
    assert 1 == process.log.read_text().count('"index_rebuilt"')
