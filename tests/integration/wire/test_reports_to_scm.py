"""Every field that a datanode reports, over two real connections: from the datanode to a control
plane in its own process, and from there to the `--json` document of a command.

The test is the datanode. It reports a different value in each field, and expects these values.
"""

import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from merkle.replica import LAYOUT_VERSION
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.command_line import CommandLine
from tests.support.control.column_pages import columns
from tests.support.control.fake_datanode import FakeDatanode, unreachable
from tests.support.control.scm_process import ScmProcess

SLOW: Final = {"stale_after_ms": 60_000, "dead_after_ms": 120_000}
NUMBERS: Final = itertools.count(1_000, 10)
ME: Final = "00000000-0000-4000-8000-00000000000a"
OTHER: Final = "00000000-0000-4000-8000-00000000000b"
ADDRESS: Final = "192.0.2.7:9859"
NOW_MS: Final = int(time.time() * 1000)
EXPIRY_MS: Final = NOW_MS + 3_600_000
VOLUME: Final = datanode_pb2.VolumeStatus(
    volume_id="volume-1",
    path="/data/1",
    capacity_bytes=10**12,
    available_bytes=9 * 10**11,
    used_bytes=10**10,
    container_count=17,
    oldest_scan_at_ms=NOW_MS - 1_000,
    service="READ_ONLY",
)
FAILED: Final = datanode_pb2.VolumeStatus(
    volume_id="volume-2", path="/data/2", failed=True, error="no such disk"
)
QUEUES: Final = {"reconcile": 3, "delete_blocks": 4}
TREE: Final = container_pb2.TreeSummary(
    algorithm=container_pb2.TREE_XXH3_64,
    root=0x1112_1314_1516_1718,
    generation=5,
    block_count=6,
    tombstone_count=7,
    tombstones_checksum=0x2122_2324_2526_2728,
)
REPLICA: Final = container_pb2.ReplicaReport(
    state=container_pb2.UNHEALTHY,
    used_bytes=4_096,
    block_count=8,
    bcsid=9,
    origin_datanode_id=OTHER,
    tree=TREE,
    volume_id="volume-1",
    data_scan_at_ms=NOW_MS - 2_000,
    finding_count=11,
    contradiction_count=1,
)
EMPTY: Final = container_pb2.ReplicaReport(
    state=container_pb2.OPEN, origin_datanode_id=ME, volume_id="volume-1", is_empty=True
)
UNLOADED: Final = container_pb2.ReplicaReport(
    state=container_pb2.UNHEALTHY,
    origin_datanode_id=ME,
    volume_id="volume-2",
    load_error="its descriptor is gone",
)


@pytest.fixture(scope="module")
def scm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A control plane without a cluster."""
    path = tmp_path_factory.mktemp("scm")
    process = ScmProcess.start(path, log_level="error", **SLOW)  # type: ignore[arg-type]
    yield process.address
    process.terminate()


class Reporter(FakeDatanode):
    """A datanode with two volumes, one of which failed."""

    def volumes(self) -> list[datanode_pb2.VolumeStatus]:
        return [VOLUME, FAILED]


@pytest.fixture
def node(scm: str) -> Iterator[Reporter]:
    """A datanode that has not registered."""
    with grpc.insecure_channel(scm) as channel:
        stub = Stub(channel, SCM)
        yield Reporter(stub, ME, rack="/row-7", address=ADDRESS)


def shown(document: Any, kind: type[Message]) -> Any:
    """Return a part of a document as the message that it was printed from."""
    return ParseDict(document, kind())


def register(node: FakeDatanode, **more: Any) -> scm_pb2.RegisterResponse:
    """Register with every field."""
    return node.stub.Register(
        scm_pb2.RegisterRequest(
            datanode_id=node.datanode_id,
            address=node.address,
            rack=node.rack,
            version="7.8.9",
            volumes=node.volumes(),
            boot_id=node.boot_id,
            layout_version=LAYOUT_VERSION,
            **more,
        )
    )


def test_registration_and_heartbeat_are_shown(
    scm: str, node: Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """`suture scm nodes` shows all facts of a datanode, its volumes and its queues."""
    node.datanode_id, node.address = str(uuid.uuid4()), unreachable()
    began_ms = time.time() * 1000
    assert node.heartbeat().reregister
    registered = register(node)
    assert not node.heartbeat(queues=QUEUES).reregister
    node.report_full(container_pb2.ReplicaReport(container_id=9, state=container_pb2.OPEN))
    node.heartbeat(queues=QUEUES)

    documents = CommandLine(scm, capsys).json("scm", "nodes")["nodes"]

    assert registered.cluster_id.startswith("CID-")
    assert registered.heartbeat_interval_ms == 50
    [info] = [
        shown(document, scm_pb2.NodeInfo)
        for document in documents
        if document["datanode_id"] == node.datanode_id
    ]
    assert began_ms - 1_000 <= info.last_heartbeat_at_ms <= time.time() * 1000 + 1_000
    expected = scm_pb2.NodeInfo(
        datanode_id=node.datanode_id,
        address=node.address,
        rack="/row-7",
        version="7.8.9",
        health="HEALTHY",
        op_state="IN_SERVICE",
        last_heartbeat_at_ms=info.last_heartbeat_at_ms,
        container_count=1,
        volumes=node.volumes(),
        queues=[scm_pb2.QueueCount(type=kind, count=count) for kind, count in QUEUES.items()],
        layout_version=LAYOUT_VERSION,
    )
    assert expected == info


def test_state_that_a_new_datanode_keeps_is_taken_over(
    scm: str, node: Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """A control plane that does not know the datanode believes its state and its end."""
    node.datanode_id, node.address = str(uuid.uuid4()), unreachable()
    register(node, op_state="ENTERING_MAINTENANCE", op_expiry_ms=EXPIRY_MS)

    document = CommandLine(scm, capsys).json_any("scm", "decommission-status")

    [departure] = [
        shown(one, scm_pb2.Departure)
        for one in document["departures"]
        if one["datanode_id"] == node.datanode_id
    ]
    assert departure.op_expiry_ms == EXPIRY_MS
    assert departure.op_state in {"ENTERING_MAINTENANCE", "IN_MAINTENANCE"}


@pytest.mark.parametrize("way", ["columns", "messages"])
def test_a_full_report_in_two_pages_is_shown(
    scm: str, node: Reporter, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """`suture scm containers` shows every fact of a replica. What an earlier report named is
    gone after the last page, and not before.
    """
    register(node)
    told = []
    for number, replica in enumerate((REPLICA, EMPTY, UNLOADED), start=next(NUMBERS)):
        told.append(container_pb2.ReplicaReport())
        told[-1].CopyFrom(replica)
        told[-1].container_id = number
    told[0].replica_index = 3
    command = CommandLine(scm, capsys)

    def known() -> set[int]:
        return {one["container_id"] for one in command.json("scm", "containers")["containers"]}

    before = known()
    for page, replicas in enumerate((told[:1], told[1:])):
        place = {"report_id": 77, "page": page, "last": page == 1}
        request = scm_pb2.HeartbeatRequest(
            datanode_id=ME, boot_id=node.boot_id, volumes=node.volumes()
        )
        if way == "columns":
            request.column_reports.add(replicas=columns(replicas), **place)
        else:
            request.reports.add(full=True, replicas=replicas, **place)
        node.stub.Heartbeat(request)
        assert page == 1 or before <= known()
    found = command.json("scm", "containers")["containers"]

    replicas = [
        shown(replica, scm_pb2.ContainerInfoReplica)
        for container in found
        for replica in container["replicas"]
        if replica["datanode"]["datanode_id"] == ME
    ]
    assert told == [one.replica for one in replicas]
    for one in replicas:
        assert (ME, ADDRESS) == (one.datanode.datanode_id, one.datanode.address)
        assert one.node_health == "HEALTHY"
        assert NOW_MS - 1_000 <= one.reported_at_ms <= time.time() * 1000 + 1_000
