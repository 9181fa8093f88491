"""A volume that fails while it serves: noticed, fenced, and told; one that coughs is not."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import geteuid
from pathlib import Path

import pytest

from agent.observe.datanode_status import DatanodeStatus, ProcessInfo
from agent.scan.volume_check import LOOK_S, CheckLimits, VolumeCheckWorker
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.probe import Probe
from merkle.replica import BlockId, ContainerId
from scanner.failure_window import FailureWindow
from suture.errors import RefusedError, VolumeFailed
from suture.runtime.loop import RetryAfter
from tests.support.clock import FakeClock
from tests.support.control.no_commands import NoCommands
from tests.support.storage.stores import CLUSTER, DATANODE, closed_replica, options_of_test

LIMITS = CheckLimits(interval_s=3600, gap_min_s=60, timeout_s=600)
MOUNT, UMOUNT = "/bin/mount", "/bin/umount"
needs_root = pytest.mark.skipif(geteuid() != 0, reason="only root mounts")


class Rig:
    """The check worker over one store, in the test's time; probes really run in threads."""

    def __init__(
        self,
        store: ReplicaStore,
        probe: Callable[[str], Probe] | None = None,
        limits: CheckLimits = LIMITS,
    ) -> None:
        self.clock = FakeClock()
        self.failed: list[tuple[str, tuple[ContainerId, ...]]] = []
        self.checks = VolumeCheckWorker(
            store,
            clock=self.clock,
            limits=limits,
            on_failed=lambda volume_id, lost: self.failed.append((volume_id, lost)),
            probe=probe,
        )

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, and every probe that does not hang end."""
        self.clock.advance_s(seconds)
        self.checks.step()
        for thread in threading.enumerate():
            if thread.name.startswith("probe-"):
                thread.join(5.0)
        self.checks.step()


@pytest.fixture
def volumes(tmp_path: Path) -> list[Path]:
    """Two volumes."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
    return paths


@pytest.fixture
def store(volumes: list[Path]) -> Iterator[ReplicaStore]:
    """A store of two volumes with one closed container on each."""
    opened = ReplicaStore.open(
        volumes, cluster_id=CLUSTER, datanode_id=DATANODE, options=options_of_test()
    )
    for container_id in (1, 2):
        closed_replica(opened, container_id)
    assert 2 == len({facts.volume_id for facts in opened.replicas()})
    yield opened
    opened.close()


def place(store: ReplicaStore, container_id: int) -> tuple[str, Path]:
    """Return the id and the path of the volume that a container is on."""
    volume_id = store.replica(ContainerId(container_id)).volume_id
    (path,) = [facts.path for facts in store.volumes() if facts.volume_id == volume_id]
    return volume_id, path


def test_good_volumes_are_checked_once_an_hour(store: ReplicaStore) -> None:
    """Both, and nothing is left behind."""
    rig = Rig(store)

    rig.run()
    rig.run(3599)
    assert 2 == rig.checks.check_count
    rig.run(1)

    assert (4, []) == (rig.checks.check_count, rig.failed)
    assert not [path for facts in store.volumes() for path in facts.path.glob("**/probe/*")]


def test_a_volume_whose_directory_is_gone_is_fenced_at_once(store: ReplicaStore) -> None:
    """Its replicas are refused, not reported, not made again; the other volume serves on."""
    volume_id, path = place(store, 1)
    rig = Rig(store)
    shutil.rmtree(path)

    rig.run()

    assert [(volume_id, (ContainerId(1),))] == rig.failed
    assert "is gone" in rig.checks.error_of(volume_id)
    with pytest.raises(VolumeFailed, match="volume that failed"):
        store.view(ContainerId(1)).read(BlockId(1), 0, 10)
    with pytest.raises(VolumeFailed, match="volume that failed"):
        store.create_container(ContainerId(1))
    assert [2] == [facts.container_id for facts in store.replicas()]
    (failed,) = [facts for facts in store.volumes() if facts.failed]
    assert (volume_id, 0) == (failed.volume_id, failed.container_count)
    assert store.view(ContainerId(2)).blocks()
    store.create_container(ContainerId(3))


def test_containers_of_a_failed_volume_are_absent_from_a_full_report(store: ReplicaStore) -> None:
    """A report of changes has them as deleted, and the volume is reported as failed."""
    about = ProcessInfo(datanode_id="dn", cluster_id="c", version="1", started_at_ms=0)
    observer = DatanodeStatus(
        about,
        store,
        pools=NoCommands(),
        workers=list,
        scm_state=str,
        clock_offset_ms=int,
        interval_s=60,
        now_ms=lambda: 1_000_000,
    )
    store.volume_set.fail_volume(place(store, 1)[0], "test")

    assert [2] == list(observer.replica_ids())
    assert observer.report(ContainerId(1)).is_empty
    assert [False, True] == [volume.failed for volume in observer.volumes()]


def test_a_disk_that_is_gone_before_it_is_fenced_stops_no_report(store: ReplicaStore) -> None:
    """The heartbeat continues, and reports the volume that does not answer."""
    volume_id, path = place(store, 1)
    shutil.rmtree(path)

    (failed,) = [facts for facts in store.volumes() if facts.failed]

    assert volume_id == failed.volume_id
    assert failed.error


def test_with_no_volume_left_nothing_is_created(store: ReplicaStore) -> None:
    """A clear refusal."""
    for container_id in (1, 2):
        store.volume_set.fail_volume(place(store, container_id)[0], "test")

    with pytest.raises(Exception, match="no volume has more free space"):
        store.create_container(ContainerId(3))


@contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory at `path` for the length of the body."""
    path.mkdir(exist_ok=True)
    subprocess.run([MOUNT, "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run([UMOUNT, "-l", path], check=True)


@needs_root
def test_a_file_system_that_became_read_only_is_fenced(store: ReplicaStore) -> None:
    """The file system is read-only, as the kernel makes one with errors: reads succeed and
    writes fail.
    """
    volume_id, path = place(store, 1)
    rig = Rig(store)
    rig.run()
    assert [] == rig.failed
    (temporary,) = path.glob("hdds/*/tmp")

    with mounted(temporary, "ro"):
        rig.run(3600)

    assert [(volume_id, (ContainerId(1),))] == rig.failed
    assert "EROFS" in rig.checks.error_of(volume_id)


@needs_root
def test_a_full_disk_is_no_broken_one(store: ReplicaStore) -> None:
    """Nothing can be written, and nothing is wrong with the disk."""
    volume_id, path = place(store, 1)
    (temporary,) = path.glob("hdds/*/tmp")

    with mounted(temporary, "size=64k") as full:
        (full / "filler").write_bytes(b"x" * 64 * 1024)

        assert Probe() == store.volume_set.probe(volume_id)


class TestStrikes:
    def test_single_probe_failure_does_not_fail_a_volume(self, store: ReplicaStore) -> None:
        """Two failures within the window fail it. The second probe comes soon, not after an
        hour.
        """
        volume_id, _ = place(store, 1)
        rig = Rig(store, lambda checked: Probe("cough" if checked == volume_id else ""))

        rig.run()
        assert ([], "cough") == (rig.failed, rig.checks.error_of(volume_id))
        rig.run(60)

        assert [(volume_id, (ContainerId(1),))] == rig.failed

    def test_failures_far_apart_are_forgiven(self) -> None:
        """The window slides."""
        strikes = FailureWindow(tolerated=1, window_s=100)

        assert [False, False, False, True] == [strikes.add(at_s) for at_s in (0, 100, 200, 299)]

    def test_a_probe_that_hangs_is_a_failure_and_not_waited_for(self, store: ReplicaStore) -> None:
        """The other volume is checked meanwhile; no second probe piles up behind the first."""
        volume_id, _ = place(store, 1)
        begun, answer = [], threading.Event()

        def hang(checked: str) -> Probe:
            if checked == volume_id:
                begun.append(checked)
                answer.wait(60)
            return Probe()

        rig = Rig(store, hang)
        try:
            assert RetryAfter(LOOK_S) == rig.checks.step()
            rig.clock.advance_s(601)
            rig.checks.step()
            assert ("no answer for 600 s", []) == (rig.checks.error_of(volume_id), rig.failed)
            rig.clock.advance_s(600)
            rig.checks.step()
        finally:
            answer.set()

        assert [(volume_id, (ContainerId(1),))] == rig.failed
        assert [volume_id] == begun
        assert 1 == rig.checks.check_count

    def test_a_request_is_honoured_after_the_gap(self, store: ReplicaStore) -> None:
        """A bad sector asks for a check now; a thousand ask for one."""
        volume_id, _ = place(store, 1)
        rig = Rig(store)
        rig.run()
        woken = threading.Event()
        rig.checks.wake = woken.set

        for _ in range(1000):
            rig.checks.request(volume_id, "EIO")
        rig.run(59)
        assert 2 == rig.checks.check_count
        rig.run(1)

        assert 3 == rig.checks.check_count
        assert woken.is_set()

    @pytest.mark.parametrize(("away_s", "is_fenced"), [(25, False), (90, True)])
    def test_a_disk_that_is_away_for_a_moment_is_not_fenced_for_being_read(
        self, store: ReplicaStore, away_s: int, is_fenced: bool
    ) -> None:
        """Clients read on while a controller is reset, and each read that fails asks for a check;
        as agents are configured."""
        volume_id, _ = place(store, 1)
        is_away = False
        rig = Rig(store, lambda _: Probe("EIO" if is_away else ""), CheckLimits())
        rig.run()

        for second in range(120):
            is_away = 20 <= second < 20 + away_s
            if is_away:
                rig.checks.request(volume_id, "EIO")
            rig.run(1)

        assert is_fenced is bool(rig.failed)
        assert is_fenced is bool(rig.checks.error_of(volume_id))

    def test_a_request_during_a_check_is_not_forgotten(self, store: ReplicaStore) -> None:
        """The place that the probe checked may have failed after it."""
        volume_id, _ = place(store, 1)
        begun, answer = threading.Semaphore(0), threading.Event()

        def slow(_volume_id: str) -> Probe:
            begun.release()
            answer.wait(60)
            return Probe()

        rig = Rig(store, slow)
        rig.checks.step()
        for _ in range(2):
            begun.acquire(timeout=60)
        rig.checks.request(volume_id, "EIO")
        answer.set()
        rig.run()
        assert 2 == rig.checks.check_count

        rig.run(60)

        assert 3 == rig.checks.check_count


def test_an_unknown_container_is_still_unknown(store: ReplicaStore) -> None:
    """A failed volume does not make up containers."""
    store.volume_set.fail_volume(place(store, 1)[0], "test")

    with pytest.raises(RefusedError, match="no container 9"):
        store.replica(ContainerId(9))
