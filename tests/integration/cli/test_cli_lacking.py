"""A block that all replicas lack: they are equal, and a key cannot be read. `status`, `scm report`
and `scm recover` say so."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeVersion
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.identity import read_versions
from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.ec.scheme import parse_scheme
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tests.support.storage.deleting import remove_blocks
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of three agents that repair and scan only when asked."""
    with forked_cluster(
        tmp_path / "c",
        scm_settings={"heal": "false"},
    ) as running:
        yield running


def lose(cluster: Cluster, container_id: int, count: int) -> None:
    """Delete the first blocks from all replicas, which the control plane did not order."""
    for index in range(3):
        cluster.nodes[index].stop()
        paths = cluster.volume_paths(index)
        [version] = read_versions(paths).values()
        assert isinstance(version, VolumeVersion)
        store = ReplicaStore.open(
            paths, cluster_id=version.cluster_id, datanode_id=version.datanode_id
        )
        ids = [block.block_id for block in store.view(ContainerId(container_id)).blocks()]
        assert count == remove_blocks(store, ContainerId(container_id), ids[:count])
        store.close()
        cluster.start_again(index)


@pytest.mark.parametrize("lost", [["first"], ["first", "second"]])
def test_a_block_that_all_replicas_lack_is_reported(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: list[str]
) -> None:
    """Equal replicas are not whole for that. A recover lets go of the key, whose delete is proven
    by tombstones, and then all is whole again."""
    suture = CommandLine(cluster.scm.address, capsys)
    suture.wait_until(lambda: len(suture.json("scm", "nodes")["nodes"]) == 3)
    files = [SourceFile(name, tmp_path / name, 200_000) for name in ("first", "second")]
    for file in files:
        file.path.write_bytes(os.urandom(200_000))
    with ClusterClient(cluster.scm.address) as client:
        _stored, [container_id] = client.put(files, lanes=1)
    suture("scm", "close", str(container_id))
    suture.wait_until_closed([container_id])
    suture.wait_until(lambda: suture.json_any("status")["verdict"] == "WHOLE")
    suture("status")

    lose(cluster, container_id, len(lost))

    suture.wait_until(lambda: "keys need" in str(suture.json_any("status")))
    shown = suture("status", code=ExitCode.TO_DO)
    report = suture("scm", "report", code=ExitCode.TO_DO)
    looked = suture("scm", "recover", "--dry-run")
    assert "1 container without blocks that keys need (suture scm recover)" in shown
    assert "; 1 without blocks that keys need; " in shown
    assert "1 container without blocks that keys need" in report
    assert {"first,", "second,"} <= set(report.split())
    assert "1 container to look into" in looked
    assert lost == suture.json("scm", "recover")["deleted_keys"]
    suture.wait_until(lambda: suture.json_any("status")["verdict"] == "WHOLE")
    for file in files[len(lost) :]:
        suture("get", file.key, "--output", str(tmp_path / "again"))
        assert file.path.read_bytes() == (tmp_path / "again").read_bytes()


def test_shards_of_short_blocks_lack_nothing(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block of one byte is in the first shard and in those of parity, and no other."""
    suture = CommandLine(cluster.scm.address, capsys)
    suture.wait_until(lambda: len(suture.json("scm", "nodes")["nodes"]) == 3)
    files = [SourceFile(f"{count}", tmp_path / f"{count}", count) for count in (1, 2, 70_000)]
    for file in files:
        file.path.write_bytes(os.urandom(file.size_bytes))
    with ClusterClient(cluster.scm.address) as client:
        _stored, [container_id] = client.put(files, lanes=1, scheme=parse_scheme("rs-2-1-64k"))
    suture("scm", "close", str(container_id))

    suture.wait_until(lambda: int(suture.json_any("status")["containers"]["whole"]) == 1)
    suture.status_when_well()
    suture("rm", "1", "--yes")
    suture.wait_until(lambda: not int(suture.json("scm", "queues")["delete_transaction_count"]))
    suture.status_when_well()
