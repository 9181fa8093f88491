"""Scans of a disk that somebody else has filled to the last byte."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.scan.background_scan import RoundPolicy, VolumeScanWorker
from agent.scan.container_scan import StoreScanDeps
from agent.scan.ondemand import OnDemandScans
from agent.scan.throttle import ScanPace
from agent.store.index.transactions import IndexChange
from merkle.replica import BlockId, ContainerId, ReplicaState
from scanner.scan_rate_control import PaceLimits
from scanner.schedule import Schedule
from suture.errors import Code, UnavailableError
from suture.runtime.loop import Busy, ProgressMarker
from tests.support.clock import FakeClock
from tests.support.faults.small_disk import SmallDisk, small_disk
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

pytestmark = pytest.mark.fault

SPARE = ContainerId(9)
INTERVAL_S, GAP_S = 36_000.0, 900.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 12 MiB."""
    with small_disk(tmp_path / "disk", 12 * 1024**2) as made:
        yield made


@pytest.fixture
def replica(disk: SmallDisk) -> Iterator[StoredReplica]:
    """A replica that was scanned, on a store whose index was larger once, as old ones were."""
    for result in opened(disk.path / "volume"):
        assert result.scan().committed
        yield result


def free_pages(replica: StoredReplica) -> None:
    """Leave pages in the index that it can use without growing."""

    def put(rows: IndexChange) -> None:
        for number in range(1, 201):
            rows.put_block(SPARE, BlockId(number), bytes(4000))

    def delete(rows: IndexChange) -> None:
        for number in range(1, 201):
            rows.delete_block(SPARE, BlockId(number))

    for volume in replica.store.volume_set.working:
        for _ in range(3):
            volume.index.write(put)
            volume.index.write(delete)


def test_damage_is_recorded_without_a_tree(replica: StoredReplica, disk: SmallDisk) -> None:
    """Unreported damage is never repaired, and the disk may be full for days."""
    free_pages(replica)
    replica.flip(2, 5)
    disk.fill()

    report = replica.scan()

    assert (True, 1) == (report.committed, report.finding_count)
    assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state
    assert [2] == [finding.block_id for finding in replica.store.findings(CONTAINER)]
    disk.free()
    assert replica.scan().committed
    assert 1 == replica.store.view(CONTAINER).tree().unhealthy_count


def test_unchanged_replica_on_a_full_disk_counts_as_scanned(
    replica: StoredReplica, disk: SmallDisk
) -> None:
    """A full disk is no reason to scan all replicas again and again."""
    free_pages(replica)
    before = replica.store.replica(CONTAINER)
    disk.fill()

    report = replica.scan()

    after = replica.store.replica(CONTAINER)
    assert report.committed
    assert after.data_scan_at_ms > before.data_scan_at_ms
    assert before.tree == after.tree


def test_a_tree_that_became_another_waits_for_room(replica: StoredReplica, disk: SmallDisk) -> None:
    """A replica that is healthy in the index must have a tree that agrees."""
    free_pages(replica)
    replica.flip(2, 5)
    assert replica.scan().committed
    replica.flip(2, 5)
    disk.fill()

    with pytest.raises(UnavailableError) as caught:
        replica.scan()

    assert Code.DISK_OUT_OF_SPACE is caught.value.code
    assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state
    disk.free()
    replica.scan()
    assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state


@pytest.fixture
def clock(replica: StoredReplica) -> FakeClock:
    """The clock of a test, which the store has too."""
    result = FakeClock(replica.options.now_ms())
    replica.options = replace(replica.options, now_ms=result.now_ms)
    replica.close()
    replica.reopen()
    return result


@pytest.fixture
def unwritable(replica: StoredReplica, clock: FakeClock, disk: SmallDisk) -> StoreScanDeps:
    """What scans use of a replica of which none can be committed: its tree became another."""
    replica.flip(2, 5)
    assert replica.scan().committed
    replica.flip(2, 5)
    disk.fill()
    return replace(replica.tools, clock=clock)


def test_scan_that_cannot_record_its_result_is_not_repeated_in_a_loop(
    unwritable: StoreScanDeps, replica: StoredReplica, clock: FakeClock
) -> None:
    """Until the disk has room, a volume is scanned a few times per interval, not continuously."""
    stop = threading.Event()
    worker = VolumeScanWorker(
        unwritable,
        replica.store.volumes()[0].volume_id,
        policy=RoundPolicy(
            schedule=Schedule(interval_s=INTERVAL_S, datanode_id="dn-1"), gap_min_s=GAP_S
        ),
        pace=ScanPace(PaceLimits(fixed_bytes_per_s=2**50), stop.wait, clock=clock),
        stop=stop,
        pulse=ProgressMarker(clock),
    )
    clock.advance_s(INTERVAL_S)

    for _ in range(int(INTERVAL_S / 60)):
        clock.advance_s(60.0)
        with suppress(UnavailableError):
            while worker.step() == Busy():
                pass

    used_bytes = replica.store.replica(CONTAINER).used_bytes
    assert 2 * used_bytes <= worker.scanned_bytes <= 12 * used_bytes


def test_a_scan_that_was_asked_for_is_not_tried_again_at_once(
    unwritable: StoreScanDeps, replica: StoredReplica, clock: FakeClock
) -> None:
    """
    Space does not come back within half a minute, and each try reads the replica whole.
    """
    read: list[int] = []
    scans = OnDemandScans(
        unwritable, pace=read.append, stop=threading.Event(), pulse=ProgressMarker(clock)
    )
    scans.request(CONTAINER, reason="asked")

    for _ in range(60):
        while scans.step() == Busy():
            pass
        clock.advance_s(1.0)

    assert replica.store.replica(CONTAINER).used_bytes == sum(read)
    assert 0 == scans.waiting_count()
