"""An agent whose only volume cannot be read stays, and reports the volume as its datanode."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.client.client import Client
from agent.errors import Unavailable
from agent.rpc.v1 import scm_pb2
from agent.store.files.layout import Layout
from tests.support.faults.nursery import forked
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

WAIT_S = 60.0


def make_a_directory(version: Path) -> None:
    version.unlink()
    version.mkdir()


@pytest.mark.parametrize(
    "damage",
    [lambda version: version.write_bytes(b"\xff" * 64), make_a_directory],
    ids=["garbage", "directory"],
)
def test_agent_that_cannot_read_its_only_version_reports_the_volume(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """The SCM knows which datanode has the address; the volume is left as it is."""
    with (
        Cluster(tmp_path, agents=1, volumes=1, launch=forked) as cluster,
        Client(cluster.scm.address) as client,
    ):

        def node() -> scm_pb2.NodeInfo:
            [found] = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
            return found

        wait_until(lambda: bool(nodes_of(client)), within_s=WAIT_S)
        before = node()
        agent = cluster.nodes[0]
        agent.stop()
        version = Layout(cluster.volume_paths(0)[0], "").version
        damage(version)
        left = version.read_bytes() if version.is_file() else b""

        cluster.start_again(0)

        wait_until(lambda: node().volumes[0].failed, within_s=WAIT_S)
        assert (before.datanode_id, before.address) == (node().datanode_id, node().address)
        assert str(version) in node().volumes[0].error
        assert left == (version.read_bytes() if version.is_file() else b"")


def test_agent_that_no_scm_knows_ends_with_the_error_of_its_volume(tmp_path: Path) -> None:
    """Nothing says which datanode it is: a new id would hide the old one's data."""
    with Cluster(tmp_path, agents=1, volumes=1, launch=forked) as cluster:
        agent = cluster.nodes[0]
        agent.stop()
        version = Layout(cluster.volume_paths(0)[0], "").version
        version.write_bytes(b"\xff" * 64)
        cluster.write_config(0)  # another address

        with pytest.raises(Unavailable, match="VERSION"):
            agent.start()


def nodes_of(client: Client) -> list[scm_pb2.NodeInfo]:
    """Return the datanodes that the SCM knows."""
    return list(client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes)
