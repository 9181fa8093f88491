"""A replica that fails while it is written is left behind, and caught up by reconcile."""

from pathlib import Path

import pytest

from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.client.writer import StoredFile
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tests.support.storage.three_replicas import content

pytestmark = [pytest.mark.slow, pytest.mark.fault]

FILES = 12
FILE_BYTES = 50_000


def sources(directory: Path) -> list[SourceFile]:
    """Write some files; return them as sources."""
    directory.mkdir()
    result = []
    for number in range(FILES):
        path = directory / f"file{number}"
        path.write_bytes(content(number, 0, FILE_BYTES))
        result.append(SourceFile(f"left/{path.name}", path, FILE_BYTES))
    return result


def replicas(client: ClusterClient, container_id: int) -> dict[str, container_pb2.ReplicaReport]:
    """Return the SCM's reports of a container by datanode address."""
    request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
    info = client.scm.get_container_info(request).container
    return {replica.datanode.address: replica.replica for replica in info.replicas}


def states(client: ClusterClient, container_id: int) -> set[int]:
    """Return the states of a container's replicas."""
    return {report.state for report in replicas(client, container_id).values()}


def test_writes_go_on_and_the_replica_is_caught_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three agents is killed during a write. All keys are stored on two. The returned
    replica closes as QUASI_CLOSED with a lower BCSID, and one reconcile makes it CLOSED and
    equal.
    """
    cluster = forked_cluster(
        tmp_path / "cluster",
        scm_settings={"heal": "false"},  # the reconcile is ordered by hand
    )
    with cluster, ClusterClient(cluster.scm.address) as client:
        suture = CommandLine(cluster.scm.address, capsys)
        suture.wait_until(lambda: len(suture.json("scm", "nodes")["nodes"]) == 3)
        victim = cluster.nodes[0]
        first = sources(tmp_path / "files")
        durable_bytes = 0

        def kill_midway(length_bytes: int) -> None:
            nonlocal durable_bytes
            durable_bytes += length_bytes
            if durable_bytes == (FILES - 1) * FILE_BYTES:
                victim.kill()

        early, _ = client.put(first[:1], lanes=1)
        stored, containers = client.put(first[1:], lanes=1, progress=kill_midway)
        late = [SourceFile("left/late", first[0].path, FILE_BYTES)]
        more, more_containers = client.put(late, lanes=1)
        container_ids = sorted({*containers, *more_containers, *containers_of(early)})
        assert 3 == min(item.replicas_min for item in early)
        assert 2 == min(item.replicas_min for item in more)
        assert FILES - 1 == len(stored)

        address = victim.address
        cluster.write_config(0, listen=address)
        victim.start()
        suture("scm", "close", *map(str, container_ids))
        behind = wait_for_quasi_closed(suture, client, container_ids, address)
        reconciled = suture.json("reconcile", *map(str, behind))
        suture.wait_until(lambda: all(states(client, c) == {container_pb2.CLOSED} for c in behind))

        results = {outcome["status"]["reconcile"]["result"] for outcome in reconciled["outcomes"]}
        assert results <= {"converged", "nothing_to_do"}
        for container_id in behind:
            reports = replicas(client, container_id)
            assert 1 == len({report.bcsid for report in reports.values()})
            assert 1 == len({report.tree.root for report in reports.values()})
        for source in first:
            assert source.path.read_bytes() == b"".join(client.get(source.key))


def containers_of(stored: list[StoredFile]) -> set[int]:
    """Return the containers of stored files."""
    return {block.block_id.container_id for item in stored for block in item.blocks}


def wait_for_quasi_closed(
    suture: CommandLine, client: ClusterClient, container_ids: list[int], address: str
) -> list[int]:
    """Wait until all replicas are closed one way or the other; return where one was left behind."""
    behind: set[int] = set()

    def settled() -> bool:
        done = True
        for container_id in container_ids:
            reports = replicas(client, container_id)
            seen = {at: report.state for at, report in reports.items()}
            final = {container_pb2.CLOSED, container_pb2.QUASI_CLOSED}
            if len(seen) < 3 or not set(seen.values()) <= final:
                done = False  # what an open replica reported last is older than what it has
            elif seen[address] == container_pb2.QUASI_CLOSED:
                others = {at: r.bcsid for at, r in reports.items() if at != address}
                assert reports[address].bcsid < min(others.values())
                behind.add(container_id)
        return done and bool(behind)

    suture.wait_until(settled)
    return sorted(behind)
