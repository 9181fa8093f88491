"""Whole answers of an agent in states that it rarely has, over a real connection. The test is the
operator, and once the control plane.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from agent.config.options import ScanConfig
from agent.host import heartbeat as heartbeat_module
from agent.host.heartbeat import HeartbeatWorker
from agent.host.outbox import Outbox
from agent.host.peer_check_workers import ControlPlanes
from agent.observe.datanode_status import DatanodeStatus, ProcessInfo
from agent.observe.disk_reports import disk_reports
from agent.scan.container_scan import StoreScanDeps, VerdictBreaker
from agent.scan.scan_manager import ScanManager
from agent.services import read_handlers
from agent.services.admin_handlers import AdminHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.read_handlers import ReadHandlers
from agent.services.scan_handlers import ScanHandlers
from agent.services.server import build_server
from agent.services.service_protocols import SampleResult, SampleStep, ScanMode, ScanStep
from agent.store.volume_set import IndexBacklog
from merkle.replica import ID_MAX, BlockId, ContainerId
from suture.errors import Code, VolumeFailed
from suture.runtime.loop import Busy, RetryAfter, WorkerState, WorkerStatus
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import container_pb2 as c
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s
from tests.support.clock import FakeClock
from tests.support.control.heard_heartbeats import CLUSTER, IDENTITY, Replicas
from tests.support.control.scripted_calls import ScriptedCalls
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened
from tests.support.waiting import wait_until

NOW_MS: Final = 1_790_010_000_000
INTERVAL_S: Final = 36_000
DAY_S: Final = 86_400
LIMITS: Final = DatanodeServerLimits(findings_page_max=1)
CONFIG: Final = ScanConfig(
    data_interval_s=INTERVAL_S,
    start_jitter_s=0,
    promise="warn",
    gap_min_s=0,
    volume_bytes_per_s=2**34,
)  # type: ignore[call-arg]
SMART: Final = json.dumps({"smart_status": {"passed": True}})
DESCRIBED: Final = d.VolumeStatus(
    service="RETIRING",
    service_since_ms=71,
    retiring_bytes=72,
    eta_ms=73,
    stuck_container_ids=[74],
    stuck_reason="no room",
    unplaceable_container_ids=[75],
    read_us=76,
    write_us=77,
    slow="reads take longer",
    stuck_count=78,
)
UNKNOWN: Final = ("capacity_bytes", "available_bytes", "used_bytes", "log_checksum")


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A store with two closed containers, and a clock that the test moves."""
    for result in opened(tmp_path / "volume"):
        result.create(ContainerId(2), blocks=1)
        yield result


@contextmanager
def served(*groups: object) -> Iterator[Peer]:
    """Serve groups of handlers, and dial them."""
    with ThreadPoolExecutor(2) as executor:
        built = build_server(groups, "127.0.0.1:0", executor, datanode_id="dn-1", limits=LIMITS)
        built.server.start()
        with Peer(f"127.0.0.1:{built.port}") as peer:
            yield peer
        built.server.stop(0).wait()


@dataclass
class Disks:
    """The reports about one disk, of programs that answer."""

    volumes: Sequence[object]
    device: Path | None
    added: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        """Open a volume."""
        self.added.append(path)

    def status(self) -> Sequence[d.VolumeStatus]:
        """Return the state of every volume."""
        return [d.VolumeStatus(path=path) for path in self.added]

    def disks(self) -> Sequence[d.DiskReport]:
        """Return what the agent reports."""
        answers = {"smartctl": SMART, "journalctl": "kernel: sdb: I/O error\n"}
        return disk_reports(
            self.volumes,  # type: ignore[arg-type]
            run=lambda words: (0, answers[words[0]], ""),
            device_of=lambda _: self.device,
        )


class Pools:
    """The tasks of an agent."""

    def queue_counts(self) -> list[s.QueueCount]:
        """Return queued and running tasks by type."""
        return [s.QueueCount(type="replicate", count=3), s.QueueCount(type="close", count=4)]


def test_status_has_troubled_workers_tasks_and_a_retiring_volume(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerStatus("scan", WorkerState.WORKING, 5, 6, "no such file", 7_000.0)
    here = replica.store.volume_set
    here.backlogs = {here.working[0]: IndexBacklog({ContainerId(80): None}, 79)}
    status = DatanodeStatus(
        ProcessInfo(datanode_id="dn-1", cluster_id="CID", version="9", started_at_ms=8),
        replica.store,
        pools=Pools(),
        workers=lambda: [worker],
        scm_state=lambda: "registered",
        clock_offset_ms=lambda: -9,
        interval_s=10.0,
        now_ms=lambda: NOW_MS,
        describe=lambda volume: volume.MergeFrom(DESCRIBED),
    )
    [facts] = replica.store.volumes()
    summary = replace(status.summary(), contradictory_count=10)
    monkeypatch.setattr(status, "summary", lambda: summary)
    with served(AdminHandlers(status.status)) as peer:
        answer = peer.stub.Status(d.StatusRequest())

    [volume] = answer.volumes
    for name in UNKNOWN:
        assert getattr(volume, name)
        volume.ClearField(name)  # type: ignore[arg-type]
    expected = d.VolumeStatus(
        volume_id=facts.volume_id,
        path=str(facts.path),
        container_count=2,
        data_bytes=volume.data_bytes,
        log_count=facts.log_count,
        rebuild_count=79,
        rebuild_left_count=1,
    )
    expected.MergeFrom(DESCRIBED)
    assert answer == d.StatusResponse(
        datanode_id="dn-1",
        cluster_id="CID",
        version="9",
        started_at_ms=8,
        volumes=[expected],
        containers_by_state={"CLOSED": 2},
        workers=[
            d.WorkerStatus(
                name="scan",
                state="working",
                steps=5,
                error_count=6,
                last_error="no such file",
                quiet_ms=7_000_000,
                stalled=True,
            )
        ],
        task_count=7,
        scm_state="registered",
        interval_ms=10_000,
        contradictory_count=10,
        clock_offset_ms=-9,
    )


def test_disks_have_what_smart_and_the_kernel_say(replica: StoredReplica, tmp_path: Path) -> None:
    device = tmp_path / "sdb"
    device.mkdir()
    [facts] = replica.store.volumes()
    volumes = Disks([facts], device)
    with served(AdminHandlers(d.StatusResponse, volumes=volumes)) as peer:  # type: ignore[arg-type]
        said = peer.stub.ListDisks(d.ListDisksRequest())
        volumes.device = None
        [silent] = peer.stub.ListDisks(d.ListDisksRequest()).disks
        added = peer.stub.ControlVolume(d.ControlVolumeRequest(add_path="/disk"))

    about = {"volume_id": facts.volume_id, "path": str(facts.path)}
    assert said == d.ListDisksResponse(
        disks=[
            d.DiskReport(**about, disk="sdb", smart=SMART, kernel_lines=["kernel: sdb: I/O error"])
        ]
    )
    assert silent.kernel_error
    assert ["/disk"] == [volume.path for volume in added.volumes]


def test_scan_and_sample_tell_progress_and_results(replica: StoredReplica) -> None:
    """Among the results, what was not drawn, not read and not decided."""
    fields: dict[str, Any] = {
        "chunk_count": 71,
        "read_count": 72,
        "bytes_read": 73,
        "bad_count": 74,
        "undecided_count": 75,
        "gone_count": 76,
        "without_checksum_count": 77,
        "damaged_row_count": 78,
        "unread_count": 79,
        "unread": ["container 7: no row"],
    }
    result = SampleResult(**fields)
    modes: list[ScanMode] = []

    def scan(_id: ContainerId, _stop: object, mode: ScanMode) -> list[ScanStep]:
        modes.append(mode)
        return [ScanStep(5, 10, is_waiting=True)]

    handlers = ScanHandlers(
        replica.store,
        scan,
        lambda *_: [SampleStep(3), SampleStep(72, result)],
        limits=LIMITS,
    )
    with served(handlers) as peer:
        request = d.ScanContainerRequest(container_id=CONTAINER, full_speed=True)
        progress = list(peer.stub.ScanContainer(request))
        sample = list(peer.stub.SampleChunks(d.SampleChunksRequest()))

    assert [d.ScanProgress(bytes_read=5, bytes_total=10, waiting=True)] == progress
    assert [ScanMode.FULL_SPEED] == modes
    assert [
        d.SampleProgress(read_count=3),
        d.SampleProgress(
            read_count=72,
            result=d.SampleResult(**fields),
        ),
    ] == sample


def test_pages_of_findings_and_of_changes_say_what_is_left(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the findings begins at a container. Older changes are counted, and volumes that
    cannot be read are named.
    """
    for container_id in (CONTAINER, ContainerId(2)):
        replica.file(1, container_id).write_bytes(b"")
        replica.scan(container_id)
    monkeypatch.setattr(read_handlers, "CHANGES_PAGE_MAX", 1)
    scans = ScanHandlers(replica.store, lambda *_: (), lambda *_: (), limits=LIMITS)
    with served(scans, ReadHandlers(replica.store, limits=LIMITS)) as peer:
        first = peer.stub.ListFindings(d.ListFindingsRequest())
        rest = peer.stub.ListFindings(
            d.ListFindingsRequest(start_container_id=first.next_container_id)
        )
        changes = peer.stub.ListChanges(d.ListChangesRequest())
        index = type(replica.store.volume_set.working[0].index)
        monkeypatch.setattr(index, "read", unreadable)
        unread = peer.stub.ListChanges(d.ListChangesRequest())

    assert [CONTAINER] == sorted({one.container_id for one in first.findings})
    assert {ContainerId(2)} == {one.container_id for one in rest.findings}
    assert 1 == len(changes.changes)
    assert changes.left_out_count > 1
    assert unread == d.ListChangesResponse(unread_paths=[str(replica.path)])


def unreadable(_index: object) -> None:
    """Fail as a disk does."""
    raise VolumeFailed(Code.IO_EXCEPTION, "the index cannot be read")


def test_scrub_tells_of_a_late_scan_and_of_what_it_doubts(replica: StoredReplica) -> None:
    """All was read once. Then no scan ran for days, a descriptor and the volume disappeared, and a
    second implementation computed another checksum.
    """
    clock = FakeClock(NOW_MS)
    replica.options = replace(replica.options, now_ms=clock.now_ms)
    replica.close()
    replica.reopen()
    tools = StoreScanDeps(
        store=replica.store,
        leases=replica.leases,
        guard=VerdictBreaker(clock=clock),
        clock=clock,
    )
    scrub = ScanManager(tools, CONFIG, threading.Event())
    loops = {loop.status().name: loop for loop in scrub.loops()}

    def run(name: str) -> None:
        while loops[name].run_step() == 0.0:
            clock.advance_s(1)

    [facts] = replica.store.volumes()
    run(f"scan-{facts.volume_id}")
    oldest_ms = min(one.data_scan_at_ms for one in replica.store.replicas())
    clock.advance_s(3 * DAY_S)
    while scrub.status().volumes[0].lag_ms == 0:
        assert loops[f"scan-{facts.volume_id}"].run_step() == 0.0  # a drill, then the first replica
    clock.advance_s(3 * DAY_S)
    shutil.rmtree(replica.store.paths(CONTAINER).chunks)
    run("metadata-scan")
    shadow = scrub.tools.shadow
    assert shadow is not None
    shadow.hashed_count = 5
    for _ in range(2):
        shadow.differed(CONTAINER, [])
    with served(AdminHandlers(d.StatusResponse, scrub)) as peer:
        late = peer.stub.ScrubStatus(d.ScrubStatusRequest())
        shutil.rmtree(replica.path)
        wait_until(
            lambda: (
                loops["volume-check"].run_step() and bool(scrub.checks.error_of(facts.volume_id))
            )
        )
        failed = peer.stub.ScrubStatus(d.ScrubStatusRequest())

    [volume] = late.volumes
    assert (oldest_ms, True, "") == (volume.oldest_read_at_ms, volume.canary_overdue, volume.check)
    assert 2 * DAY_S * 1000 < volume.lag_ms <= 3 * DAY_S * 1000
    assert late.metadata_fault_count == 1
    assert late.shadow_hashing == d.ShadowHashing(running=True, compared_count=5, differing_count=2)
    assert "is gone" in failed.volumes[0].check


def beats(
    calls: ScriptedCalls,
    replicas: Replicas,
    last_copies: Callable[..., None] = lambda _: None,
    on_commands: Callable[..., None] = lambda *_: None,
) -> object:
    """Send heartbeats about replicas until nothing is left; return what the agent does then."""
    with ScmClient(calls.address) as scm:
        worker = HeartbeatWorker(
            scm,
            replicas,
            IDENTITY,
            on_commands,
            FakeClock(),
            outbox=Outbox(),
            on_last_copies=last_copies,
        )
        step: object = Busy()
        while isinstance(step, Busy):
            step = worker.step()
    return step


def test_answers_set_the_interval_and_name_last_copies() -> None:
    told: list[int] = []
    with ScriptedCalls() as calls:
        calls.answers["Register"] = [
            s.RegisterResponse(cluster_id=CLUSTER, heartbeat_interval_ms=7_000)
        ]
        calls.answers["Heartbeat"] = [
            s.HeartbeatResponse(term=3, sole_healthy_container_ids=[5, 6])
        ]

        step = beats(calls, Replicas(0), told.extend)

    assert RetryAfter(7.0) == step
    assert [5, 6] == told


def test_orders_arrive_whole() -> None:
    """A reconcile that a person asked for is done however often it changed nothing."""
    order = s.Command(
        command_id=71,
        term=3,
        lifetime_ms=72,
        priority=s.LOW,
        reconcile=s.ReconcileCommand(
            container_id=73,
            peers=[c.DatanodeEndpoint(datanode_id="dn2", address="dn2:9859")],
            holders=[s.KnownHolder(datanode_id="dn3", is_dead=True)],
            asked_for=True,
        ),
    )
    taken: list[s.Command] = []
    with ScriptedCalls() as calls:
        calls.answers["Register"] = [s.RegisterResponse(cluster_id=CLUSTER)]
        calls.answers["Heartbeat"] = [s.HeartbeatResponse(term=3, commands=[order])]

        beats(calls, Replicas(0), on_commands=lambda commands, _: taken.extend(commands))

    assert [order] == taken


def test_deletes_that_peers_claim_are_confirmed_by_the_control_plane() -> None:
    """The answer tells which were ordered, and which blocks a key names."""
    answer = s.ConfirmDeletesResponse(ordered_local_ids=[1], kept_local_ids=[2])
    with ScriptedCalls() as calls, ScmClient(calls.address) as scm:
        calls.answers["ConfirmDeletes"] = [answer]

        got = ControlPlanes([scm]).confirm_deletes(CONTAINER, [BlockId(1), BlockId(2)])

    asked = s.ConfirmDeletesRequest(container_id=CONTAINER, local_ids=[1, 2])
    assert ([asked], answer) == (calls.requests["ConfirmDeletes"], got)


def test_page_with_an_invalid_replica_is_sent_by_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its place among the pages by columns, and the number of its report."""
    monkeypatch.setattr(heartbeat_module, "REPLICAS_PER_HEARTBEAT_MAX", 2)
    replicas = Replicas(5)
    replicas.bcsids[5] = ID_MAX + 1
    with ScriptedCalls() as calls:
        calls.answers["Register"] = [s.RegisterResponse(cluster_id=CLUSTER)]

        beats(calls, replicas)

        sent = calls.requests["Heartbeat"]
    first, second = (page for request in sent for page in request.column_reports)
    [third, *_] = (page for request in sent for page in request.reports)
    assert [(0, False), (1, False)] == [(page.page, page.last) for page in (first, second)]
    assert first.report_id == second.report_id == third.report_id > 0
    assert third == s.ContainerReport(
        full=True,
        report_id=third.report_id,
        page=2,
        last=True,
        replicas=[c.ReplicaReport(container_id=5, state=c.CLOSED, bcsid=ID_MAX + 1)],
    )
