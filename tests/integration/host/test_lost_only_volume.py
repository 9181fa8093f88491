"""An agent whose only volume cannot be read stays, and reports the volume as its datanode."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.config.options import AgentConfig
from agent.main import known_at
from agent.store.files.layout import VolumeLayout
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, SutureError, UnavailableError, VolumeFailed
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2
from tests.support.nursery import forked
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

WAIT_S = 60.0
QUICK = {"stale_after_ms": 2_000}


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
        Cluster(tmp_path, agents=1, volumes=1, launch=forked, scm_settings=QUICK) as cluster,
        ClusterClient(cluster.scm.address) as client,
    ):

        def node() -> scm_pb2.NodeInfo:
            [found] = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
            return found

        wait_until(lambda: bool(nodes_of(client)), within_s=WAIT_S)
        before = node()
        agent = cluster.nodes[0]
        agent.stop()
        version = VolumeLayout(cluster.volume_paths(0)[0], "").version
        damage(version)
        left = version.read_bytes() if version.is_file() else b""

        cluster.start_again(0)

        wait_until(lambda: node().volumes[0].failed, within_s=WAIT_S)
        assert (before.datanode_id, before.address) == (node().datanode_id, node().address)
        assert str(version) in node().volumes[0].error
        assert left == (version.read_bytes() if version.is_file() else b"")


def test_agent_that_no_scm_knows_ends_with_the_error_of_its_volume(tmp_path: Path) -> None:
    """Its datanode id is unknown, and a new id would hide the old one's data."""
    with Cluster(tmp_path, agents=1, volumes=1, launch=forked) as cluster:
        agent = cluster.nodes[0]
        agent.stop()
        version = VolumeLayout(cluster.volume_paths(0)[0], "").version
        version.write_bytes(b"\xff" * 64)
        cluster.write_config(0)  # another address

        with pytest.raises(UnavailableError, match="VERSION"):
            agent.start()


class Listing(ScmClient):
    """A control plane that knows these datanodes."""

    def __init__(self, *nodes: scm_pb2.NodeInfo) -> None:
        super().__init__("127.0.0.1:1")
        self.nodes = nodes

    def list_nodes(self, request: scm_pb2.ListNodesRequest) -> scm_pb2.ListNodesResponse:
        del request
        return scm_pb2.ListNodesResponse(cluster_id="CID-1", nodes=self.nodes)


def known(datanode_id: str, health: str, at_ms: int, **more: str) -> scm_pb2.NodeInfo:
    """Return what the control plane knows of a datanode at the address of this host."""
    return scm_pb2.NodeInfo(
        datanode_id=datanode_id,
        health=health,
        last_heartbeat_at_ms=at_ms,
        **{"address": "host1:9859", "op_state": "IN_SERVICE", **more},
    )


LOST = VolumeFailed(Code.IO_EXCEPTION, "VERSION: EIO")


@pytest.mark.parametrize(
    ("nodes", "certified_id", "expected"),
    [
        ([known("dn1", "DEAD", 1)], "", "dn1"),
        ([known("new", "STALE", 9), known("old", "DEAD", 1)], "", "new"),
        ([known("old", "DEAD", 1), known("new", "STALE", 9)], "", "new"),
        ([known("dn1", "HEALTHY", 9)], "", UnavailableError),
        ([known("dn1", "HEALTHY", 9)], "dn1", "dn1"),
        ([known("dn2", "DEAD", 9)], "dn1", VolumeFailed),
        ([known("dn1", "DEAD", 9, op_state="DECOMMISSIONED")], "", VolumeFailed),
        ([known("dn1", "DEAD", 9, address="host2:9859")], "", VolumeFailed),
    ],
    ids=[
        "silent at our address",
        "reinstalled, listed first",
        "reinstalled, listed last",
        "another host with our address calls",
        "certified and just stopped",
        "certified as another",
        "decommissioned",
        "elsewhere",
    ],
)
def test_identity_is_taken_only_from_a_datanode_that_can_be_this_host(
    nodes: list[scm_pb2.NodeInfo], certified_id: str, expected: str | type[SutureError]
) -> None:
    """Two agents with one id would each report the replicas of the other as gone."""
    config = AgentConfig.model_validate(
        {
            "node": {"listen": "host1:9859", "scm": "scm:9860"},
            "storage": {"volumes": ["/vol"]},
            "tls": {"allow_plaintext": True},
        }
    )
    with Listing(*nodes) as scm:
        if isinstance(expected, str):
            assert expected == known_at(scm, config, certified_id, LOST).datanode_id
        else:
            with pytest.raises(expected, match="VERSION"):
                known_at(scm, config, certified_id, LOST)


def nodes_of(client: ClusterClient) -> list[scm_pb2.NodeInfo]:
    """Return the datanodes that the SCM knows."""
    return list(client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes)
