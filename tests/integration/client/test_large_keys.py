"""Keys larger than a container, whole copies and erasure-coded, on a cluster with small ones."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from random import Random

import pytest

from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.ec.scheme import Scheme, parse_scheme
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.forked_cluster import forked_cluster
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

MIB = 1024**2
CONTAINER_BYTES = 9 * MIB  # a block is of whole chunks, so two of them
COPIES, CODED = None, parse_scheme("rs-3-2-64k")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Five agents and small containers; those of a writer that is gone are closed soon."""
    with forked_cluster(
        tmp_path_factory.mktemp("large"),
        agents=5,
        container_bytes_max=CONTAINER_BYTES,
        scm_settings={"session_idle_ms": 3_000, "close_retry_ms": 100},
    ) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    """A client of that cluster."""
    with ClusterClient(cluster.scm.address) as opened:
        yield opened


class Cut(Exception):
    """The writer ends here."""


def source_of(name: str, size_bytes: int) -> SourceFile:
    """Return what is stored under a name."""
    return SourceFile(name, Path(name), size_bytes, Random(name).randbytes(size_bytes))


def containers(client: ClusterClient) -> list[scm_pb2.ContainerInfo]:
    """Return all containers of the cluster, as the control plane shows them."""
    answer = client.scm.list_container_infos(scm_pb2.ListContainerInfosRequest(count=1_000))
    return list(answer.containers)


def reports(
    client: ClusterClient, container_ids: Collection[int]
) -> list[container_pb2.ReplicaReport]:
    """Return what was reported last of the replicas of some containers."""
    return [
        found.replica
        for one in containers(client)
        if one.container_id in container_ids
        for found in one.replicas
    ]


def data_files(cluster: Cluster) -> list[str]:
    """Return every file in which a datanode has data of blocks, wherever on its volumes."""
    return [
        name
        for index in range(cluster.agents)
        for volume in cluster.volume_paths(index)
        for _, _, names in os.walk(volume)  # which takes it that directories go meanwhile
        for name in names
        if name.endswith(".block")
    ]


def is_clean(cluster: Cluster, client: ClusterClient) -> bool:
    """Whether nothing is left, on any disk or in the books."""
    return not data_files(cluster) and {one.state for one in containers(client)} <= {"DELETED"}


@pytest.mark.parametrize("scheme", [COPIES, CODED])
def test_a_key_of_three_containers_comes_back_and_goes(
    cluster: Cluster, client: ClusterClient, scheme: Scheme | None
) -> None:
    """Its blocks are as small as the containers require, and no container grows beyond its size."""
    size_bytes = 3 * CONTAINER_BYTES * (scheme.data_count if scheme else 1) + 5
    source = source_of("large", size_bytes)

    _, container_ids = client.put([source], scheme=scheme, close=True)
    back = b"".join(client.get("large"))
    part = b"".join(client.read(client.find("large"), start=3 * MIB - 7, stop=size_bytes - 3))
    replica_count = len(container_ids) * (scheme.shard_count if scheme else 3)
    wait_until(lambda: len(reports(client, container_ids)) == replica_count)
    wait_until(lambda: {container_pb2.CLOSED} == {r.state for r in reports(client, container_ids)})
    sizes = [report.used_bytes for report in reports(client, container_ids)]
    client.scm.delete_keys(scm_pb2.DeleteKeysRequest(keys=["large"]))

    assert source.data == back
    assert back[3 * MIB - 7 : size_bytes - 3] == part
    assert 4 == len(container_ids)
    assert CONTAINER_BYTES >= max(sizes)
    wait_until(lambda: is_clean(cluster, client))


@pytest.mark.parametrize("scheme", [COPIES, CODED])
@pytest.mark.parametrize("is_silent", [False, True])
def test_cut_off_put_leaves_no_blocks_and_no_containers(
    cluster: Cluster, client: ClusterClient, scheme: Scheme | None, *, is_silent: bool
) -> None:
    """No blocks or containers unknown to the SCM remain, whether the writer aborts the put or is
    killed without a message.
    """
    size_bytes = 3 * CONTAINER_BYTES * (scheme.data_count if scheme else 1)
    source, written_bytes = source_of("cut", size_bytes), 0

    def cut(length_bytes: int) -> None:
        nonlocal written_bytes
        written_bytes += length_bytes
        if written_bytes > size_bytes // 2:
            raise Cut

    def store() -> None:
        if is_silent:
            client._pool.acquire(scheme, cut, lambda _: None).put([source], replace=False)
        else:
            client.put([source], scheme=scheme, progress=cut)

    with pytest.raises(Cut):
        store()

    assert data_files(cluster)
    wait_until(lambda: is_clean(cluster, client))
    assert client.scm.list_keys(scm_pb2.ListKeysRequest(prefix="cut")).keys == []


def test_many_small_coded_keys_make_no_shard_larger_than_a_container(
    cluster: Cluster, client: ClusterClient
) -> None:
    """Each is in one data shard and all of parity: these fill up first."""
    sources = [source_of(f"small/{number}", 60_000) for number in range(160)]

    _, container_ids = client.put(sources, lanes=1, scheme=CODED, close=True)
    wait_until(lambda: len(reports(client, container_ids)) == 5 * len(container_ids))
    wait_until(lambda: {container_pb2.CLOSED} == {r.state for r in reports(client, container_ids)})
    sizes = [report.used_bytes for report in reports(client, container_ids)]
    client.scm.delete_keys(scm_pb2.DeleteKeysRequest(keys=[one.key for one in sources]))

    assert 2 == len(container_ids)
    assert CONTAINER_BYTES >= max(sizes)
    wait_until(lambda: is_clean(cluster, client))
