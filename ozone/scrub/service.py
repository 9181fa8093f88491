"""The scrub that never ends: every byte of every closed container within the promised time.

volume ─► OzoneStore ─► the agent's own VolumeScanWorker in a Loop    one thread a volume
                             schedule, pace, resumption, breaker: as on volumes of ours
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from agent.errors import Code, Refused
from agent.runtime.clock import Clock, SystemClock
from agent.runtime.http_listener import WebListener
from agent.runtime.loop import QUIET_MAX_S, Loop, LoopSet, Pulse
from agent.runtime.service_manager import Supervisor, WatchdogWorker
from agent.runtime.stop_request import StopRequest
from agent.scan.background_scan import RoundPolicy, VolumeScanWorker
from agent.scan.container_scan import MarkingGuard
from agent.scan.throttle import Pressure, ScanPace
from ozone.disk.layout import Volume
from ozone.scrub.history import History
from ozone.scrub.meters import Watched, health_page, metrics_page
from ozone.scrub.scrub import OzoneTools, ScrubWish, database_of, find_volumes, state
from ozone.scrub.store import OzoneStore
from scanner.pacing import PaceLimits
from scanner.schedule import Feasibility, Schedule

GAP_MIN_S: Final = 900.0  # between two attempts at one container
STOP_DEADLINE_S: Final = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceWish:
    """What the service is to do. `interval_s` is the promise; `listen` is host:port of metrics and
    health, "" for nowhere."""

    scrub: ScrubWish
    interval_s: float
    listen: str = ""


def check_promise(volume: Volume, used_bytes: int, wish: ServiceWish) -> None:
    """Raise Refused if the rate that is allowed cannot keep the promise."""
    promise = Feasibility(
        volume=str(volume.hdds),
        used_bytes=used_bytes,
        interval_s=wish.interval_s,
        open_share=1.0,
        offered_bytes_per_s=float(wish.scrub.bytes_per_s_max),
        offered_by="--rate",
    )
    if not promise.is_possible:
        raise Refused(
            Code.INVALID_CONFIG,
            f"the promise to read every byte cannot be kept: {promise}",
            hint="raise --rate or --interval",
        )


class _Scrubbing:
    """The loops of one service."""

    def __init__(
        self, wish: ServiceWish, volumes: Sequence[Volume], scratch: Path, clock: Clock
    ) -> None:
        self._wish = wish
        self._clock = clock
        self._stop = threading.Event()
        self._pressure = Pressure(clock)
        self._guard = MarkingGuard(clock=clock)
        self._scratch = scratch
        self.loops = LoopSet()
        self.watched: list[Watched] = []
        self._histories: list[History] = []
        for volume in volumes:
            self._add(volume)

    def _add(self, volume: Volume) -> None:
        scrub = self._wish.scrub
        path = scrub.state_dir / f"{volume.storage_id}.sqlite"
        history = History(path)
        self._histories.append(history)
        scratch = self._scratch / volume.storage_id
        scratch.mkdir()
        store = OzoneStore(
            volume,
            history,
            scratch,
            self._clock,
            database=database_of(volume, scrub.database_dirs),
        )
        used_bytes = sum(replica.used_bytes for replica in store.listing().replicas)
        check_promise(volume, used_bytes, self._wish)
        pulse = Pulse(self._clock)
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
        loop = Loop(worker, clock=self._clock, pulse=pulse)
        worker.hold.wake = loop.wake
        self.loops.add(loop)
        self.watched.append(Watched(volume, worker, loop, path, store))

    def stop(self) -> Sequence[str]:
        """Stop all; return the loops that did not."""
        self._stop.set()
        unfinished = self.loops.stop(STOP_DEADLINE_S, self._clock)
        if not unfinished:
            for history in self._histories:
                history.close()
        return unfinished


def serve(
    wish: ServiceWish,
    stop: StopRequest,
    *,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Scrub until `stop`; return the exit code. Raises Refused, OSError."""
    clock = clock or SystemClock()
    supervisor = Supervisor(environment)
    volumes = find_volumes(wish.scrub)
    with ExitStack() as stack:
        scratch = stack.enter_context(state(wish.scrub.state_dir))
        scrubbing = _Scrubbing(wish, volumes, scratch, clock)
        watchdog = WatchdogWorker(supervisor, lambda: scrubbing.loops.stalled(QUIET_MAX_S))
        scrubbing.loops.add(Loop(watchdog, clock=clock))
        if wish.listen:
            pages = {
                "/metrics": lambda: metrics_page(scrubbing.watched),
                "/healthz": lambda: health_page(scrubbing.watched, QUIET_MAX_S),
            }
            listener = WebListener(wish.listen, pages)
            listener.start()
            stack.callback(listener.stop)
            log.info("ozone_metrics_served", address=listener.address)
        scrubbing.loops.start()
        for volume in volumes:
            log.info("ozone_scrub_started", volume_id=volume.storage_id, path=str(volume.hdds))
        supervisor.ready(f"reading {len(volumes)} volumes of Ozone")
        stop.wait()
        supervisor.stopping("reading ends")
        unfinished = scrubbing.stop()
    return 1 if unfinished else 0
