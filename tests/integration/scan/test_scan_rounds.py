"""A volume's background scan: rounds, pauses, windows, and going on where it was cut off."""

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.scan.background_scan import IDLE_MAX_S, PAUSE_MAX_S, RoundPolicy, VolumeScanWorker
from agent.scan.container_scan import CURSOR_S, StoreScanDeps, VerdictBreaker, scan_container
from agent.scan.throttle import IoPressure, ScanPace
from merkle.replica import ContainerId, ReplicaState
from scanner.scan_rate_control import PaceLimits
from scanner.schedule import ScanHours, Schedule, parse_window
from suture.runtime.loop import Busy, Idle, ProgressMarker, RetryAfter
from tests.support.clock import FakeClock
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

OTHER, THIRD = ContainerId(2), ContainerId(3)
MIB = 1024**2
INTERVAL_S, GAP_S = 36_000.0, 900.0
NIGHT = ScanHours((parse_window("22:00-06:00"),))
HOUR_S, DAY_MS = 3600, 86_400_000


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with containers 1, 2 and 3, closed and whole."""
    for result in opened(tmp_path / "volume"):
        result.create(OTHER, blocks=1)
        result.create(THIRD, blocks=1)
        yield result


@pytest.fixture
def clock(replica: StoredReplica) -> FakeClock:
    """Return the clock of the test, which the store has too."""
    result = FakeClock(replica.options.now_ms())
    replica.options = replace(replica.options, now_ms=result.now_ms)
    replica.close()
    replica.reopen()
    return result


class Rig:
    """The worker of the store's only volume, in the test's time."""

    def __init__(
        self,
        replica: StoredReplica,
        clock: FakeClock,
        *,
        windows: ScanHours | None = None,
        start_delay_s: float = 0.0,
        volume_id: str = "",
        limits: PaceLimits | None = None,
        last_copy_since_ms: Callable[[ContainerId], int] = lambda _: 0,
    ) -> None:
        self.stop = threading.Event()
        self.waited_s = 0.0
        self.on_wait: Callable[[], None] = lambda: None
        self._clock = clock
        self.tools = StoreScanDeps(
            store=replica.store,
            leases=replica.leases,
            guard=VerdictBreaker(clock=clock),
            clock=clock,
        )
        self.worker = VolumeScanWorker(
            self.tools,
            volume_id or replica.store.volumes()[0].volume_id,
            policy=RoundPolicy(
                schedule=Schedule(interval_s=INTERVAL_S, datanode_id="dn-1"),
                gap_min_s=GAP_S,
                windows=windows or ScanHours(),
                start_delay_s=start_delay_s,
                last_copy_since_ms=last_copy_since_ms,
            ),
            pace=ScanPace(limits or PaceLimits(fixed_bytes_per_s=2**50), self.wait, clock=clock),
            stop=self.stop,
            pulse=ProgressMarker(clock),
        )

    def wait(self, delay_s: float) -> bool:
        """Let time pass, as an Event's wait does."""
        self.waited_s += delay_s
        self._clock.advance_s(delay_s)
        self.on_wait()
        return self.stop.is_set()


class TestRounds:
    def test_a_round_reads_every_replica_once_then_waits(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """Each step reads one replica. When all are read, none is due."""
        worker = Rig(replica, clock).worker

        steps = [worker.step() for _ in range(4)]

        assert [Busy(), Busy(), Busy()] == steps[:3]
        assert isinstance(steps[3], RetryAfter)
        assert all(facts.data_scan_at_ms for facts in replica.store.replicas())
        assert sum(facts.used_bytes for facts in replica.store.replicas()) == worker.scanned_bytes

    def test_the_next_round_ends_within_the_interval(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """Each replica has its slot before the promise ends."""
        worker = Rig(replica, clock).worker
        for _ in range(4):
            worker.step()
        before = worker.scanned_bytes

        for _ in range(int(INTERVAL_S / IDLE_MAX_S) - 1):
            clock.advance_s(IDLE_MAX_S)
            while worker.step() == Busy():
                pass

        assert worker.scanned_bytes >= 2 * before

    def test_waiting_scan_worker_frees_its_buffers(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """Volumes are many and seldom read. Their buffers would be most of an idle agent's
        memory.
        """
        worker = Rig(replica, clock).worker
        worker.step()
        memory = weakref.ref(worker._buffers.first.obj)
        assert memory() is not None

        while worker.step() == Busy():
            pass

        assert memory() is None

    def test_replicas_that_become_due_are_collected_for_a_while(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """A pass over all replicas is not worth a single one. A minute of ten hours is no delay."""
        worker = Rig(replica, clock).worker
        for _ in range(4):
            worker.step()
        replica.create(ContainerId(4), blocks=1)

        clock.advance_s(INTERVAL_S / 600 - 1)
        early = worker.step()
        clock.advance_s(1)

        assert isinstance(early, RetryAfter)
        assert Busy() == worker.step()

    def test_new_last_copy_is_scanned_first_and_once(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """The last copy is scanned first although it was scanned already and others never were."""
        since_ms: dict[ContainerId, int] = {}
        rig = Rig(replica, clock, last_copy_since_ms=lambda one: since_ms.get(one, 0))
        worker = rig.worker
        scan_container(rig.tools, THIRD)
        clock.advance_s(HOUR_S)
        since_ms[THIRD] = clock.now_ms()
        clock.advance_s(1)

        assert Busy() == worker.step()
        read_at_ms = {
            facts.container_id: facts.data_scan_at_ms for facts in replica.store.replicas()
        }
        assert [THIRD] == [one for one, at_ms in read_at_ms.items() if at_ms >= since_ms[THIRD]]
        assert [Busy(), Busy()] == [worker.step(), worker.step()]
        assert isinstance(worker.step(), RetryAfter)

    def test_open_replicas_are_not_scanned(self, replica: StoredReplica, clock: FakeClock) -> None:
        """Their bytes may still change."""
        replica.store.create_container(ContainerId(9))
        worker = Rig(replica, clock).worker

        while worker.step() == Busy():
            pass

        assert 0 == replica.store.replica(ContainerId(9)).data_scan_at_ms

    def test_unhealthy_replicas_are_scanned(self, replica: StoredReplica, clock: FakeClock) -> None:
        """Their tree has to follow what the medium does."""
        replica.flip(1, 5)
        replica.scan()
        assert ReplicaState.UNHEALTHY == replica.store.replica(CONTAINER).state
        replica.flip(1, 5)
        worker = Rig(replica, clock).worker
        clock.advance_s(INTERVAL_S)

        while worker.step() == Busy():
            pass

        assert ReplicaState.CLOSED == replica.store.replica(CONTAINER).state

    def test_another_volume_s_replicas_are_not_its_business(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """Every volume has a worker of its own."""
        assert isinstance(Rig(replica, clock, volume_id="another").worker.step(), RetryAfter)

    def test_a_stopped_worker_reads_nothing(self, replica: StoredReplica, clock: FakeClock) -> None:
        """Stop comes before work."""
        rig = Rig(replica, clock)
        rig.stop.set()

        assert Idle() == rig.worker.step()

    def test_a_start_is_delayed(self, replica: StoredReplica, clock: FakeClock) -> None:
        """All hosts of a rack start at once after a power cut, and do not read at once."""
        worker = Rig(replica, clock, start_delay_s=30).worker

        assert RetryAfter(30) == worker.step()
        clock.advance_s(30)
        assert Busy() == worker.step()

    def test_scan_reads_within_its_windows_only(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """At noon it waits and its status is closed; at ten in the evening it reads."""
        clock.advance_s((DAY_MS - clock.now_ms() % DAY_MS) / 1000 + 12 * HOUR_S)
        worker = Rig(replica, clock, windows=NIGHT).worker

        assert RetryAfter(IDLE_MAX_S) == worker.step()
        assert "closed" == worker.status().state
        clock.advance_s(10 * HOUR_S + 1)
        assert Busy() == worker.step()

    def test_a_doubted_volume_is_read_again(self, replica: StoredReplica, clock: FakeClock) -> None:
        """Once, after the gap between two attempts, and not in circles."""
        worker = Rig(replica, clock).worker
        while worker.step() == Busy():
            pass
        before = worker.scanned_bytes

        for _ in range(2):
            clock.advance_s(GAP_S + 1)
            worker.rescan_all()
            while worker.step() == Busy():
                pass

        assert 2 * before == worker.scanned_bytes

    def test_a_future_doubt_is_of_now(self, replica: StoredReplica, clock: FakeClock) -> None:
        """A clock that was ahead for a moment does not have a volume read in circles for years."""
        worker = Rig(replica, clock).worker
        clock.set_wall_s(5 * HOUR_S)
        worker.rescan_all()
        clock.set_wall_s(-5 * HOUR_S)
        for _ in range(2):
            clock.advance_s(GAP_S + 1)
            while worker.step() == Busy():
                pass
        assert sum(one.used_bytes for one in replica.store.replicas()) == worker.scanned_bytes


class TestPause:
    def test_a_pause_ends_by_itself(self, replica: StoredReplica, clock: FakeClock) -> None:
        """No operator has to end it."""
        worker = Rig(replica, clock).worker
        worker.hold.pause(50)

        assert RetryAfter(50) == worker.step()
        assert ("paused", 50) == (worker.status().state, worker.status().pause_left_s)
        clock.advance_s(50)
        assert Busy() == worker.step()

    def test_resume_ends_it_at_once_and_wakes_the_loop(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """The rest of the pause is not waited for."""
        worker = Rig(replica, clock).worker
        woken = threading.Event()
        worker.hold.wake = woken.set
        worker.hold.pause(50)
        assert RetryAfter(50) == worker.step()

        worker.hold.resume()

        assert woken.is_set()
        assert "waiting" == worker.status().state
        assert Busy() == worker.step()

    @pytest.mark.parametrize("duration_s", [0, -1, PAUSE_MAX_S + 1])
    def test_a_pause_without_end_is_refused(
        self, replica: StoredReplica, clock: FakeClock, duration_s: float
    ) -> None:
        """A pause without end or without length is refused."""
        with pytest.raises(ValueError, match="pause"):
            Rig(replica, clock).worker.hold.pause(duration_s)

    def test_a_pause_stops_the_scan_under_way(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """A pause also stops a scan that waits for its pace. Afterwards the same container
        continues at once.
        """
        rig = Rig(replica, clock, limits=PaceLimits(fixed_bytes_per_s=10_000))
        rig.on_wait = lambda: rig.worker.hold.pause(100)

        assert Busy() == rig.worker.step()

        assert rig.waited_s < 2
        assert 0 == replica.store.replica(CONTAINER).data_scan_at_ms
        rig.on_wait = lambda: None
        clock.advance_s(100)
        assert Busy() == rig.worker.step()
        assert replica.store.replica(CONTAINER).data_scan_at_ms

    def test_a_skipped_scan_comes_again_later(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """Cancelling is for now; the promise stays."""
        rig = Rig(replica, clock, limits=PaceLimits(fixed_bytes_per_s=100_000))
        rig.on_wait = lambda: rig.worker.hold.skip(CONTAINER)

        while rig.worker.step() == Busy():
            pass
        assert 0 == replica.store.replica(CONTAINER).data_scan_at_ms
        assert replica.store.replica(OTHER).data_scan_at_ms
        rig.on_wait = lambda: None
        clock.advance_s(901)
        rig.worker.step()

        assert replica.store.replica(CONTAINER).data_scan_at_ms


class TestStatus:
    def test_scan_status_has_position_speed_and_remaining_time(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """The status is read during the scan."""
        rig = Rig(replica, clock, limits=PaceLimits(fixed_bytes_per_s=50_000))
        seen = []
        rig.on_wait = lambda: seen.append(rig.worker.status())

        rig.worker.step()

        status = seen[-1]
        total_bytes = sum(facts.used_bytes for facts in replica.store.replicas())
        assert ("reading", CONTAINER, 3) == (status.state, status.container_id, status.due_count)
        assert total_bytes - status.container_bytes_read == status.due_bytes
        assert (total_bytes, 3, 0) == (
            status.used_bytes,
            status.never_read_count,
            status.oldest_read_at_ms,
        )
        assert 25_000 < status.speed_bytes_per_s < 100_000
        assert pytest.approx(status.due_bytes / status.speed_bytes_per_s) == status.eta_s

    def test_lag_is_what_exceeds_the_promise(
        self, replica: StoredReplica, clock: FakeClock
    ) -> None:
        """The lag is zero if the promise is kept. A host that was down for a week reports its
        delay.
        """
        rig = Rig(replica, clock)
        while rig.worker.step() == Busy():
            pass
        assert 0.0 == rig.worker.status().lag_s
        clock.advance_s(INTERVAL_S + 500)

        rig.on_wait = lambda: None
        rig.worker.step()

        assert 499 < rig.worker.status().lag_s < 510


class TestCursor:
    @pytest.fixture
    def large(self, tmp_path: Path) -> Iterator[StoredReplica]:
        """Return a store with a container of six chunks of 2 MiB."""
        result = StoredReplica(tmp_path / "large")
        result.store.create_container(CONTAINER)
        result.put(1, *[2 * MIB] * 6)
        result.store.close_container(CONTAINER, bcsid=0, force=True)
        yield result
        result.close()

    def scan(self, large: StoredReplica, stop_after: int, wait_s: float = 0.0) -> tuple[int, bool]:
        """Scan, stopping after so many reads; return the bytes read and whether it committed."""
        clock = FakeClock(large.options.now_ms())
        tools = StoreScanDeps(
            store=large.store,
            leases=large.leases,
            clock=clock,
        )
        read: list[int] = []
        report = scan_container(
            tools,
            CONTAINER,
            stop=lambda: len(read) >= stop_after,
            progress=read.append,
            pace=lambda _: clock.advance_s(wait_s),
            resumable_s=600,
        )
        return sum(read), report.committed

    def test_a_scan_goes_on_where_it_was_stopped(self, large: StoredReplica) -> None:
        """Nothing is read twice, also by another process."""
        assert (4 * MIB, False) == self.scan(large, 1)
        large.close()
        large.reopen()

        assert (8 * MIB, True) == self.scan(large, 99)
        assert large.store.kept_cursor(CONTAINER) is None

    def test_a_cursor_is_kept_every_few_seconds(self, large: StoredReplica) -> None:
        """A process that is killed loses no more than that."""
        seen = []

        def look() -> bool:
            cursor = large.store.kept_cursor(CONTAINER)
            seen.append(cursor.mark.bytes_read if cursor else 0)
            return False

        clock = FakeClock(large.options.now_ms())
        tools = StoreScanDeps(store=large.store, leases=large.leases, clock=clock)
        scan_container(
            tools,
            CONTAINER,
            stop=look,
            pace=lambda _: clock.advance_s(CURSOR_S),
            resumable_s=600,
        )

        assert [0, 4 * MIB, 8 * MIB] == sorted(set(seen))

    def test_a_replica_that_changed_is_read_from_the_start(self, large: StoredReplica) -> None:
        """A cursor is good for one generation."""
        self.scan(large, 1)
        before = large.store.generation(CONTAINER)
        remove_blocks(large.store, CONTAINER, [large.store.view(CONTAINER).blocks()[0].block_id])

        assert large.store.generation(CONTAINER) > before
        assert large.store.kept_cursor(CONTAINER) is None

    def test_an_old_cursor_is_not_used(self, large: StoredReplica) -> None:
        """Reads from long ago say too little about the present."""
        self.scan(large, 1)
        cursor = large.store.kept_cursor(CONTAINER)
        assert cursor is not None
        clock = FakeClock(cursor.begun_at_ms)
        clock.advance_s(601)
        read: list[int] = []

        scan_container(
            StoreScanDeps(
                store=large.store,
                leases=large.leases,
                clock=clock,
            ),
            CONTAINER,
            progress=read.append,
            resumable_s=600,
        )

        assert 12 * MIB == sum(read)

    def test_damage_before_the_cursor_is_found_all_the_same(self, large: StoredReplica) -> None:
        """Chunks that were not clean are read again."""
        large.flip(1, 5)
        self.scan(large, 2)

        read_bytes, committed = self.scan(large, 99)

        assert committed
        assert 8 * MIB < read_bytes <= 16 * MIB
        assert ReplicaState.UNHEALTHY == large.store.replica(CONTAINER).state


class TestPressure:
    def test_the_kernel_is_asked_every_few_seconds_only(self) -> None:
        """Scans of twelve volumes share one look at it."""
        clock = FakeClock()
        totals = iter([0, 3_000_000])
        pressure = IoPressure(clock, stall_us=totals.__next__)
        assert 0.0 == pressure.of_others()
        pressure.worked(1.0)
        clock.advance_s(4)

        assert 0.5 == pressure.of_others() == pressure.of_others()

    def test_pressure_during_a_pause_does_not_slow_the_next_reads(self) -> None:
        """A night of backups must not slow down the first reads of the morning."""
        clock = FakeClock()
        totals = iter([0, 60_000_000, 62_000_000])
        pressure = IoPressure(clock, stall_us=totals.__next__)
        pressure.of_others()
        clock.advance_s(60)

        assert 0.0 == pressure.of_others()
        clock.advance_s(4)
        assert 0.5 == pressure.of_others()

    def test_a_kernel_without_psi_is_no_pressure(self) -> None:
        """Then only the clients' latency slows a scan."""
        assert 0.0 == IoPressure(FakeClock(), stall_us=lambda: None).of_others()
