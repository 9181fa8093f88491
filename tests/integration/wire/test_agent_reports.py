"""Every field that an agent in its own process reports to the control plane, and every field of the
answers and commands that it obeys. The test is the control plane.
"""

import itertools
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import pytest

from agent.leases import ContainerLeases
from agent.scan.container_scan import StoreScanDeps, scan_container
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from merkle.replica import LAYOUT_VERSION, BlockId, ContainerId
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.column_pages import replicas_in
from tests.support.control.scripted_scm import CLUSTER_ID, ScriptedScm
from tests.support.faults.victim import Victim
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import CHUNK_BYTES, closed_replica, flip_bit, write_block

ME: Final = "dn-a"
BAD, OPEN, EMPTY = ContainerId(7), ContainerId(8), ContainerId(9)
BLOCK_BYTES: Final = 2 * CHUNK_BYTES
UNKNOWN: Final = (
    *("capacity_bytes", "available_bytes", "used_bytes", "data_bytes", "in_time_bytes"),
    *("log_count", "log_checksum"),
)
NUMBERS: Final = itertools.count(1)
TERM: Final = 5


@dataclass
class Scene:
    """An agent, its control plane, and what its volume had before it started."""

    scm: ScriptedScm
    address: str
    volume: datanode_pb2.VolumeStatus
    tree: container_pb2.TreeSummary
    began_ms: int

    def done(self, **order: Any) -> scm_pb2.CommandStatus:
        """Order something, and return what became of it."""
        order = {"command_id": next(NUMBERS), "term": TERM} | order
        self.scm.order(scm_pb2.Command(**order))
        status = self.scm.wait_for(order["command_id"])
        assert status is not None
        return status


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A damaged replica with a deleted block, an open shard, and an empty replica."""
    folder = tmp_path_factory.mktemp("agent")
    path = folder / "volume"
    path.mkdir()
    began_ms = int(time.time() * 1000)
    opened = ReplicaStore.open(
        [path], cluster_id=CLUSTER_ID, datanode_id=ME, options=StoreOptions(reserve_bytes=0)
    )
    with closing(opened) as store:
        closed_replica(store, BAD)
        remove_blocks(store, BAD, [BlockId(3)])
        flip_bit(store.paths(BAD).block_file(BlockId(1)), 5)
        scan_container(StoreScanDeps(store=store, leases=ContainerLeases()), BAD)
        store.create_container(OPEN, replica_index=2)
        write_block(store, OPEN, 1, bcsid=4)
        store.create_container(EMPTY)
        store.close_container(EMPTY, bcsid=0)
        [known] = store.volumes()
        tree = store.replica(BAD).tree
    assert tree is not None
    with ScriptedScm() as scm, Victim(folder / "agent.log") as victim:
        scm.term = TERM
        config = folder / "agent.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm.address}"\nrack = "/row-7"\n'
            f'[storage]\nvolumes = ["{path}"]\nreserve_bytes = 0\n'
            "[scan]\nenabled = false\nwatch = false\n"
            '[tasks]\nthreads = 1\n[observe]\nlisten = ""\n'
        )
        address = victim.start(config)
        volume = datanode_pb2.VolumeStatus(
            volume_id=known.volume_id,
            path=str(path),
            container_count=3,
            service="IN_SERVICE",
        )
        yield Scene(scm, address, volume, codec.summary_message(tree), began_ms)
        victim.stop()


def last(scene: Scene) -> scm_pb2.HeartbeatRequest:
    """Return a heartbeat that began after this call."""
    count = scene.scm.heartbeats
    assert scene.scm.wait_until(lambda: scene.scm.heartbeats > count + 1)
    return scene.scm.heard[-1]


def checked(volume: datanode_pb2.VolumeStatus) -> datanode_pb2.VolumeStatus:
    """Check the numbers of a volume that the test cannot know, and return the others."""
    stat = os.statvfs(volume.path)
    assert volume.capacity_bytes == stat.f_blocks * stat.f_frsize
    assert 0 < volume.available_bytes < volume.capacity_bytes
    assert 5 * BLOCK_BYTES // 2 <= volume.used_bytes < 100 * BLOCK_BYTES
    assert volume.data_bytes == volume.in_time_bytes == 2 * BLOCK_BYTES
    assert volume.log_count > 2  # a scan, a delete, and the start
    assert len(set(volume.log_checksum)) > 1
    left = datanode_pb2.VolumeStatus()
    left.CopyFrom(volume)
    for name in UNKNOWN:
        left.ClearField(name)  # type: ignore[arg-type]
    return left


def test_registration_is_whole(scene: Scene) -> None:
    """It has the identity, the volumes, the state that the control plane decided, and the starts
    of control planes that the agent saw.
    """
    scm = scene.scm
    expiry_ms = scene.began_ms + 10**7
    scm.start_id, scm.state_number = "start-1", 77
    state = scm_pb2.SetOperationalStateCommand(
        op_state="ENTERING_MAINTENANCE", op_expiry_ms=expiry_ms
    )
    assert scene.done(set_operational_state=state).state == scm_pb2.CommandStatus.EXECUTED
    beat = last(scene)
    count = len(scm.registrations)

    assert scene.done(reregister={}).type == "reregister"
    assert scm.wait_until(lambda: len(scm.registrations) > count)

    told = scm.registrations[-1]
    assert 0 < told.boot_id == beat.boot_id
    [seen] = [one for one in told.seen_starts if one.start_id == "start-1"]
    assert (TERM, 77) == (seen.term, seen.state_number)
    assert list(told.seen_starts) == list(beat.seen_starts)
    assert scene.volume == checked(told.volumes[0]) == checked(beat.volumes[0])
    assert [("ENTERING_MAINTENANCE", expiry_ms)] * 2 == [
        (one.op_state, one.op_expiry_ms) for one in (told, beat)
    ]
    assert (ME, ME) == (told.datanode_id, beat.datanode_id)
    expected = (scene.address, "/row-7", version("suture"), CLUSTER_ID, LAYOUT_VERSION)
    assert expected == (
        *(told.address, told.rack, told.version, told.cluster_id, told.layout_version),
    )


def test_agent_registers_again_when_it_is_not_known(scene: Scene) -> None:
    """The answer to a heartbeat says that the control plane does not know the datanode."""
    scm = scene.scm
    count = len(scm.registrations)

    scm.reregister = True

    assert scm.wait_until(lambda: len(scm.registrations) > count)


@pytest.mark.parametrize("lag_ms", [-100_000, 100_000])
def test_status_has_the_lead_of_the_clock_over_that_of_the_scm(scene: Scene, lag_ms: int) -> None:
    """The lead has the right sign, and is exact but for the duration of a call. Without a
    difference it is 0.
    """
    with closing(Peer(scene.address)) as peer:
        scene.scm.clock_lag_ms = lag_ms
        last(scene)
        wrong_ms = peer.status().clock_offset_ms
        scene.scm.clock_lag_ms = 0
        last(scene)
        right_ms = peer.status().clock_offset_ms

    assert abs(lag_ms) - 60_000 < abs(wrong_ms) <= abs(lag_ms) + 1
    assert (wrong_ms > 0) is (lag_ms > 0)
    assert abs(right_ms) <= 1


def test_full_report_is_whole(scene: Scene) -> None:
    """All replicas are on one page of columns, with all facts that the volume has."""
    scm = scene.scm
    count = len(scm.pages)

    scene.done(reregister={})
    assert scm.wait_until(lambda: len(scm.pages) > count)

    page = scm.pages[-1]
    assert (0, True) == (page.page, page.last)
    assert page.report_id > 0
    bad, shard, empty = replicas_in(page.replicas)
    assert scene.began_ms <= bad.data_scan_at_ms <= time.time() * 1000
    common = {"origin_datanode_id": ME, "volume_id": scene.volume.volume_id}
    assert bad == container_pb2.ReplicaReport(
        container_id=BAD,
        state=container_pb2.UNHEALTHY,
        used_bytes=2 * BLOCK_BYTES,
        block_count=2,
        bcsid=3,
        tree=scene.tree,
        data_scan_at_ms=bad.data_scan_at_ms,
        finding_count=1,
        **common,
    )
    assert (2, 1) == (scene.tree.block_count, scene.tree.tombstone_count)
    assert shard == container_pb2.ReplicaReport(
        container_id=OPEN,
        state=shard.state,
        used_bytes=BLOCK_BYTES,
        block_count=1,
        bcsid=4,
        replica_index=2,
        tree=shard.tree if shard.HasField("tree") else None,
        **common,
    )
    assert empty == container_pb2.ReplicaReport(
        container_id=EMPTY,
        state=container_pb2.CLOSED,
        is_empty=True,
        tree=empty.tree,
        **common,
    )
    assert empty.tree.algorithm == scene.tree.algorithm


def reported(scene: Scene, container_id: int) -> container_pb2.ReplicaReport:
    """Return what the agent said last about a replica that changed."""
    replicas = [
        replica
        for beat in scene.scm.heard
        for report in beat.reports
        for replica in report.replicas
    ]
    return [replica for replica in replicas if replica.container_id == container_id][-1]


@pytest.fixture
def new_id(scene: Scene) -> Iterator[int]:
    """The id of a container that the agent has only during the test: a shard with one block."""
    container_id = 100 + next(NUMBERS)
    block = container_pb2.BlockId(container_id=container_id, local_id=1, bcsid=4)
    chunk = container_pb2.ChunkInfo(length=3)
    commit = container_pb2.BlockData(block_id=block, chunks=[chunk], size=3)
    with Peer(scene.address) as peer:
        peer.stub.CreateContainer(
            datanode_pb2.CreateContainerRequest(container_id=container_id, replica_index=3)
        )
        peer.stub.WriteChunk(
            datanode_pb2.WriteChunkRequest(block_id=block, chunk=chunk, data=b"abc", commit=commit)
        )
        yield container_id
        peer.stub.DeleteContainer(
            datanode_pb2.DeleteContainerRequest(container_id=container_id, force=True)
        )


def test_close_is_obeyed_and_its_replica_reported(scene: Scene, new_id: int) -> None:
    """A replica that lacks a commit is only QUASI_CLOSED, until the control plane insists."""
    states = []
    for order in ({"bcsid": 5}, {"bcsid": 5, "force": True}):
        status = scene.done(close=scm_pb2.CloseCommand(container_id=new_id, **order))
        assert (scm_pb2.CommandStatus.EXECUTED, "close", new_id) == (
            *(status.state, status.type, status.container_id),
        )
        last(scene)
        told = reported(scene, new_id)
        states.append(told.state)

    assert [container_pb2.QUASI_CLOSED, container_pb2.CLOSED] == states
    assert (3, 1, 3, 5) == (told.used_bytes, told.block_count, told.replica_index, told.bcsid)
    assert told.tree.block_count == 1
    assert told.volume_id == scene.volume.volume_id


def test_changes_since_a_moment_are_listed(scene: Scene) -> None:
    """Each change has its container and the state after it."""
    with Peer(scene.address) as peer:
        since = datanode_pb2.ListChangesRequest(since_ms=scene.began_ms)
        changes = peer.stub.ListChanges(since).changes
        since.since_ms += 10**9
        later = peer.stub.ListChanges(since).changes

    [*_, last_change] = [one for one in changes if one.container_id == BAD]
    assert last_change.entry.state == container_pb2.UNHEALTHY
    assert [] == list(later)


def test_disks_are_described(scene: Scene) -> None:
    """The answer names the volume, its device or why it has none, and what the kernel said."""
    with Peer(scene.address) as peer:
        [disk] = peer.stub.ListDisks(datanode_pb2.ListDisksRequest()).disks

    assert (scene.volume.volume_id, scene.volume.path) == (disk.volume_id, disk.path)
    assert bool(disk.smart) != bool(disk.smart_error)
    assert disk.disk or disk.kernel_error


def test_queued_commands_are_counted(scene: Scene) -> None:
    """One thread sends copies to a datanode that never answers; the others wait."""
    scm, counts = scene.scm, set()
    scm.heard.clear()
    numbers = [next(NUMBERS) for _ in range(20)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        scm.order_all(
            [
                scm_pb2.Command(
                    command_id=number,
                    term=TERM,
                    lifetime_ms=3_000,
                    replicate=scm_pb2.ReplicateCommand(
                        container_id=BAD,
                        target=container_pb2.DatanodeEndpoint(
                            datanode_id=f"gone{number}", address=address
                        ),
                    ),
                )
                for number in numbers
            ]
        )

        def is_counted() -> bool:
            counts.update((q.type, q.count) for beat in scm.heard for q in beat.queues)
            return ("replicate", len(numbers)) in counts

        assert scm.wait_until(is_counted, timeout_s=20)
        assert scm.wait_until(lambda: set(numbers) <= scm.statuses.keys())


@pytest.mark.parametrize(("term", "code"), [(TERM - 1, "STALE_TERM"), (TERM, "")])
def test_command_of_an_earlier_term_is_skipped(scene: Scene, term: int, code: str) -> None:
    """An older control plane cannot command."""
    status = scene.done(term=term, refresh_volume_usage={})

    state = scm_pb2.CommandStatus.SKIPPED if code else scm_pb2.CommandStatus.EXECUTED
    assert (code, state, "refresh_volume_usage") == (status.code, status.state, status.type)
