"""The continuous scrub, which reads every byte of every closed container within the scan interval.

Each volume has a thread with an `OzoneStore` and the agent's `VolumeScanWorker`. Therefore, the
schedule, the rate limit, the continuation after a stop, and the circuit breaker are the same as on
Suture's volumes.

If a directory has no readable volume, because its disk is not mounted or fails, the other volumes
are still read. The directory is reported, checked regularly, and read when it has a volume.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from agent.scan.background_scan import RoundPolicy, VolumeScanWorker
from agent.scan.container_scan import VerdictBreaker
from agent.scan.throttle import IoPressure, ScanPace
from ozone.disk.layout import HDDS, OzoneVolume, find_volume
from ozone.scrub.history import History
from ozone.scrub.meters import MonitoredVolume, PendingVolume, health_page, metrics_page
from ozone.scrub.scrub import (
    OzoneTools,
    ScrubOptions,
    check_place,
    database_of,
    error_text,
    find_volumes,
    state,
)
from ozone.scrub.store import OzoneStore
from scanner.scan_rate_control import PaceLimits
from scanner.schedule import Feasibility, Schedule
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import Clock, SystemClock
from suture.runtime.http_listener import WebListener
from suture.runtime.loop import QUIET_MAX_S, ProgressMarker, Step, WorkerLoop, WorkerLoops
from suture.runtime.sd_notify import SystemdNotifier, WatchdogWorker
from suture.runtime.stop_request import StopRequest

GAP_MIN_S: Final = 900.0  # minimum time between two attempts at one container
STOP_DEADLINE_S: Final = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubServiceOptions:
    """The options of the service.

    `interval_s` is the scan interval in seconds. `listen` is the host:port for metrics and health.
    If it is "", these are not served.
    """

    scrub: ScrubOptions
    interval_s: float
    listen: str = ""


def check_promise(volume: OzoneVolume, used_bytes: int, wish: ScrubServiceOptions) -> None:
    """Raise RefusedError if the volume cannot be read within the scan interval.

    The interval is compared with the allowed rate and the used bytes.
    """
    promise = Feasibility(
        volume=str(volume.hdds),
        used_bytes=used_bytes,
        interval_s=wish.interval_s,
        open_share=1.0,
        offered_bytes_per_s=float(wish.scrub.bytes_per_s_max),
        offered_by="--rate",
    )
    if not promise.is_possible:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot read every byte within the interval: {promise}",
            hint="raise --rate or --interval",
        )


@dataclass(frozen=True, slots=True)
class _Begun:
    """An open volume, with its scan worker, its store and the path of its history."""

    volume: OzoneVolume
    scan: VolumeScanWorker
    store: OzoneStore
    history: Path


class _VolumeWaiter:
    """The worker for a directory without a readable volume.

    When the directory has a volume, the worker runs the scan of the volume.
    """

    def __init__(self, place: Path, found: Callable[[], _Begun]) -> None:
        self._found = found
        self._scan: VolumeScanWorker | None = None
        self.begun: Callable[[_Begun], None] = lambda _: None
        self.name = f"scan-{place}"

    @property
    def is_over(self) -> bool:
        """True if the volume was found and its scan runs."""
        return self._scan is not None

    def step(self) -> Step:
        """Try to open the volume or, if it is open, run one step of its scan.

        Raise SutureError or OSError if the volume cannot be opened.
        """
        if self._scan is None:
            begun = self._found()
            self._scan = begun.scan
            self.begun(begun)
        return self._scan.step()


class _ScrubLoops:
    """The workers of one service, each in its own loop."""

    def __init__(self, wish: ScrubServiceOptions, scratch: Path, clock: Clock) -> None:
        self._wish = wish
        self._clock = clock
        self._stop = threading.Event()
        self._pressure = IoPressure(clock)
        self._guard = VerdictBreaker(clock=clock)
        self._scratch = scratch
        self.loops = WorkerLoops()
        self.watched: list[MonitoredVolume] = []
        self.awaited: list[PendingVolume] = []
        self._histories: list[History] = []

    def add(self, volume: OzoneVolume) -> None:
        """Start the scan of a volume. If this fails, report the error and try again later.

        Raise RefusedError if the volume cannot be read within the scan interval.
        """
        pulse = ProgressMarker(self._clock)
        try:
            worker = self._open_volume(volume, pulse)
        except (SutureError, OSError) as error:
            if isinstance(error, RefusedError) and error.code is Code.INVALID_CONFIG:
                raise
            self.wait_for(volume.hdds, error)
            return
        loop = WorkerLoop(worker.scan, clock=self._clock, pulse=pulse)
        self._watch(worker, loop)
        self.loops.add(loop)

    def wait_for(self, path: Path, error: Exception) -> None:
        """Report a directory without a readable volume, and check it again regularly."""
        pulse = ProgressMarker(self._clock)
        place = path if path.name == HDDS else path / HDDS
        waiting = _VolumeWaiter(place, lambda: self._find_volume(path, pulse))
        loop = WorkerLoop(waiting, clock=self._clock, pulse=pulse)
        waiting.begun = lambda one: self._watch(one, loop)
        self.awaited.append(PendingVolume(place, loop, lambda: waiting.is_over, error_text(error)))
        self.loops.add(loop)
        log.error("ozone_volume_missing", path=str(path), why=error_text(error))

    def _find_volume(self, path: Path, pulse: ProgressMarker) -> "_Begun":
        volume = find_volume(path)
        others = [item.volume for item in self.watched]
        check_place(path, volume, others, self._wish.scrub.state_dir)
        return self._open_volume(volume, pulse)

    def _open_volume(self, volume: OzoneVolume, pulse: ProgressMarker) -> "_Begun":
        """Open the history and the store of a volume, and create its scan worker.

        Raise SutureError or OSError if this fails.
        """
        scrub = self._wish.scrub
        path = scrub.state_dir / f"{volume.storage_id}.sqlite"
        scratch = self._scratch / volume.storage_id
        scratch.mkdir(exist_ok=True)
        with ExitStack() as undone:
            history = History(path)
            undone.callback(history.close)
            store = OzoneStore(
                volume,
                history,
                scratch,
                self._clock,
                database=database_of(volume, scrub.database_dirs),
            )
            used_bytes = sum(replica.used_bytes for replica in store.listing().replicas)
            check_promise(volume, used_bytes, self._wish)
            undone.pop_all()
        self._histories.append(history)
        worker = VolumeScanWorker(
            OzoneTools(store=store, guard=self._guard, clock=self._clock),
            volume.storage_id,
            policy=RoundPolicy(
                schedule=Schedule(interval_s=self._wish.interval_s, datanode_id=volume.datanode_id),
                gap_min_s=min(GAP_MIN_S, self._wish.interval_s),
            ),
            pace=ScanPace(
                PaceLimits(ceiling_bytes_per_s=scrub.bytes_per_s_max),
                self._stop.wait,
                clock=self._clock,
                pressure=self._pressure,
                pulse=pulse,
            ),
            stop=self._stop,
            pulse=pulse,
        )
        return _Begun(volume, worker, store, path)

    def _watch(self, begun: "_Begun", loop: WorkerLoop) -> None:
        begun.scan.hold.wake = loop.wake
        self.watched.append(
            MonitoredVolume(begun.volume, begun.scan, loop, begun.history, begun.store)
        )
        volume = begun.volume
        log.info("ozone_scrub_started", volume_id=volume.storage_id, path=str(volume.hdds))

    def stop(self) -> Sequence[str]:
        """Stop all loops. Return the names of the loops that did not stop."""
        self._stop.set()
        unfinished = self.loops.stop(STOP_DEADLINE_S, self._clock)
        if not unfinished:
            for history in self._histories:
                history.close()
        return unfinished


def serve(
    wish: ScrubServiceOptions,
    stop: StopRequest,
    *,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Scrub until `stop` is set. Return the exit code: 1 if a loop did not stop, and otherwise 0.

    Raise RefusedError or OSError if the service cannot start.
    """
    clock = clock or SystemClock()
    supervisor = SystemdNotifier(environment)
    absent: dict[Path, Exception] = {}
    volumes = find_volumes(wish.scrub, absent.__setitem__)
    if not volumes:
        raise next(iter(absent.values()))
    with ExitStack() as stack:
        scratch = stack.enter_context(state(wish.scrub.state_dir))
        scrubbing = _ScrubLoops(wish, scratch, clock)
        for volume in volumes:
            scrubbing.add(volume)
        for path, error in absent.items():
            scrubbing.wait_for(path, error)
        watchdog = WatchdogWorker(supervisor, lambda: scrubbing.loops.stalled(QUIET_MAX_S))
        scrubbing.loops.add(WorkerLoop(watchdog, clock=clock))
        if wish.listen:
            pages = {
                "/metrics": lambda: metrics_page(scrubbing.watched, scrubbing.awaited),
                "/healthz": lambda: health_page(scrubbing.watched, scrubbing.awaited, QUIET_MAX_S),
            }
            listener = WebListener(wish.listen, pages)
            listener.start()
            stack.callback(listener.stop)
            log.info("ozone_metrics_served", address=listener.address)
        scrubbing.loops.start()
        missed = f", {len(scrubbing.awaited)} absent" if scrubbing.awaited else ""
        supervisor.ready(f"reading {len(scrubbing.watched)} volumes of Ozone{missed}")
        stop.wait()
        supervisor.stopping("reading ends")
        unfinished = scrubbing.stop()
    return 1 if unfinished else 0
