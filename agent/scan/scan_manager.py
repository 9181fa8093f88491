"""All scans and checks of this host's data: construction, control and status.

The manager first checks if each volume can be read within the scan interval. If not, it refuses to
start or logs a warning, depending on the option `scan.promise`. It creates one `VolumeScanWorker`
per volume, which operators can pause, and the workers for on-demand scans, volume checks, adjacent
scans and metadata scans. Each worker runs in a loop of its own.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import structlog

from agent.config.options import ScanConfig
from agent.scan.adjacent_scan import AdjacentScanWorker
from agent.scan.background_scan import RoundPolicy, RoundStatus, VolumeScanWorker
from agent.scan.canary import Canary
from agent.scan.container_scan import StoreScanDeps
from agent.scan.last_pass import last_pass
from agent.scan.metadata_scan import MetadataScan
from agent.scan.ondemand import OnDemandScans
from agent.scan.shadow.hashing import ShadowHashing
from agent.scan.throttle import IoPressure, ScanPace, SharedPace
from agent.scan.volume_check import VolumeCheckWorker
from agent.store.disk_adjacency import StoreDiskMap
from agent.store.failure_reports import StoreFailure
from agent.store.index.facts import VolumeFacts
from agent.store.read_speed import UNKNOWN, measured_bytes_per_s
from merkle.replica import ContainerId
from scanner.finding import ScanFinding
from scanner.scan_rate_control import Latencies, PaceLimits
from scanner.schedule import Feasibility, ScanHours, Schedule, parse_window
from suture.errors import Code, RefusedError
from suture.runtime.loop import ProgressMarker, WorkerLoop
from suture.wire.mapping.message_map import Field, MessageMap
from suture.wire.v1 import datanode_pb2 as pb

CANARY_PERIOD_S = 86_400.0  # maximum time between two canary tests of a volume
ON_DEMAND_BYTES_PER_S = 16 * 1024**2  # lowest rate of on-demand scans while clients read
NEIGHBOUR_BYTES_PER_S = 1024**2  # inode reads of an adjacency search: about 250 files a second
WHOLE = Field(encode=int)
ROUND = MessageMap(
    pb.VolumeScrub,
    RoundStatus,
    omits=[
        *("path", "promise", "interval_possible", "canary_found_at_ms", "canary_overdue", "check"),
        "last_pass",
    ],
    speed_bytes_per_s=WHOLE,
    rate_bytes_per_s=WHOLE,
    needed_bytes_per_s=WHOLE,
    lag_ms=Field("lag_s", lambda lag_s: int(lag_s * 1000)),
    eta_ms=Field("eta_s", lambda eta_s: -1 if eta_s < 0 else int(eta_s * 1000)),
    pause_left_ms=Field("pause_left_s", lambda left_s: int(left_s * 1000)),
)

log = structlog.get_logger()


def windows_of(config: ScanConfig) -> ScanHours:
    """Return the hours in which the config allows background scans."""
    return ScanHours(tuple(parse_window(text) for text in config.windows))


def limits_of(config: ScanConfig) -> PaceLimits:
    """Return the rate limits for the scan of one volume, from the config."""
    return PaceLimits(
        floor_bytes_per_s=config.floor_bytes_per_s,
        ceiling_bytes_per_s=config.ceiling_bytes_per_s,
        fixed_bytes_per_s=config.volume_bytes_per_s,
    )


def promise_of(config: ScanConfig, volume: VolumeFacts, disk_bytes_per_s: float) -> Feasibility:
    """Return whether a volume can be read within the scan interval, with the rates.

    The scan interval requires a minimum rate. The config and the measured speed of the disk (0 if
    it is unknown) allow a maximum rate.
    """
    if config.volume_bytes_per_s:
        offered, offered_by = float(config.volume_bytes_per_s), "scan.volume_bytes_per_s"
    else:
        offered, offered_by = float(config.ceiling_bytes_per_s), "scan.ceiling_bytes_per_s"
    if disk_bytes_per_s and (not offered or disk_bytes_per_s < offered):
        offered, offered_by = disk_bytes_per_s, "the disk, as measured,"
    return Feasibility(
        volume=str(volume.path),
        used_bytes=volume.used_bytes,
        interval_s=config.data_interval_s,
        open_share=windows_of(config).share,
        offered_bytes_per_s=offered,
        offered_by=offered_by,
    )


def check_promise(config: ScanConfig, volume: VolumeFacts, disk_bytes_per_s: float) -> Feasibility:
    """Return the result of `promise_of`.

    If the volume cannot be read within the scan interval, log a warning. If the option
    `scan.promise` is "refuse", raise RefusedError instead.
    """
    promise = promise_of(config, volume, disk_bytes_per_s)
    if promise.is_possible:
        return promise
    if config.promise == "refuse":
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot read every byte within the interval: {promise}",
            hint='raise the rate or scan.data_interval_s, or set scan.promise = "warn"',
        )
    log.warning("scan_interval_infeasible", volume_id=volume.volume_id, why=str(promise))
    return promise


class ScanManager:
    """All scans and checks of one host. Operators control them through `BackgroundScans`."""

    def __init__(
        self,
        tools: StoreScanDeps,
        config: ScanConfig,
        stop: threading.Event,
        *,
        on_volume_failed: Callable[[str, tuple[ContainerId, ...]], None] = lambda *_: None,
        on_shadow_difference: Callable[[], None] = lambda: None,
    ) -> None:
        """Check if the disks are fast enough for the scan interval.

        Raise RefusedError if one is too slow and the option `scan.promise` is "refuse".
        `on_volume_failed` gets the id of a failed volume and its containers. `on_shadow_difference`
        is called if the second checksums after an upgrade (`ShadowHashing`) contradict a scan,
        whose result is then held back.
        """
        self.checks = VolumeCheckWorker(tools.store, clock=tools.clock, on_failed=on_volume_failed)
        upgraded_at_ms = tools.store.volume_set.upgraded_at_ms
        self._shadow = ShadowHashing(
            upgraded_at_ms, tools.clock, on_difference=on_shadow_difference
        )
        self.tools = self._tools = tools = replace(
            tools,
            on_unreadable=self.checks.request,
            on_damage=self._follow,
            shadow=self._shadow,
        )
        self._config = config
        self._stop = stop
        self._pressure = IoPressure(tools.clock)
        self._latencies = Latencies()
        self._volumes = [volume for volume in tools.store.volumes() if not volume.failed]
        self._promises = self._promises_of(config)
        self._workers: dict[str, VolumeScanWorker] = {}
        self._schedule = Schedule(
            interval_s=config.data_interval_s, datanode_id=tools.store.datanode_id
        )
        self._last_copy_since_ms: dict[ContainerId, int] = {}
        self._neighbours_pulse = ProgressMarker(tools.clock)
        self._neighbours = AdjacentScanWorker(
            StoreDiskMap(tools.store),
            self._request_adjacent,
            pace=self.fixed_pace(NEIGHBOUR_BYTES_PER_S, self._neighbours_pulse),
            clock=tools.clock,
        )

    @cached_property
    def on_demand(self) -> OnDemandScans:
        """The queue of on-demand scans."""
        pulse = ProgressMarker(self._tools.clock)
        pace = self._pace(PaceLimits(floor_bytes_per_s=ON_DEMAND_BYTES_PER_S), pulse)
        pace.begin(self._stop.is_set)
        scans = OnDemandScans(
            self._tools,
            pace=pace,
            pieces=pace,
            stop=self._stop,
            pulse=pulse,
            failure_gap_s=self._config.gap_min_s,
        )
        self._on_demand_pulse = pulse
        return scans

    def close(self) -> None:
        """Stop the process that computes second checksums, if it runs."""
        self._shadow.close()

    def _follow(self, volume_id: str, damage: Sequence[ScanFinding]) -> None:
        """If background scans are enabled, queue a search for replicas near this damage."""
        if self._config.enabled:
            self._neighbours.queue_search(volume_id, damage)

    def _request_adjacent(self, container_id: ContainerId, reason: str) -> bool:
        return self.on_demand.request(container_id, reason=reason, is_neighbour=True)

    def queue(self, container_id: ContainerId) -> bool:
        """Queue a scan that an operator requested. Return False if the queue is full."""
        return self.on_demand.request(container_id, reason="asked for by an operator")

    def requested_pace(self, volume_id: str) -> ScanPace:
        """Return a rate limit for a scan for which a caller waits.

        If the background scan of the volume currently reads faster than the minimum, the limit
        starts at that rate, because the disk can sustain it.
        """
        pace = self._pace(
            PaceLimits(floor_bytes_per_s=ON_DEMAND_BYTES_PER_S), ProgressMarker(self._tools.clock)
        )
        worker = self._workers.get(volume_id)
        if worker is not None:
            pace.begin_at(worker.status().rate_bytes_per_s)
        return pace

    @cached_property
    def _metadata(self) -> MetadataScan:
        tools = self._tools
        return MetadataScan(tools.store, self.on_demand, tools.clock, tools.on_unreadable)

    def loops(self) -> Iterator[WorkerLoop]:
        """Yield the loops of all workers. The caller runs them."""
        clock = self._tools.clock
        on_demand = self.on_demand
        loop = WorkerLoop(on_demand, clock=clock, pulse=self._on_demand_pulse)
        on_demand.attach(loop.wake)
        yield loop
        loop = WorkerLoop(self.checks, clock=clock)
        self.checks.wake = loop.wake
        yield loop
        loop = WorkerLoop(self._neighbours, clock=clock, pulse=self._neighbours_pulse)
        self._neighbours.wake = loop.wake
        yield loop
        if self._config.enabled:
            yield WorkerLoop(self._metadata, clock=clock)
            for volume in self._volumes:
                yield self._volume_loop(volume)

    def check_new(self, volume: VolumeFacts, disk_bytes_per_s: float) -> None:
        """Check if a volume that is about to be added can be read within the scan interval.

        Raise RefusedError if it cannot, and the option `scan.promise` is "refuse".
        """
        if self._config.enabled:
            check_promise(self._config, volume, disk_bytes_per_s)

    def add(self, volume: VolumeFacts) -> WorkerLoop | None:
        """Start the checks of an added volume. Return the loop of its background scan.

        Return None if background scans are disabled.
        """
        self._volumes = [one for one in self._volumes if one.path != volume.path] + [volume]
        self.checks.add(volume.volume_id)
        if not self._config.enabled:
            return None
        disk_bytes_per_s = self._measured(volume)
        self._promises[volume.volume_id] = promise_of(self._config, volume, disk_bytes_per_s)
        return self._volume_loop(volume)

    def client_read(self, latency_s: float) -> None:
        """Record the latency of a read by a client, in seconds. Server threads call this."""
        self._latencies.add(self._tools.clock.monotonic_s(), latency_s)

    def trouble(self, trouble: StoreFailure) -> None:
        """Request a scan of a container after a call of a client failed. Server threads call this.

        If the disk caused the failure, also request a check of the volume. If the container was
        scanned recently, the scan waits, because a bad sector remains bad.
        """
        if trouble.is_disk:
            self.checks.request(self._tools.store.volume_id(trouble.container_id), trouble.reason)
        self.on_demand.request(
            trouble.container_id,
            reason=f"a call failed: {trouble.reason}",
            is_failure=True,
        )

    def last_copies(self, container_ids: Iterable[int]) -> None:
        """Replace the set of containers of which only this datanode has a healthy replica.

        Each of these containers is scanned once before others, unless it was scanned recently.
        Unknown ids are ignored. If a recorded time is in the future, because the wall clock was
        ahead, it is replaced by the current time.
        """
        known, now_ms = self._last_copy_since_ms, self._tools.clock.now_ms()
        since_ms = max(1, now_ms - int(self._schedule.rest_s * 1000))
        self._last_copy_since_ms = {
            ContainerId(number): min(known.get(ContainerId(number), since_ms), now_ms)
            for number in container_ids
        }

    def reconfigure(self, config: ScanConfig) -> None:
        """Apply the options of `config` that can change at run time.

        Raise RefusedError, with nothing changed, if a volume cannot be read within the scan
        interval and the option `scan.promise` is "refuse".
        """
        promises = self._promises_of(config)
        self._config, self._promises = config, promises
        for worker in self._workers.values():
            worker.change(self._policy(config), limits_of(config))

    # Requests of operators.

    def status(self, *, with_last_pass: bool = False) -> pb.ScrubStatusResponse:
        """Return the progress of the scan of each volume.

        If `with_last_pass`, also return the last full pass over each volume.
        """
        volumes = [self._volume_message(volume) for volume in self._volumes]
        for message in volumes if with_last_pass else ():
            last = last_pass(self._tools.store, message.volume_id)
            if last is not None:
                message.last_pass.CopyFrom(last)
        return pb.ScrubStatusResponse(
            volumes=volumes,
            metadata_scanned_at_ms=self._metadata.scanned_at_ms,
            metadata_fault_count=self._metadata.fault_count,
            interval_ms=self._config.data_interval_s * 1000,
            on_demand_waiting=self.on_demand.waiting_count(),
            shadow_hashing=self._shadow.status(),
        )

    def is_paused(self) -> bool:
        """Return whether background reads must wait now.

        They wait if an operator has paused them, or outside the hours that the config allows.
        """
        if any(worker.hold.left_s() for worker in self._workers.values()):
            return True
        return not windows_of(self._config).is_open(self._tools.clock.now_ms())

    def fixed_pace(self, bytes_per_s: int, pulse: ProgressMarker) -> ScanPace:
        """Return a rate limit with a fixed rate for other background work."""
        pace = self._pace(PaceLimits(fixed_bytes_per_s=bytes_per_s), pulse)
        pace.begin(self._stop.is_set)
        return pace

    def shared_pace(self, floor_bytes_per_s: int) -> SharedPace:
        """Return a rate limit for other background work, which slows down while clients read."""
        return SharedPace(
            floor_bytes_per_s,
            self._stop.wait,
            clock=self._tools.clock,
            latencies=self._latencies,
        )

    def pause(self, volume_id: str, duration_s: float) -> None:
        """Pause the scan of one volume, or of all volumes if `volume_id` is "".

        Raise RefusedError if there is no such scan, or if the duration is invalid.
        """
        for worker in self._chosen(volume_id):
            try:
                worker.hold.pause(duration_s)
            except ValueError as error:
                raise RefusedError(Code.MALFORMED_REQUEST, str(error)) from error
        log.info("scrub_paused", volume_id=volume_id or "all", duration_s=duration_s)

    def resume(self, volume_id: str) -> None:
        """End the pause of one volume, or of all volumes if `volume_id` is ""."""
        for worker in self._chosen(volume_id):
            worker.hold.resume()
        log.info("scrub_resumed", volume_id=volume_id or "all")

    def skip(self, container_id: ContainerId) -> None:
        """Stop the background scan of a container if it is running."""
        for worker in self._workers.values():
            worker.hold.skip(container_id)
        log.info("scrub_container_skipped", container_id=container_id)

    def _chosen(self, volume_id: str) -> list[VolumeScanWorker]:
        chosen = [
            worker for key, worker in self._workers.items() if not volume_id or key == volume_id
        ]
        if not chosen:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot control the background scan of volume {volume_id or 'any'}: there is none",
                hint="suture scrub status lists the volumes",
            )
        return chosen

    # Construction of the parts.

    def _promises_of(self, config: ScanConfig) -> dict[str, Feasibility]:
        return {
            volume.volume_id: check_promise(config, volume, self._measured(volume))
            for volume in (self._volumes if config.enabled else ())
        }

    def _measured(self, facts: VolumeFacts) -> float:
        """Return the read speed of a volume in bytes per second.

        Return UNKNOWN if the volume is not open.
        """
        working = self._tools.store.volume_set.working
        here = (volume for volume in working if volume.volume_id == facts.volume_id)
        return next(map(measured_bytes_per_s, here), UNKNOWN)

    def _pace(self, limits: PaceLimits, pulse: ProgressMarker) -> ScanPace:
        return ScanPace(
            limits,
            self._stop.wait,
            clock=self._tools.clock,
            latencies=self._latencies,
            pressure=self._pressure,
            pulse=pulse,
        )

    def _policy(self, config: ScanConfig) -> RoundPolicy:
        return RoundPolicy(
            schedule=self._schedule,
            gap_min_s=config.gap_min_s,
            windows=windows_of(config),
            last_copy_since_ms=lambda container_id: self._last_copy_since_ms.get(container_id, 0),
        )

    def _volume_loop(self, volume: VolumeFacts) -> WorkerLoop:
        config = self._config
        pulse = ProgressMarker(self._tools.clock)
        jitter_s = random.uniform(0.0, config.start_jitter_s)  # noqa: S311 - no secret
        policy = replace(self._policy(config), start_delay_s=jitter_s)
        worker = VolumeScanWorker(
            self._tools,
            volume.volume_id,
            policy=policy,
            pace=self._pace(limits_of(config), pulse),
            stop=self._stop,
            pulse=pulse,
            canary=Canary(
                self._tools.store.volume_set.canary_directory(volume.volume_id),
                self._tools.store.algorithm,
                self._tools.clock,
                period_s=min(CANARY_PERIOD_S, config.data_interval_s),
                volume_id=volume.volume_id,
            ),
        )
        self._workers[volume.volume_id] = worker
        loop = WorkerLoop(worker, clock=self._tools.clock, pulse=pulse)
        worker.hold.wake = loop.wake
        return loop

    def _volume_message(self, volume: VolumeFacts) -> pb.VolumeScrub:
        worker = self._workers.get(volume.volume_id)
        message = pb.VolumeScrub(
            volume_id=volume.volume_id,
            path=str(volume.path),
            check=self.checks.error_of(volume.volume_id),
        )
        if worker is None:
            message.state = "off"
            return message
        message.MergeFrom(ROUND.message(worker.status()))
        promise = self._promises[volume.volume_id]
        message.promise = str(promise)
        message.interval_possible = promise.is_possible
        if worker.canary is not None:
            message.canary_found_at_ms = worker.canary.found_at_ms
            message.canary_overdue = worker.canary.is_overdue
        return message
