"""A running cluster verified by what its agents export."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from health.words import flag_names
from merkle.replica import ContainerId
from spark_verify.options import VerifyOptions
from spark_verify.pipeline import VerifyRequest, verify
from suture import Client
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2
from tests.support.nursery import forked
from tests.support.storage.blocks_on_disk import newest_block
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]

AGENTS = 4
WAIT_S = 120.0
AGE_MAX_S = 3600  # the agents report every second

Rows = list[dict[str, Any]]


@pytest.fixture
def exporting(tmp_path: Path) -> Iterator[Cluster]:
    """Four agents that export every second; nothing is scanned or repaired by itself."""
    sections = "[scan]\nenabled = false\nwatch = false\n"
    sections += f'[report]\nexport = "{tmp_path}/reports"\ninterval_s = 1\nkeep_count = 1000\n'
    running = Cluster(
        tmp_path / "cluster",
        agents=AGENTS,
        volumes=1,
        container_bytes_max=4 * 1024**2,
        heartbeat_interval_ms=100,
        agent_sections=sections,
        scm_settings={"heal": "false"},
        launch=forked,
    )
    with running:
        yield running


def newest(reports: Path, datanode_id: str) -> Path:
    return max((reports / datanode_id).glob("[!.]*"))


def rows_of(path: Path) -> Rows:
    rows: Rows = pq.read_table(path).to_pylist()
    return rows


def edit(path: Path, change: Callable[[Rows], object]) -> None:
    """Change the rows of a report, and count its replicas again."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    *replicas, datanode = rows
    datanode["replica_count"] = len(replicas)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def closed_containers(cluster: Cluster) -> list[int]:
    """Write two containers and have them closed; return their ids."""
    ids: list[int] = []
    chance = random.Random(5)
    with Client(cluster.scm.address) as client, ScmClient(cluster.scm.address) as scm:
        for number in range(2):
            client.put(f"key{number}", chance.randbytes(200_000))
            infos = scm.list_container_infos(scm_pb2.ListContainerInfosRequest()).containers
            ids += [info.container_id for info in infos if info.container_id not in ids]
            scm.close_containers(scm_pb2.CloseContainersRequest(container_ids=ids[number:]))
    return ids


def reports_of(cluster: Cluster) -> dict[str, Path]:
    """Return the newest report of each datanode."""
    files = sorted(cluster.root.parent.glob("reports/*/[!.]*"))
    return {file.parent.name: file for file in files}


def holders(cluster: Cluster, container_id: int) -> dict[str, dict[str, Any]]:
    """Return the row of each replica of a container, as its datanode reports it."""
    rows = [row for path in reports_of(cluster).values() for row in rows_of(path)]
    return {row["datanode_id"]: row for row in rows if row["container_id"] == container_id}


def index_of(cluster: Cluster, datanode_id: str) -> int:
    """Return which of the agents has an id."""
    for index, node in enumerate(cluster.nodes):
        with Peer(node.address) as peer:
            if datanode_id == peer.status().datanode_id:
                return index
    raise AssertionError(datanode_id)


def test_exported_reports_reveal_damaged_moved_and_changed_replicas(
    exporting: Cluster, tmp_path: Path
) -> None:
    """
    A replica is damaged on its disk. Then a replica is moved from one report to another, and a root
    is changed: exactly these rows differ from the snapshot.
    """
    first, second = closed_containers(exporting)
    wait_until(lambda: AGENTS == len(reports_of(exporting)), within_s=WAIT_S)

    def are_closed() -> bool:
        rows = [row for one in (first, second) for row in holders(exporting, one).values()]
        return 6 == sum(row["state"] == "CLOSED" and row["root"] is not None for row in rows)

    wait_until(are_closed, within_s=WAIT_S)
    victim = min(holders(exporting, first))
    block = newest_block(exporting, index_of(exporting, victim), first)
    content = bytearray(block.read_bytes())
    content[1000] ^= 1
    block.write_bytes(content)
    with Peer(exporting.nodes[index_of(exporting, victim)].address) as peer:
        peer.scanned(ContainerId(first))
    wait_until(lambda: holders(exporting, first)[victim]["finding_count"] > 0, within_s=WAIT_S)
    frozen = tmp_path / "frozen"
    for datanode_id, path in reports_of(exporting).items():
        (frozen / datanode_id).mkdir(parents=True)
        shutil.copy(path, frozen / datanode_id)
    with ScmClient(exporting.scm.address) as scm:
        snapshot = scm.export_snapshot(scm_pb2.ExportSnapshotRequest()).path
    exporting.stop()  # what it writes each second costs more than a verification

    alone = verify(
        VerifyRequest(
            "", tmp_path / "alone", options=VerifyOptions(max_age_s=AGE_MAX_S), reports=str(frozen)
        )
    )

    health = {row["container_id"]: row for row in read(alone.table("health"))}
    assert {first, second} == health.keys()
    assert "SCAN_FINDINGS" in flag_names(health[first]["flags"])
    assert 0 == health[second]["flags"]
    damaged = [row for row in read(alone.table("replica_class")) if row["finding_count"]]
    assert [(first, victim)] == [(row["container_id"], row["datanode_id"]) for row in damaged]
    assert ExitCode.OK != alone.summary["exit_code"]

    source, other = sorted(holders(exporting, second))[:2]
    (target,) = reports_of(exporting).keys() - holders(exporting, second).keys()
    taken: Rows = []
    edit(newest(frozen, source), lambda rows: taken.extend(took(rows, second)))
    edit(newest(frozen, target), lambda rows: rows.insert(0, moved(taken[0], rows[-1])))
    edit(newest(frozen, other), lambda rows: [r.update(root=77) for r in rows if of(r, second)])

    both = verify(
        VerifyRequest(
            snapshot,
            tmp_path / "both",
            options=VerifyOptions(max_age_s=AGE_MAX_S),
            reports=str(frozen),
        )
    )

    found = {(r["container_id"], r["datanode_id"]): r for r in read(both.table("disagreement"))}
    assert {
        (second, source): ("missing", False),
        (second, target): ("stray", False),
        (second, other): ("other_root", False),
    } == {key: (row["kind"], row["is_later"]) for key, row in found.items()}
    assert 77 == found[second, other]["reported"]["root"]
    assert taken[0]["root"] == found[second, other]["recorded"]["root"]
    assert {"missing": 1, "stray": 1, "other_root": 1, "stale": 0} == both.summary["disagreement"]


def read(table: Path) -> Rows:
    rows: Rows = pq.read_table(table, partitioning=None).to_pylist()
    return rows


def of(row: dict[str, Any], container_id: int) -> bool:
    return bool(row["container_id"] == container_id)


def took(rows: Rows, container_id: int) -> Rows:
    """Take the replica of a container out of a report."""
    found = [row for row in rows if of(row, container_id)]
    rows[:] = [row for row in rows if not of(row, container_id)]
    return found


def moved(replica: dict[str, Any], datanode: dict[str, Any]) -> dict[str, Any]:
    """Return a replica as one of another datanode."""
    return replica | {name: datanode[name] for name in ("datanode_id", "reported_at_ms")}
