"""A scanner cannot fail unseen: killed, frozen or throwing, status shows it and the dog starves."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.observe.datanode_status import worker_message
from agent.scan.background_scan import RoundPolicy, VolumeScanWorker
from agent.scan.container_scan import StoreScanDeps
from agent.scan.throttle import ScanPace
from scanner.scan_rate_control import PaceLimits
from scanner.schedule import Schedule
from suture.runtime.loop import QUIET_MAX_S, ProgressMarker, WorkerLoop, WorkerLoops, WorkerState
from suture.runtime.sd_notify import SystemdNotifier, WatchdogWorker
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import StoredReplica, opened

WATCHDOG_US = 120_000_000
WAIT_S = 30.0


class ThreadKilled(BaseException):
    """What no loop catches: the end of a thread."""


class Bench:
    """A volume's scanner in its thread, its supervisor on a real socket, the test's time.

    `trouble` runs inside the scan, between two reads.
    """

    def __init__(self, replica: StoredReplica, directory: Path) -> None:
        self.clock = FakeClock(replica.options.now_ms())
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "notify"))
        self._socket.setblocking(False)
        pulse = ProgressMarker(self.clock)
        self.worker = VolumeScanWorker(
            StoreScanDeps(
                store=replica.store,
                leases=replica.leases,
                clock=self.clock,
            ),
            replica.store.volumes()[0].volume_id,
            policy=RoundPolicy(
                schedule=Schedule(interval_s=86_400, datanode_id="dn-1"), gap_min_s=900
            ),
            pace=ScanPace(PaceLimits(fixed_bytes_per_s=1), self.wait, clock=self.clock),
            stop=threading.Event(),
            pulse=pulse,
        )
        self.loop = WorkerLoop(self.worker, clock=self.clock, pulse=pulse)
        self.loops = WorkerLoops([self.loop])
        supervisor = SystemdNotifier(
            {"NOTIFY_SOCKET": str(directory / "notify"), "WATCHDOG_USEC": str(WATCHDOG_US)}
        )
        self.watchdog = WatchdogWorker(supervisor, lambda: self.loops.stalled(QUIET_MAX_S))
        self.trouble = self.freeze

    def wait(self, _delay_s: float) -> bool:
        """Stand where a scan waits for its pace."""
        self.entered.set()
        self.trouble()
        return True

    def freeze(self) -> None:
        """Show no life until told to."""
        self.go_on.wait(WAIT_S)

    def throw(self) -> None:
        """Be a defect."""
        raise ValueError("a defect")

    def die(self) -> None:
        """End the thread past everything that catches."""
        raise ThreadKilled

    def is_fed(self) -> bool:
        """Let the watchdog's worker look once; return whether the supervisor heard of it."""
        self.watchdog.step()
        try:
            return self._socket.recv(100) == b"WATCHDOG=1"
        except BlockingIOError:
            return False

    def close(self) -> None:
        """End the thread."""
        self.go_on.set()
        self.loops.stop(WAIT_S)
        self._socket.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a scanner that has not started."""
    for replica in opened(tmp_path / "volume"):
        result = Bench(replica, tmp_path)
        yield result
        result.close()


def test_a_scanner_that_reads_feeds_the_watchdog(bench: Bench) -> None:
    """The guard of the other tests: nothing is wrong yet."""
    bench.loop.start()
    assert bench.entered.wait(WAIT_S)

    assert bench.is_fed()
    assert not worker_message(bench.loop.status()).stalled


def test_a_frozen_scanner_starves_the_watchdog(bench: Bench) -> None:
    """Hung in a read or a wait: seen when the quiet time is over, and well again afterwards."""
    bench.loop.start()
    assert bench.entered.wait(WAIT_S)

    bench.clock.advance_s(QUIET_MAX_S + 1)

    status = worker_message(bench.loop.status())
    assert (True, "working", 301_000) == (status.stalled, status.state, status.quiet_ms)
    assert (f"scan-{bench.worker.volume_id}",) == bench.loops.stalled(QUIET_MAX_S)
    assert not bench.is_fed()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_scanner_is_dead_at_once(bench: Bench) -> None:
    """No quiet time has to pass: a thread that is gone is gone."""
    bench.trouble = bench.die
    bench.loop.start()
    assert bench.loop.join(WAIT_S)

    assert WorkerState.DEAD is bench.loop.status().state
    assert worker_message(bench.loop.status()).stalled
    assert not bench.is_fed()


def test_a_throwing_scanner_is_counted_and_goes_on(bench: Bench) -> None:
    """The error is in the status. The loop continues, so the watchdog is fed, and the canary
    covers the rest.
    """
    bench.trouble = bench.throw
    bench.loop.start()
    assert bench.entered.wait(WAIT_S)
    bench.loops.stop(WAIT_S)

    status = worker_message(bench.loop.status())
    assert (1, "ValueError: a defect") == (status.error_count, status.last_error)
    assert WorkerState.STOPPED is bench.loop.status().state
    assert bench.is_fed()
