"""The agent of one host, put together: store, server, loops, pools. Builds, starts, drains.

store ◄── server (gRPC threads)      ◄── peers, clients
  ▲  ▲─── scans (one loop per volume, one on demand) ◄── change watch
  │  ▲─── pools (reconcile; close and delete)        ◄── heartbeat ◄── SCM
  └────── observer ──► reports, status

Each part is built after those that it needs, and is whole then. What a part tells of to others that
are built later goes through a relay, or lies in the outbox of the heartbeat.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event
from typing import Final

import structlog

from agent.commands.handlers import TRANSFER_THREADS, Handlers, Tools
from agent.commands.intake import Intake
from agent.commands.routing import Commands
from agent.config.loading import changed, with_live
from agent.config.options import AgentConfig
from agent.host.control_planes import Asking, ControlPlanes
from agent.host.foreign_servers import Doors, Inside, MakeDoor
from agent.host.housekeeper import Housekeeper
from agent.host.http_pages import Face
from agent.host.leader import Leader, Led, heartbeats, reporters
from agent.host.outbox import Outboxes
from agent.host.recoveries import REASON, Recoveries
from agent.host.settings import call_threads, server_limits, store_options, web_names
from agent.host.volume_moves import VolumeMoves
from agent.host.volume_steering import Description, HostVolumes, tell_of_start
from agent.host.who import Who
from agent.observe.audit import AuditLog
from agent.observe.datanode_status import About, Observer
from agent.observe.metrics import Meters
from agent.plan.reconcile_outcome import Proof
from agent.rpc.calls.scm import ScmClient
from agent.rpc.datanode.arriving import ImportHandlers
from agent.rpc.datanode.findings import JudgeHandlers
from agent.rpc.datanode.limits import Limits
from agent.rpc.datanode.proving import ProofHandlers
from agent.rpc.datanode.reading import ReadHandlers
from agent.rpc.datanode.server import BuiltServer, build_server, waits_of
from agent.rpc.datanode.steering import HostHandlers
from agent.rpc.datanode.trusting import TrustHandlers
from agent.rpc.datanode.writing import WriteHandlers
from agent.rpc.security.tls import LOOPBACK_ONLY, Security
from agent.rpc.serving.access import DONE
from agent.rpc.serving.waits import Waits
from agent.rpc.v1 import scm_pb2
from agent.runtime.clock import SystemClock
from agent.runtime.lease import Leases
from agent.runtime.loop import QUIET_MAX_S, Bell, Loop, LoopSet, Pulse
from agent.runtime.relay import Relay
from agent.runtime.service_manager import Supervisor, WatchdogWorker
from agent.scan.awaited_scan import RequestedScans
from agent.scan.change_watch import ChangeWatch
from agent.scan.container_scan import ScanReport, ScanTools, scan_container
from agent.scan.host_scans import Scrub
from agent.scan.parity_scrub import ParityScrub
from agent.scan.repair_proof import prove
from agent.scan.scan_control import BackgroundScans
from agent.scan.slow_disks import SlowDisks, counted
from agent.store.index.facts import VolumeFacts
from agent.store.operations.arrival import ARRIVALS_MAX
from agent.store.replica_store import ReplicaStore
from agent.store.trouble import Trouble
from agent.transfer.incoming import Importer
from agent.transfer.relocation import Mover
from merkle.replica import ContainerId
from scanner.resume import Doubt

DISK_WRITERS: Final = 4  # of what clients send: a write or two on each of some disks

log = structlog.get_logger()


class Host:
    """Everything that runs in an agent's process."""

    def __init__(
        self,
        config: AgentConfig,
        who: Who,
        scms: Sequence[ScmClient],
        supervisor: Supervisor,
        *,
        security: Security = LOOPBACK_ONLY,
        doors: Sequence[MakeDoor] = (),
        leaders: Sequence[Leader] = (),
    ) -> None:
        """Open the store, which recovers it, and bind the server, and the other `doors`. `leaders`
        are control planes of another kind, which lead instead of `scms`.

        Raises SutureError.
        """
        assert not (scms and leaders), "an agent is led by one kind of control plane"
        self._config = config
        self._door_makers = doors
        self.security = security
        self._who = who
        self._scms = tuple(scms)
        self._leaders = tuple(leaders)
        self._clock = SystemClock()
        self._stopping = Event()
        self._loops = LoopSet()
        self._leases = Leases(clock=self._clock)
        self._meters = Meters()
        self._audit = AuditLog(config.observe.audit_file)
        self._outboxes = Outboxes(len(self._scms) + len(self._leaders))
        self._changes = Relay[[ContainerId]]()
        self._troubles = Relay[[Trouble]]()
        self._failures = Relay[[str, tuple[ContainerId, ...]]]()
        self._store = ReplicaStore.open(
            config.storage.volumes,
            cluster_id=who.cluster_id,
            datanode_id=who.datanode_id,
            options=replace(
                store_options(config, self._clock, who.version),
                on_change=self._changes.tell,
                on_trouble=self._troubles.tell,
            ),
        )
        tell_of_start(self._store)
        with ExitStack() as undo:
            undo.callback(self._store.close)
            self._build(supervisor, undo)
            undo.pop_all()

    def _build(self, supervisor: Supervisor, undo: ExitStack) -> None:
        """Build what works on the store, each part after those that it needs; `undo` lets go of
        them when one cannot be built."""
        config = self._config
        self._scrub = self._built_scrub()
        self._requested = RequestedScans(
            self._scrub.tools, pace=self._scrub.requested_pace, queue=self._scrub.queue
        )
        control_planes = ControlPlanes(self._scms)
        self._handlers = self._built_handlers(control_planes)
        commands = Commands(self._handlers.routes(), self._answer, self._clock)
        self._intake = Intake(commands, self._clock, bell=Bell())
        self._writers = ThreadPoolExecutor(
            TRANSFER_THREADS + ARRIVALS_MAX, thread_name_prefix="import"
        )  # each arrival may have one that waits for its sender
        self._moves_pulse, self._moves_bell = Pulse(self._clock), Bell()
        self._moves = self._built_moves()
        self._slow_disks = SlowDisks(lambda: counted(self._store.volumes()))
        self._observer = self._built_observer()
        self._parity_pulse = Pulse(self._clock)
        self._parity = self._built_parity(control_planes)
        self._scans = BackgroundScans(self._scrub, self._challenges, self._parity)
        self._disk_writers = ThreadPoolExecutor(DISK_WRITERS, thread_name_prefix="write")
        self._volumes = HostVolumes(self._store, self._moves, self._observer, self._volume_added)
        limits = server_limits(config)
        self._executor = call_threads(config)
        waits = waits_of(limits)
        self._face = self._built_face(waits)
        undo.callback(self._face.stop)
        self._recoveries = self._built_recoveries()
        self._server = self._built_server(limits, waits)
        self._doors = Doors(
            self._door_makers,
            lambda executor: self._inside(executor, limits, waits),
            lambda: call_threads(config),
        )
        undo.callback(self._doors.close)
        self._watch = (
            ChangeWatch(self._store, self._leases, self._scrub.on_demand)
            if config.scan.watch
            else None
        )
        self._housekeeper = Housekeeper(self._store, config.storage.quarantine_keep_s)
        for loop in self._built_loops(self._built_heartbeats(), supervisor):
            self._loops.add(loop)
        self._troubles.listen(self._scrub.trouble)
        self._changes.listen(self._observer.note)
        self._changes.listen(self._outboxes.notify)
        self._failures.listen(self._volume_failed)

    def _volume_failed(self, _volume_id: str, container_ids: tuple[ContainerId, ...]) -> None:
        for container_id in container_ids:
            self._observer.note(container_id)
        self._outboxes.report_all()

    def _volume_added(self, volume: VolumeFacts) -> None:
        if (loop := self._scrub.add(volume)) is not None:
            self._loops.add(loop)
            loop.start()
        self._outboxes.report_all()

    @property
    def address(self) -> str:
        """Where others reach this agent."""
        listens = f"{self._config.node.listen.rpartition(':')[0]}:{self._server.port}"
        return self._config.node.advertise or listens

    @property
    def web_address(self) -> str:
        """Where a browser reaches this agent; "" when nowhere."""
        return self._face.address

    @property
    def door_addresses(self) -> list[str]:
        """Where those reach this agent who do not speak its own protocol."""
        return self._doors.addresses

    def start(self) -> None:
        """Start the loops and serve. Once."""
        self._loops.start()
        self._server.server.start()
        self._doors.start()
        self._face.start()

    def reconfigure(self, config: AgentConfig) -> dict[str, bool]:
        """Take the live options of `config`; return what differs: True where it is live now.

        Raise Refused, with nothing changed, when the promise could not be kept.
        """
        differences = changed(self._config, config)
        effective = with_live(self._config, config)
        self._scrub.reconfigure(effective.scan)
        self._housekeeper.keep_for(effective.storage.quarantine_keep_s)
        self._config = effective
        return differences

    def stop(self) -> list[str]:
        """Drain within the configured time; return what did not end. Harmless before `start`.

        New calls are refused first, then reconciles stop between two chunks, then the loops end;
        the journal covers what is cut off.
        """
        self._stopping.set()
        self._face.stop()
        self._requested.stop()
        self._server.health.enter_graceful_shutdown()
        stopped = self._server.server.stop(self._config.stop_deadline_s / 4)
        doors_stopped = self._doors.stop(self._config.stop_deadline_s / 4)
        unfinished = self._handlers.stop(self._config.stop_deadline_s / 2)
        unfinished += self._loops.stop(self._config.stop_deadline_s / 4)
        for ended in (stopped, *doors_stopped):
            ended.wait()
        self._doors.close()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._writers.shutdown(wait=True, cancel_futures=True)
        self._disk_writers.shutdown(wait=True)
        if self._watch is not None:
            self._watch.close()
        if self._parity is not None:
            self._parity.close()
        self._handlers.close()
        for close in (*(one.close for one in self._scms), *(one.close for one in self._leaders)):
            close()
        self._audit.close()
        self._scrub.close()
        if not unfinished:
            self._store.close()
        return unfinished

    # The parts, in the order in which they are built.

    def _built_scrub(self) -> Scrub:
        tools = ScanTools(
            store=self._store,
            leases=self._leases,
            algorithm=self._config.storage.tree_algorithm,
            clock=self._clock,
        )
        return Scrub(
            tools,
            self._config.scan,
            self._who.datanode_id,
            self._stopping,
            on_volume_failed=self._failures.tell,
            on_shadow_difference=self._meters.shadow_differed,
        )

    def _built_handlers(self, control_planes: ControlPlanes) -> Handlers:
        tools = Tools(
            store=self._store,
            leases=self._leases,
            clock=self._clock,
            cluster_id=self._who.cluster_id,
            datanode_id=self._who.datanode_id,
            scan_now=self._scan_after_repair,
            prove=self._prove_repair,
            confirm_deletes=control_planes.confirm_deletes,
            ask_scan=self._ask_scan,
            wait=self._stopping.wait,
            report_soon=self._outboxes.report_soon,
            reregister=self._outboxes.reregister,
            security=self.security,
            dial=self._leaders[0].dial if self._leaders else None,
            copy=self._leaders[0].copy if self._leaders else None,
            shards=self._leaders[0].shards if self._leaders else None,
            shared_pace=self._scrub.shared_pace,
        )
        return Handlers(self._config.tasks, tools)

    def _built_observer(self) -> Observer:
        about = About(
            datanode_id=self._who.datanode_id,
            cluster_id=self._who.cluster_id,
            version=self._who.version,
            started_at_ms=self._clock.now_ms(),
        )
        return Observer(
            about,
            self._store,
            pools=self._intake,
            workers=self._loops.status,
            scm_state=lambda: self._outboxes.state,
            interval_s=self._config.scan.data_interval_s,
            now_ms=self._clock.now_ms,
            describe=Description(self._store, self._moves, self._slow_disks),
        )

    def _built_parity(self, control_planes: ControlPlanes) -> ParityScrub | None:
        dial, pulse = self._handlers.peer, self._parity_pulse
        asking = Asking(self._store, self._who.datanode_id, control_planes, dial, self._clock)
        config = self._config.scan
        if self._leaders:  # Suture's control planes alone say who has a container, too
            config = config.model_copy(update={"parity_interval_s": 0, "challenge_interval_s": 0})
        self._challenges = asking.challenges(config, self._ask_scan, self._meters.challenged)
        return asking.parity(config, self._scrub, pulse, self._stopping)

    def _built_moves(self) -> VolumeMoves:
        mover = Mover(
            store=self._store,
            executor=self._writers,
            cluster_id=self._who.cluster_id,
            datanode_id=self._who.datanode_id,
            algorithm=self._config.storage.tree_algorithm,
            now_ms=self._clock.now_ms,
        )
        stop, pulse, bell = self._stopping.is_set, self._moves_pulse, self._moves_bell
        return VolumeMoves(self._scrub.tools, mover, stop=stop, pulse=pulse, bell=bell)

    def _built_face(self, waits: Waits) -> Face:
        def trouble() -> str:
            """Say why calls may find no answer; and end those that have waited long enough."""
            waits.sweep()
            return self._executor.trouble

        return Face(
            self._config.observe.listen,
            self._observer,
            self._scans,
            self._clock,
            meters=self._meters,
            security=self.security,
            calls_trouble=trouble,
            names=web_names(self._config),
        )

    def _built_recoveries(self) -> Recoveries:
        return Recoveries(
            self._store,
            self._leases,
            self._clock,
            timeout_s=self._config.tasks.recovering_timeout_s,
            scan=lambda container_id: self._ask_scan(container_id, REASON),
        )

    def _built_server(self, limits: Limits, waits: Waits) -> BuiltServer:
        importer = Importer(
            store=self._store,
            leases=self._leases,
            executor=self._writers,
            cluster_id=self._who.cluster_id,
            algorithm=self._config.storage.tree_algorithm,
            now_ms=self._clock.now_ms,
            on_arrived=lambda container_id: self._ask_scan(container_id, "it has just arrived"),
        )
        groups = (
            ReadHandlers(self._store, limits=limits, on_read=self._scrub.client_read),
            WriteHandlers(
                self._store,
                self._leases,
                limits=limits,
                recoveries=self._recoveries,
                submit=self._disk_writers.submit,
            ),
            ImportHandlers(importer),
            JudgeHandlers(self._store, self._requested.run, self._requested.sample, limits=limits),
            TrustHandlers(self._handlers.trust),
            ProofHandlers(
                self._store,
                self._requested.run,
                self._handlers.pledges,
                self._clock,
                self._ask_scan,
            ),
            HostHandlers(self._observer.status, self._scans, self._volumes),
        )
        return build_server(
            groups,
            self._config.node.listen,
            self._executor,
            limits=limits,
            security=self.security,
            audit=self._audit,
            slots=self._executor,
            waits=waits,
            is_well=self._face.is_well,
        )

    def _inside(self, executor: ThreadPoolExecutor, limits: Limits, waits: Waits) -> Inside:
        return Inside(
            config=self._config,
            datanode_id=self._who.datanode_id,
            cluster_id=self._who.cluster_id,
            store=self._store,
            leases=self._leases,
            recoveries=self._recoveries,
            limits=limits,
            waits=waits,
            slots=self._executor,
            audit=self._audit,
            executor=executor,
            submit=self._disk_writers.submit,
            on_read=self._scrub.client_read,
            ask_scan=self._ask_scan,
        )

    def _built_heartbeats(self) -> Iterator[Loop]:
        led = Led(
            config=self._config,
            who=self._who,
            store=self._store,
            reporter=self._observer,
            clock=self._clock,
            door_addresses=self._doors.addresses,
            leases=self._leases,
            submit=self._disk_writers.submit,
            ask_scan=self._ask_scan,
            accept=self._intake.accept,
            answer=self._answer,
        )
        if self._leaders:
            return reporters(self._leaders, self._outboxes.boxes, led)
        return heartbeats(
            self._scms,
            self._outboxes.boxes,
            led,
            address=self.address,
            on_last_copies=self._scrub.last_copies,
            on_task_percent=self._handlers.boost,
        )

    def _built_loops(self, heartbeats: Iterator[Loop], supervisor: Supervisor) -> Iterator[Loop]:
        yield from heartbeats
        yield Loop(self._intake, clock=self._clock, bell=self._intake.bell)
        yield from self._scrub.loops()
        yield Loop(self._challenges, clock=self._clock)
        if self._parity is not None:
            yield Loop(self._parity, clock=self._clock, pulse=self._parity_pulse)
        if self._watch is not None:
            yield Loop(self._watch, clock=self._clock)
        watchdog = WatchdogWorker(supervisor, lambda: self._loops.stalled(QUIET_MAX_S))
        yield Loop(watchdog, clock=self._clock)
        yield Loop(self._recoveries, clock=self._clock)
        yield Loop(self._housekeeper)
        yield Loop(self._slow_disks, clock=self._clock)
        yield Loop(self._moves, clock=self._clock, pulse=self._moves_pulse, bell=self._moves_bell)

    # What the parts ask for.

    def _answer(self, status: scm_pb2.CommandStatus) -> None:
        self._meters.answered(status)
        self._audit.record(
            f"command {status.type}",
            status.code or DONE,
            who="scm",
            command_id=status.command_id,
            container_id=status.container_id,
        )
        self._outboxes.answer(status)

    def _scan_after_repair(self, container_id: ContainerId) -> ScanReport:
        """Read the replica whole, so that what it is called rests on the medium."""
        return scan_container(self._scrub.tools, container_id, stop=self._stopping.is_set)

    def _prove_repair(self, container_id: ContainerId, changed: Collection[Doubt]) -> Proof:
        """Read what a reconcile changed; all of the replica, if it was not read lately."""
        return prove(
            self._scrub.tools,
            container_id,
            changed,
            age_max_s=self._config.tasks.reconcile_proof_age_s,
            stop=self._stopping.is_set,
        )

    def _ask_scan(self, container_id: ContainerId, reason: str) -> None:
        """Ask for a scan; a full queue is no loss: what was never read is read before others."""
        if not self._scrub.on_demand.request(container_id, reason=reason):
            log.warning("scan_not_queued", container_id=container_id, reason=reason)
