"""Creates the parts of an agent: the store, the server, the worker loops and the thread pools.

- The server answers calls of peers and clients from the store, in gRPC threads.
- The scans (one loop per volume, and one for on-demand scans) read the store.
- The pools execute the commands that the heartbeat receives from the SCM.
- The observer reads the store for reports and status.

A part is created after the parts that it needs, and is not changed afterwards. Events for parts
that are created later are sent through an `EventDispatcher`, or stored in the outbox of the
heartbeat.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event
from typing import Final

import structlog

from agent.commands.handlers import TRANSFER_THREADS, CommandHandlers, HandlerDeps
from agent.commands.intake import CommandIntake
from agent.commands.routing import CommandRouter
from agent.config.options import AgentConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.event_dispatcher import EventDispatcher
from agent.host.external_control_plane import (
    AgentServices,
    ExternalControlPlane,
    heartbeats,
    reporters,
)
from agent.host.housekeeper import Housekeeper
from agent.host.http_server import DatanodeHttpServer
from agent.host.index_rebuild import IndexRebuild
from agent.host.outbox import OutboxFanout
from agent.host.peer_check_workers import ControlPlanes, PeerQueryDeps
from agent.host.protocol_servers import HostServices, MakeServer, ProtocolServers
from agent.host.recovering_replicas import REASON, RecoveringReplicas
from agent.host.recovering_replicas import TIMEOUT_S as RECOVERING_TIMEOUT_S
from agent.host.report_export import ReportExport
from agent.host.settings import call_threads, memory_of, server_limits, store_options, web_names
from agent.host.term_tracker import TermTracker
from agent.host.volume_admin import VolumeAdmin, VolumeDescriber, log_start
from agent.host.volume_evacuation import VolumeEvacuator
from agent.leases import ContainerLeases
from agent.observe.datanode_status import DatanodeStatus, ProcessInfo
from agent.observe.metrics import AgentMetrics
from agent.plan.reconcile_outcome import ReadBack
from agent.scan.change_watch import ChangeWatch
from agent.scan.container_scan import ScanReport, StoreScanDeps, scan_container
from agent.scan.interactive_scan import InteractiveScans
from agent.scan.parity_scrub import ParityScrub
from agent.scan.repair_verification import verify_repair
from agent.scan.scan_control import BackgroundScans
from agent.scan.scan_manager import ScanManager
from agent.scan.volume_latency import LatencyWatch, counted
from agent.services.admin_handlers import AdminHandlers
from agent.services.import_handlers import ImportHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.proof_handlers import ProofHandlers
from agent.services.read_handlers import ReadHandlers
from agent.services.scan_handlers import ScanHandlers
from agent.services.server import build_server
from agent.services.trust_handlers import TrustHandlers
from agent.services.write_handlers import WriteHandlers
from agent.store.failure_reports import StoreFailure
from agent.store.index.facts import VolumeFacts
from agent.store.operations.replica_import import ARRIVALS_MAX
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import ReplicaImporter
from agent.transfer.volume_copy import VolumeCopier
from merkle.replica import ContainerId
from scanner.resume import Doubt
from suture.observe.audit import AuditLog
from suture.runtime.clock import SystemClock
from suture.runtime.loop import QUIET_MAX_S, ProgressMarker, WakeEvent, WorkerLoop, WorkerLoops
from suture.runtime.sd_notify import SystemdNotifier, WatchdogWorker
from suture.wire.clients.scm import ScmClient
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.server.authorization import DONE
from suture.wire.server.blocked_calls import BlockedCalls
from suture.wire.server.limited_server import BuiltServer
from suture.wire.v1 import scm_pb2

DISK_WRITERS: Final = 4  # threads that write client data; a few per disk are enough

log = structlog.get_logger()


class AgentComponents:
    """All parts of an agent process. Each part is created after the parts that it needs."""

    def __init__(
        self,
        config: AgentConfig,
        who: DatanodeIdentity,
        scms: Sequence[ScmClient],
        supervisor: SystemdNotifier,
        *,
        security: Security = LOOPBACK_ONLY,
        server_factories: Sequence[MakeServer] = (),
        leaders: Sequence[ExternalControlPlane] = (),
    ) -> None:
        """Open and recover the store, and bind the gRPC server and the servers of
        `server_factories`.

        `leaders` are control planes of other systems, such as Ozone's SCM; they replace `scms`.
        Raise SutureError if a part cannot be created.
        """
        assert not (scms and leaders), "an agent is led by one kind of control plane"
        self.config = config
        self.server_factories = server_factories
        self.security = security
        self.who = who
        self.scms = tuple(scms)
        self.leaders = tuple(leaders)
        self.clock = SystemClock()
        self.stopping = Event()
        self.loops = WorkerLoops()
        self.leases = ContainerLeases(clock=self.clock)
        self.meters = AgentMetrics()
        self.audit = AuditLog(config.observe.audit_file)
        self.outboxes = OutboxFanout(len(self.scms) + len(self.leaders))
        self.changes = EventDispatcher[[ContainerId]]()
        self.troubles = EventDispatcher[[StoreFailure]]()
        self.failures = EventDispatcher[[str, tuple[ContainerId, ...]]]()
        self.store = ReplicaStore.open(
            config.storage.volumes,
            cluster_id=who.cluster_id,
            datanode_id=who.datanode_id,
            options=replace(
                store_options(config, self.clock, who.version),
                on_change=self.changes.emit,
                on_trouble=self.troubles.emit,
            ),
            keeps_failed=True,
            rebuilds_later=not self.leaders,  # Ozone's SCM expects a full report at once
        )
        log_start(self.store)
        with ExitStack() as undo:
            undo.callback(self.store.close)
            self._build(supervisor, undo)
            undo.pop_all()

    def _build(self, supervisor: SystemdNotifier, undo: ExitStack) -> None:
        """Create the parts that use the store, in the order of their dependencies.

        `undo` closes the parts that were created if a later part cannot be created.
        """
        config = self.config
        self.memory = memory_of(config)
        self.scrub = self._built_scrub()
        self.requested = InteractiveScans(
            self.scrub.tools, pace=self.scrub.requested_pace, queue=self.scrub.queue
        )
        control_planes = ControlPlanes(self.scms)
        self.handlers = self._built_handlers(control_planes)
        commands = CommandRouter(self.handlers.routes(), self._answer, self.clock)
        self.intake = CommandIntake(commands, self.clock, bell=WakeEvent())
        self.writers = ThreadPoolExecutor(
            TRANSFER_THREADS + ARRIVALS_MAX, thread_name_prefix="import"
        )  # each import may block one thread that waits for its sender
        self.moves_pulse, self.moves_bell = ProgressMarker(self.clock), WakeEvent()
        self.moves = self._built_moves()
        self.slow_disks = LatencyWatch(lambda: counted(self.store.volumes()))
        self.observer = self._built_observer()
        self.parity_pulse = ProgressMarker(self.clock)
        self.parity = self._built_parity(control_planes)
        self.scans = BackgroundScans(self.scrub, self.challenges, self.parity)
        self.disk_writers = ThreadPoolExecutor(DISK_WRITERS, thread_name_prefix="write")
        self.volumes = VolumeAdmin(
            self.store, self.moves, self.observer, self.scrub.check_new, self._volume_added
        )
        limits = server_limits(config, server_count=1 + len(self.server_factories))
        self.executor = call_threads(config)
        waits = BlockedCalls(limits.rpc_count_max, slow_s=limits.patience.slow_s)
        self.face = self._built_face(waits)
        undo.callback(self.face.stop)
        self.recoveries = self._built_recoveries()
        self.server = self._built_server(limits, waits)
        self.meters.registry.register(self.server.connections)
        self.protocol_servers = ProtocolServers(
            self.server_factories,
            lambda executor: self._inside(executor, limits, waits),
            lambda: call_threads(config),
        )
        undo.callback(self.protocol_servers.close)
        self.watch = (
            ChangeWatch(self.store, self.leases, self.scrub.on_demand)
            if config.scan.watch
            else None
        )
        self.rebuild = IndexRebuild(
            self.store,
            self.clock,
            fence=self.scrub.checks.fence,
            on_rebuilt=self.outboxes.report_all,
        )
        self.housekeeper = Housekeeper(
            self.store, config.storage.quarantine_keep_s, clock=self.clock
        )
        for loop in self._built_loops(self._built_heartbeats(), supervisor):
            self.loops.add(loop)
        self.troubles.subscribe(self.scrub.trouble)
        self.changes.subscribe(self.observer.update_replica)
        self.changes.subscribe(self.outboxes.notify)
        self.failures.subscribe(self._volume_failed)

    def _volume_failed(self, _volume_id: str, container_ids: tuple[ContainerId, ...]) -> None:
        for container_id in container_ids:
            self.observer.update_replica(container_id)
        self.outboxes.report_all()

    def _volume_added(self, volume: VolumeFacts) -> None:
        if (loop := self.scrub.add(volume)) is not None:
            self.loops.add(loop)
            loop.start()
        self.outboxes.report_all()

    @property
    def address(self) -> str:
        """Address at which peers and clients reach this agent."""
        listens = f"{self.config.node.listen.rpartition(':')[0]}:{self.server.port}"
        return self.config.node.advertise or listens

    # The parts, in the order of construction.

    def _built_scrub(self) -> ScanManager:
        tools = StoreScanDeps(
            store=self.store,
            memory=self.memory.scans,
            leases=self.leases,
            clock=self.clock,
        )
        return ScanManager(
            tools,
            self.config.scan,
            self.stopping,
            on_volume_failed=self.failures.emit,
            on_shadow_difference=self.meters.shadow_differed,
        )

    def _built_handlers(self, control_planes: ControlPlanes) -> CommandHandlers:
        tools = HandlerDeps(
            store=self.store,
            leases=self.leases,
            clock=self.clock,
            scan_now=self._scan_after_repair,
            prove=self._prove_repair,
            confirm_deletes=control_planes.confirm_deletes,
            request_scan=self.request_scan,
            wait=self.stopping.wait,
            report_soon=self.outboxes.report_soon,
            reregister=self.outboxes.reregister,
            security=self.security,
            memory=self.memory.tasks,
            dial=self.leaders[0].dial if self.leaders else None,
            copy=self.leaders[0].copy if self.leaders else None,
            shared_pace=self.scrub.shared_pace,
        )
        return CommandHandlers(self.config.tasks, tools)

    def _built_observer(self) -> DatanodeStatus:
        about = ProcessInfo(
            datanode_id=self.who.datanode_id,
            cluster_id=self.who.cluster_id,
            version=self.who.version,
            started_at_ms=self.clock.now_ms(),
        )
        return DatanodeStatus(
            about,
            self.store,
            pools=self.intake,
            workers=self.loops.status,
            scm_state=lambda: self.outboxes.state,
            clock_offset_ms=lambda: self.outboxes.clock_offset_ms,
            interval_s=self.config.scan.data_interval_s,
            now_ms=self.clock.now_ms,
            describe=VolumeDescriber(self.store, self.moves, self.slow_disks),
        )

    def _built_parity(self, control_planes: ControlPlanes) -> ParityScrub | None:
        dial, pulse = self.handlers.peer, self.parity_pulse
        asking = PeerQueryDeps(self.store, control_planes, dial, self.clock)
        config = self.config.scan
        if self.leaders:  # only Suture's control planes know the holders of a container
            config = config.model_copy(update={"parity_interval_s": 0, "challenge_interval_s": 0})
        self.challenges = asking.challenges(config, self.request_scan, self.meters.count_challenge)
        return asking.parity(config, self.scrub, pulse, self.stopping)

    def _built_moves(self) -> VolumeEvacuator:
        mover = VolumeCopier(
            store=self.store,
            executor=self.writers,
            now_ms=self.clock.now_ms,
        )
        stop, pulse, bell = self.stopping.is_set, self.moves_pulse, self.moves_bell
        return VolumeEvacuator(self.scrub.tools, mover, stop=stop, pulse=pulse, bell=bell)

    def _built_face(self, waits: BlockedCalls) -> DatanodeHttpServer:
        def trouble() -> str:
            """Cancel calls that have been blocked for too long. Return the reason why new calls may
            get no answer.

            Return "" if they are answered.
            """
            waits.sweep()
            return self.executor.trouble

        return DatanodeHttpServer(
            self.config.observe.listen,
            self.observer,
            self.scans,
            self.clock,
            meters=self.meters,
            security=self.security,
            calls_trouble=trouble,
            names=web_names(self.config),
        )

    def _built_recoveries(self) -> RecoveringReplicas:
        return RecoveringReplicas(
            self.store,
            self.leases,
            self.clock,
            timeout_s=RECOVERING_TIMEOUT_S,
            scan=lambda container_id: self.request_scan(container_id, REASON),
        )

    def _built_server(self, limits: DatanodeServerLimits, waits: BlockedCalls) -> BuiltServer:
        importer = ReplicaImporter(
            store=self.store,
            leases=self.leases,
            executor=self.writers,
            now_ms=self.clock.now_ms,
            on_arrived=lambda container_id: self.request_scan(container_id, "it has just arrived"),
        )
        groups = (
            ReadHandlers(self.store, limits=limits, on_read=self.scrub.client_read),
            WriteHandlers(
                self.store,
                self.leases,
                limits=limits,
                recoveries=self.recoveries,
                submit=self.disk_writers.submit,
            ),
            ImportHandlers(importer),
            ScanHandlers(self.store, self.requested.run, self.requested.sample, limits=limits),
            TrustHandlers(self.handlers.trust),
            ProofHandlers(
                self.store,
                self.requested.run,
                self.handlers.pins,
                self.clock,
                self.request_scan,
            ),
            AdminHandlers(self.observer.status, self.scans, self.volumes),
        )
        return build_server(
            groups,
            self.config.node.listen,
            self.executor,
            datanode_id=self.who.datanode_id,
            limits=limits,
            security=self.security,
            audit=self.audit,
            slots=self.executor,
            waits=waits,
            memory=self.memory.calls,
            is_well=self.face.is_well,
            known=ControlPlanes(self.scms).datanode_addresses,
        )

    def _inside(
        self, executor: Executor, limits: DatanodeServerLimits, waits: BlockedCalls
    ) -> HostServices:
        return HostServices(
            config=self.config,
            store=self.store,
            leases=self.leases,
            recoveries=self.recoveries,
            limits=limits,
            waits=waits,
            slots=self.executor,
            memory=self.memory.calls,
            connections=self.server.connections,
            audit=self.audit,
            executor=executor,
            submit=self.disk_writers.submit,
            on_read=self.scrub.client_read,
            request_scan=self.request_scan,
        )

    def _built_heartbeats(self) -> Iterator[WorkerLoop]:
        led = AgentServices(
            config=self.config,
            who=self.who,
            store=self.store,
            reporter=self.observer,
            clock=self.clock,
            protocol_addresses=self.protocol_servers.addresses,
            leases=self.leases,
            submit=self.disk_writers.submit,
            request_scan=self.request_scan,
            accept=self.intake.accept,
            answer=self._answer,
        )
        if self.leaders:
            return reporters(self.leaders, self.outboxes.boxes, led)
        return heartbeats(
            self.scms,
            self.outboxes.boxes,
            led,
            terms=self._terms(),
            address=self.address,
            on_last_copies=self.scrub.last_copies,
            on_rates=self.handlers.limit_rates,
        )

    def _terms(self) -> TermTracker:
        volumes = self.store.volume_set
        return TermTracker(
            volumes.node_state().seen_starts,
            lambda starts, is_everywhere: volumes.keep_seen_starts(
                starts, is_everywhere=is_everywhere
            ),
            self.clock,
        )

    def _built_loops(
        self, heartbeats: Iterator[WorkerLoop], supervisor: SystemdNotifier
    ) -> Iterator[WorkerLoop]:
        yield from heartbeats
        yield WorkerLoop(self.intake, clock=self.clock, bell=self.intake.bell)
        yield from self.scrub.loops()
        yield WorkerLoop(self.challenges, clock=self.clock)
        if self.parity is not None:
            yield WorkerLoop(self.parity, clock=self.clock, pulse=self.parity_pulse)
        if self.watch is not None:
            yield WorkerLoop(self.watch, clock=self.clock)
        watchdog = WatchdogWorker(supervisor, lambda: self.loops.stalled(QUIET_MAX_S))
        yield WorkerLoop(watchdog, clock=self.clock)
        yield WorkerLoop(self.recoveries, clock=self.clock)
        yield WorkerLoop(self.server.connections, clock=self.clock)
        yield WorkerLoop(self.housekeeper)
        yield WorkerLoop(self.rebuild, clock=self.clock)
        yield WorkerLoop(self.slow_disks, clock=self.clock)
        yield WorkerLoop(self.moves, clock=self.clock, pulse=self.moves_pulse, bell=self.moves_bell)
        if self.config.report.export:
            pulse = ProgressMarker(self.clock)
            yield WorkerLoop(self._built_export(pulse), clock=self.clock, pulse=pulse)

    def _built_export(self, pulse: ProgressMarker) -> ReportExport:
        return ReportExport(
            self.config,
            self.who,
            self.observer,
            self.clock,
            address=lambda: self.address,
            stop=self.stopping,
            pulse=pulse,
            on_exported=self.meters.exported,
        )

    # Callbacks of the parts.

    def _answer(self, status: scm_pb2.CommandStatus) -> None:
        self.meters.count_command(status)
        self.audit.record(
            f"command {status.type}",
            status.code or DONE,
            who="scm",
            command_id=status.command_id,
            container_id=status.container_id,
        )
        self.outboxes.answer(status)

    def _scan_after_repair(self, container_id: ContainerId) -> ScanReport:
        """Scan the complete replica after a repair. The scan sets the state of the replica."""
        return scan_container(self.scrub.tools, container_id, stop=self.stopping.is_set)

    def _prove_repair(self, container_id: ContainerId, changed: Collection[Doubt]) -> ReadBack:
        """Verify a repair, and return how much data was read for this.

        Only the chunks that the reconcile changed are read. If the last complete scan of the
        replica is too old, the complete replica is read.
        """
        return verify_repair(
            self.scrub.tools,
            container_id,
            changed,
            age_max_s=self.config.tasks.reconcile_proof_age_s,
            stop=self.stopping.is_set,
        )

    def request_scan(self, container_id: ContainerId, reason: str) -> None:
        """Add an on-demand scan of a replica to the queue.

        If the queue is full, log and drop the request. A new replica is scanned soon in any case,
        because the background scan first reads replicas that were never scanned.
        """
        if not self.scrub.on_demand.request(container_id, reason=reason):
            log.warning("scan_request_dropped", container_id=container_id, reason=reason)
