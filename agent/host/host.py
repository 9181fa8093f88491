"""The agent of one host, put together: store, server, loops, pools. Builds, starts, drains.

store ◄── server (gRPC threads)      ◄── peers, clients
  ▲  ▲─── scans (one loop per volume, one on demand) ◄── change watch
  │  ▲─── pools (reconcile; close and delete)        ◄── heartbeat ◄── SCM
  └────── observer ──► reports, status
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Final

import structlog

from agent.commands.handlers import TRANSFER_THREADS, Handlers, Tools
from agent.commands.intake import Intake
from agent.commands.routing import Commands
from agent.config.options import AgentConfig, changed, with_live
from agent.errors import Code, SutureError, Unavailable
from agent.host.heartbeat import Heartbeat, Identity
from agent.host.heartbeats import Heartbeats, Terms
from agent.host.http_status import Face
from agent.host.recoveries import REASON, Recoveries
from agent.observe.audit import AuditLog
from agent.observe.status import QUIET_MAX_S, About, Observer
from agent.rpc.calls.scm import ScmClient
from agent.rpc.datanode.arriving import ImportHandlers
from agent.rpc.datanode.judging import JudgeHandlers
from agent.rpc.datanode.limits import Limits
from agent.rpc.datanode.reading import ReadHandlers
from agent.rpc.datanode.server import build_server
from agent.rpc.datanode.steering import HostHandlers
from agent.rpc.datanode.trusting import TrustHandlers
from agent.rpc.datanode.writing import WriteHandlers
from agent.rpc.security.tls import LOOPBACK_ONLY, Security
from agent.rpc.serving.access import DONE
from agent.rpc.v1 import scm_pb2
from agent.runtime.callthreads import CallThreads
from agent.runtime.clock import SystemClock
from agent.runtime.lease import Leases
from agent.runtime.loop import Loop, LoopSet, Pulse, Step, Throttled
from agent.runtime.supervisor import Supervisor, WatchdogWorker
from agent.scan.parity import ParityPolicy, ParityScrub
from agent.scan.requested import RequestedScans
from agent.scan.scanning import ScanReport, ScanTools, scan_container
from agent.scan.scrub import Scrub
from agent.scan.watch import ChangeWatch
from agent.store.index.facts import RecoveryStep
from agent.store.operations.arrival import ARRIVALS_MAX
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import Importer
from merkle.replica import BlockId, ContainerId

NEWS_SPACING_S: Final = 0.05  # a storm of answers is told in some heartbeats, not in thousands
STEPS_SHOWN: Final = 3
HOUSEKEEPING_INTERVAL_S: Final = 3600.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Who:
    """This datanode's name, and its cluster's."""

    datanode_id: str
    cluster_id: str


class Host:
    """Everything that runs in an agent's process."""

    def __init__(
        self,
        config: AgentConfig,
        who: Who,
        scms: Sequence[ScmClient],
        *,
        version: str,
        boot_id: int,
        security: Security = LOOPBACK_ONLY,
    ) -> None:
        """Open the store, which recovers it, and bind the server. Raises SutureError."""
        self._config = config
        self.security = security
        self._audit = AuditLog(config.observe.audit_file)
        self._scms = tuple(scms)
        self._clock = SystemClock()
        self._stopping = Event()
        self._loops = LoopSet()
        self._leases = Leases(clock=self._clock)
        self._store = ReplicaStore.open(
            config.storage.volumes,
            cluster_id=who.cluster_id,
            datanode_id=who.datanode_id,
            options=store_options(config, self._clock),
        )
        tell_of_start(self._store)
        try:
            self._build(who, version, boot_id)
        except BaseException:
            self._store.close()
            raise

    def _build(self, who: Who, version: str, boot_id: int) -> None:
        tools = ScanTools(
            store=self._store,
            leases=self._leases,
            algorithm=self._config.storage.tree_algorithm,
            clock=self._clock,
        )
        self._scrub = Scrub(tools, self._config.scan, who.datanode_id, self._stopping)
        self._tools = self._scrub.tools
        self._requested = RequestedScans(
            self._tools, pace=self._scrub.requested_pace, queue=self._scrub.queue
        )
        self._observer = Observer(
            about_of(who, version, self._clock.now_ms()),
            self._store,
            workers=self._loops.status,
            scm_state=lambda: self._heartbeat.state,
            interval_s=self._config.scan.data_interval_s,
            now_ms=self._clock.now_ms,
        )
        self._writers = ThreadPoolExecutor(
            TRANSFER_THREADS + ARRIVALS_MAX, thread_name_prefix="import"
        )  # each arrival may have one that waits for its sender
        self._executor = call_threads(self._config)
        self._face = Face(
            self._config.observe.listen,
            self._observer,
            self._scrub,
            self._clock,
            security=self.security,
            calls_trouble=self._calls_trouble,
            names=web_names(self._config),
        )
        self._recoveries = Recoveries(
            self._store,
            self._leases,
            self._clock,
            timeout_s=self._config.tasks.recovering_timeout_s,
            scan=lambda container_id: self._scrub.on_demand.request(container_id, reason=REASON),
        )
        limits = server_limits(self._config)
        self._server = build_server(
            self._groups(who, limits),
            self._config.node.listen,
            self._executor,
            limits=limits,
            security=self.security,
            audit=self._audit,
            slots=self._executor,
        )
        self._server.health.is_well = self._face.is_well
        self._build_commands(who)
        self._parity = self._build_parity(who)
        self._heartbeat = self._build_heartbeats(who, version, boot_id)
        self._store.on_trouble = self._scrub.trouble
        self._store.on_change = self._changed
        self._scrub.on_volume_failed = self._volume_failed

    def _groups(self, who: Who, limits: Limits) -> Sequence[object]:
        """Return what the server answers, by what each part of it needs."""
        return (
            ReadHandlers(self._store, limits=limits, on_read=self._scrub.client_read),
            WriteHandlers(self._store, self._leases, limits=limits, recoveries=self._recoveries),
            ImportHandlers(self._build_importer(who)),
            JudgeHandlers(self._store, self._requested.run, limits=limits),
            TrustHandlers(lambda request, stop: self._handlers.trust(request, stop)),
            HostHandlers(self._observer.status, self._scrub),
        )

    def _changed(self, container_id: ContainerId) -> None:
        self._observer.note(container_id)
        self._heartbeat.notify(container_id)

    def _volume_failed(self, _volume_id: str, container_ids: tuple[ContainerId, ...]) -> None:
        for container_id in container_ids:
            self._observer.note(container_id)
        self._heartbeat.report_all()

    def _calls_trouble(self) -> str:
        """Return why calls may find no answer; and end those that have waited long enough."""
        self._server.waits.sweep()
        return self._executor.trouble

    @property
    def address(self) -> str:
        """Where others reach this agent."""
        if self._config.node.advertise:
            return self._config.node.advertise
        return f"{self._config.node.listen.rpartition(':')[0]}:{self._server.port}"

    @property
    def web_address(self) -> str:
        """Where a browser reaches this agent; "" when nowhere."""
        return self._face.address

    def start(self, supervisor: Supervisor) -> None:
        """Start the loops and serve."""
        for loop in self._build_loops(supervisor):
            self._loops.add(loop)
        self._loops.start()
        self._server.server.start()
        self._face.start()

    def reconfigure(self, config: AgentConfig) -> dict[str, bool]:
        """Take the live options of `config`; return what differs: True where it is live now.

        Raise Refused, with nothing changed, when the promise could not be kept.
        """
        differences = changed(self._config, config)
        effective = with_live(self._config, config)
        self._scrub.reconfigure(effective.scan)
        self._housekeeper.keep_s = effective.storage.quarantine_keep_s
        self._config = effective
        return differences

    def stop(self) -> list[str]:
        """Drain within the configured time; return what did not end.

        New calls are refused first, then reconciles stop between two chunks, then the loops end;
        the journal covers what is cut off.
        """
        self._stopping.set()
        self._face.stop()
        self._requested.stop()
        self._server.health.enter_graceful_shutdown()
        stopped = self._server.server.stop(self._config.stop_deadline_s / 4)
        unfinished = self._handlers.stop(self._config.stop_deadline_s / 2)
        unfinished += self._loops.stop(self._config.stop_deadline_s / 4)
        stopped.wait()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._writers.shutdown(wait=True, cancel_futures=True)
        if self._watch is not None:
            self._watch.close()
        if self._parity is not None:
            self._parity.close()
        self._handlers.close()
        for scm in self._scms:
            scm.close()
        self._audit.close()
        if not unfinished:
            self._store.close()
        return unfinished

    def _build_heartbeats(self, who: Who, version: str, boot_id: int) -> Heartbeats:
        identity = Identity(
            datanode_id=who.datanode_id,
            cluster_id=who.cluster_id,
            address=self.address,
            rack=self._config.node.rack,
            version=version,
            boot_id=boot_id,
        )
        terms = Terms()
        heartbeats = Heartbeats(
            [
                Heartbeat(
                    scm,
                    self._observer,
                    identity,
                    self._intake.accept,
                    self._clock,
                    leads=terms.leads,
                    spacing_s=NEWS_SPACING_S,
                    name="heartbeat" if len(self._scms) == 1 else f"heartbeat-{scm.address}",
                )
                for scm in self._scms
            ]
        )
        for beat in heartbeats.beats:
            beat.on_last_copies = self._scrub.last_copies
            beat.on_task_percent = self._handlers.boost
        return heartbeats

    def _build_importer(self, who: Who) -> Importer:
        return Importer(
            store=self._store,
            leases=self._leases,
            executor=self._writers,
            cluster_id=who.cluster_id,
            algorithm=self._config.storage.tree_algorithm,
            now_ms=self._clock.now_ms,
            on_arrived=lambda container_id: self._ask_scan(container_id, "it has just arrived"),
        )

    def _build_parity(self, who: Who) -> ParityScrub | None:
        config = self._config.scan
        if not config.enabled or not config.parity_interval_s:
            return None
        self._parity_pulse = Pulse(self._clock)
        jitter_s = random.uniform(0.0, config.start_jitter_s)  # noqa: S311 - no secret
        parity = ParityScrub(
            self._store,
            who.datanode_id,
            ParityPolicy(config.parity_interval_s, jitter_s),
            info=self._container_info,
            dial=self._handlers.peer,
            pace=self._scrub.fixed_pace(config.parity_bytes_per_s, self._parity_pulse),
            is_held=self._scrub.is_held,
            stop=self._stopping,
            clock=self._clock,
            pulse=self._parity_pulse,
        )
        self._scrub.parity_status = parity.status
        return parity

    def _container_info(self, container_id: ContainerId) -> scm_pb2.ContainerInfo:
        """Ask the control planes, one after the other, what they know of a container."""
        request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
        error: SutureError = Unavailable(Code.UNAVAILABLE, "no control plane is configured")
        for scm in self._scms:
            try:
                return scm.get_container_info(request).container
            except SutureError as failure:
                error = failure
        raise error

    def _confirm_deletes(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> scm_pb2.ConfirmDeletesResponse:
        """Ask the control planes, one after the other, which deletes were ordered."""
        request = scm_pb2.ConfirmDeletesRequest(container_id=container_id, local_ids=block_ids)
        error: SutureError = Unavailable(Code.UNAVAILABLE, "no control plane is configured")
        for scm in self._scms:
            try:
                return scm.confirm_deletes(request)
            except SutureError as failure:
                error = failure
        raise error

    def _build_commands(self, who: Who) -> None:
        tools = Tools(
            store=self._store,
            leases=self._leases,
            clock=self._clock,
            cluster_id=who.cluster_id,
            datanode_id=who.datanode_id,
            scan_now=self._scan_after_repair,
            confirm_deletes=self._confirm_deletes,
            ask_scan=self._ask_scan,
            wait=self._stopping.wait,
            report_soon=lambda: self._heartbeat.report_soon(),
            reregister=lambda: self._heartbeat.reregister(),
            security=self.security,
        )
        self._handlers = Handlers(self._config.tasks, tools)
        commands = Commands(self._handlers.routes(), self._answer, self._clock)
        self._intake = Intake(commands, self._clock)
        self._observer.pools = self._intake

    def _answer(self, status: scm_pb2.CommandStatus) -> None:
        self._face.meters.answered(status)
        self._audit.record(
            f"command {status.type}",
            status.code or DONE,
            who="scm",
            command_id=status.command_id,
            container_id=status.container_id,
        )
        self._heartbeat.answer(status)

    def _build_loops(self, supervisor: Supervisor) -> Iterator[Loop]:
        for beat in self._heartbeat.beats:
            loop = Loop(beat, clock=self._clock)
            beat.wake = loop.wake
            yield loop
        intake = Loop(self._intake, clock=self._clock)
        self._intake.wake = intake.wake
        yield intake
        yield from self._scrub.loops()
        if self._parity is not None:
            yield Loop(self._parity, clock=self._clock, pulse=self._parity_pulse)
        self._watch = None
        if self._config.scan.watch:
            self._watch = ChangeWatch(self._store, self._leases, self._scrub.on_demand)
            yield Loop(self._watch, clock=self._clock)
        watchdog = WatchdogWorker(supervisor, lambda: self._loops.stalled(QUIET_MAX_S))
        yield Loop(watchdog, clock=self._clock)
        yield Loop(self._recoveries, clock=self._clock)
        self._housekeeper = Housekeeper(self._store, self._config.storage.quarantine_keep_s)
        yield Loop(self._housekeeper)

    def _scan_after_repair(self, container_id: ContainerId) -> ScanReport:
        """Read the replica whole, so that what it is called rests on the medium."""
        return scan_container(self._tools, container_id, stop=self._stopping.is_set)

    def _ask_scan(self, container_id: ContainerId, reason: str) -> None:
        """Ask for a scan; a full queue is no loss: what was never read is read before others."""
        if not self._scrub.on_demand.request(container_id, reason=reason):
            log.warning("scan_not_queued", container_id=container_id, reason=reason)


class Housekeeper:
    """Purges the quarantine of what was kept long enough."""

    name = "housekeeper"

    def __init__(self, store: ReplicaStore, keep_s: float) -> None:
        self._store = store
        self.keep_s = keep_s  # may be changed by another thread

    def step(self) -> Step:
        """Purge once."""
        count = self._store.purge_quarantine(self.keep_s)
        if count:
            log.info("quarantine_purged", count=count, older_than_s=self.keep_s)
        return Throttled(HOUSEKEEPING_INTERVAL_S)


def tell_of_start(store: ReplicaStore) -> None:
    """Log which volumes are not served, and what had to be finished on the others."""
    for volume in store.volumes():
        if volume.failed:
            log.error(
                "volume_left_out",
                volume_id=volume.volume_id,
                path=str(volume.path),
                error=volume.error,
            )
    by_volume: dict[str, list[RecoveryStep]] = {}
    for step in store.recovery.steps:
        by_volume.setdefault(step.volume_id, []).append(step)
    for volume_id, steps in by_volume.items():
        log.warning(
            "volume_recovered",
            volume_id=volume_id,
            count=len(steps),
            first=[f"container {step.container_id}: {step.what}" for step in steps[:STEPS_SHOWN]],
        )


def about_of(who: Who, version: str, started_at_ms: int) -> About:
    """Return what the agent says of itself."""
    return About(
        datanode_id=who.datanode_id,
        cluster_id=who.cluster_id,
        version=version,
        started_at_ms=started_at_ms,
    )


def web_names(config: AgentConfig) -> Sequence[str]:
    """Return the names by which the page may be asked for."""
    return (*config.observe.names, (config.node.advertise or "").rpartition(":")[0])


def call_threads(config: AgentConfig) -> CallThreads:
    """Return the threads that calls of others have."""
    return CallThreads(config.server.threads, config.server.calls_max)


def server_limits(config: AgentConfig) -> Limits:
    """Return the server's limits as the config has them."""
    server = config.server
    return Limits(
        rpc_count_max=server.calls_max,
        lease_timeout_s=server.lease_wait_s,
        streams_max=server.streams_max,
        connections_max=server.connections_max,
        calls_per_s_max=server.calls_per_s_max,
    )


def store_options(config: AgentConfig, clock: SystemClock) -> StoreOptions:
    """Return the store's options as the config has them."""
    storage = config.storage
    return StoreOptions(
        algorithm=storage.tree_algorithm,
        container_bytes_max=storage.container_bytes_max,
        chunk_bytes_max=storage.chunk_bytes_max,
        reserve_bytes=storage.reserve_bytes,
        heal_unhealthy=storage.heal_unhealthy,
        now_ms=clock.now_ms,
    )
