"""Simulated hosts with a complete agent, and the host of the control plane."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import agent.host.wiring
import agent.scan.throttle
from agent.config.options import AgentConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from agent.store.files.layout import VolumeLayout
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId
from scm.api.calls.control import ControlPlane
from scm.api.service import ScmService
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.options import ScmOptions
from suture.errors import SutureError
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.errors import ErrorStatusMiddleware
from suture.wire.mapping.rpc_services import DATANODE, method_handlers
from suture.wire.mapping.rpc_services import SCM as SCM_SERVICE
from suture.wire.server.connections import Connections
from suture.wire.server.limited_server import BuiltServer
from tools.simulation.cluster import PLAIN, PORT
from tools.simulation.machine import Machine
from tools.simulation.oracle import DiskHost
from tools.simulation.simulated_os.disk import INDEX_FILE
from tools.simulation.simulated_os.fibers import ProcessLifetime, Scheduler
from tools.simulation.simulated_os.kernel import Kernel
from tools.simulation.simulated_os.network import Collected, Network
from tools.simulation.simulated_os.primitives import Event, Executor

SCM: Final = "scm"
SCM_ADDRESS: Final = f"{SCM}:9860"
RIVAL: Final = "rival"
RIVAL_ADDRESS: Final = f"{RIVAL}:9860"
MAP_BYTES: Final = 32 * 1024**2
TICK_S: Final = 5.0
OPTIONS: Final = ScmOptions(
    heartbeat_interval_ms=5_000,
    stale_after_ms=20_000,
    dead_after_ms=60_000,
    session_idle_ms=60_000,
    repair_grace_ms=0,
    check_interval_ms=20_000,
    safemode_wait_ms=30_000,
    command_deadline_ms=120_000,
    allow_plaintext=True,
)


class LedNode(DiskHost):
    """A datanode under the control plane."""

    def __init__(
        self, number: int, root: Path, scheduler: Scheduler, kernel: Kernel, network: Network
    ) -> None:
        name = f"dn{number}"
        super().__init__(name, f"{name}:{PORT}", root, scheduler, kernel, network)
        self.host: AgentProcess | None = None
        self.cluster_id = ""
        self.advertised = self.address  # an event may change it before the start
        self.scm_addresses = [SCM_ADDRESS]

    def boot(self, life: ProcessLifetime) -> None:
        """Assemble the agent and start its loops."""
        del life
        config = AgentConfig.model_validate(
            {
                "node": {
                    "listen": self.address,
                    "advertise": self.advertised,
                    "scm": self.scm_addresses,
                },
                "storage": {"volumes": [str(self.disk.root)], "reserve_bytes": 0},
                "scan": {
                    "data_interval_s": 600,
                    "gap_min_s": 30,
                    "promise": "warn",
                    "parity_interval_s": 0,
                    "start_jitter_s": 0,
                    "watch": False,
                },
                "observe": {"listen": "", "audit_file": str(self.disk.root) + ".audit"},
                "tls": {"allow_plaintext": True},
            }
        )
        who = DatanodeIdentity(self.name, self.cluster_id, boot_id=self.start_count)
        scms = [ScmClient(address, security=PLAIN) for address in self.scm_addresses]
        self.host = AgentProcess(config, who, scms, SystemdNotifier({}), security=PLAIN)
        self.host.start()

    def shut(self) -> None:
        """Drain the agent."""
        if self.host is not None:
            self.host.stop()

    def forget(self) -> None:
        """Forget the agent and its memory."""
        self.host = None

    @property
    def is_up(self) -> bool:
        """True if an agent runs and serves."""
        return self.host is not None and super().is_up

    @property
    def store(self) -> ReplicaStore:
        """The store of the running agent."""
        assert self.host is not None, f"{self.name} is down"
        return self.host.store

    def block_file(self, container_id: ContainerId, block_id: BlockId) -> Path:
        """Return the path of a block's file, whether or not it exists."""
        return (
            VolumeLayout(self.disk.root, self.cluster_id).replica(container_id).block_file(block_id)
        )


class ScmMachine(Machine):
    """The host of a control plane."""

    def __init__(
        self,
        root: Path,
        scheduler: Scheduler,
        kernel: Kernel,
        network: Network,
        address: str = SCM_ADDRESS,
    ) -> None:
        super().__init__(address.partition(":")[0], address, root, scheduler, kernel, network)
        self.control: ControlPlane | None = None
        self._state: StateDatabase | None = None

    def boot(self, life: ProcessLifetime) -> None:
        """Open the state, serve it, and start ticking."""
        clock = ScmClock(self.clock.now_ms, self.clock.monotonic_s)
        state = self._state = StateDatabase.open(self.disk.root / "data", map_bytes=MAP_BYTES)
        control = ControlPlane(
            state, clock=clock, options=OPTIONS, snapshots_path=self.disk.root / "snapshots"
        )
        self.control = control
        collected = Collected(ErrorStatusMiddleware())
        service = ScmService(control)
        collected.add_service(SCM_SERVICE.full_name, method_handlers(SCM_SERVICE, [service]))
        self.network.listen(self.address, life, collected.handlers)
        self.scheduler.spawn("ticker", lambda: self._tick(control), life)

    def _tick(self, control: ControlPlane) -> None:
        while True:
            self.scheduler.sleep(TICK_S)
            try:
                control.tick()
                control.note_history()
            except SutureError:
                continue

    def state_now(self) -> bytes:
        """Return the committed state, as a snapshot of the host's disk would contain it."""
        return self.disk.indexes[str(self.disk.root / "data" / "state")]

    def put_back(self, state: bytes) -> None:
        """Replace the state of the stopped control plane by `state`."""
        directory = self.disk.root / "data" / "state"
        self.disk.indexes[str(directory)] = state
        (directory / INDEX_FILE).write_bytes(state)

    def shut(self) -> None:
        """Close the state."""
        if self._state is not None:
            self._state.close()

    def forget(self) -> None:
        """Forget the control plane and its memory."""
        self.control = self._state = None


class _Serving:
    """A server with the interface of a bound `grpc.Server`."""

    def __init__(self, start: Callable[[], None]) -> None:
        self.start = start

    def stop(self, _grace_s: float | None) -> "_Serving":
        """Do nothing: there are no sockets."""
        return self

    def wait(self, _timeout_s: float | None = None) -> bool:
        """Return True immediately, because nothing has to stop."""
        return True


class _Health:
    def enter_graceful_shutdown(self) -> None:
        """Do nothing: no health service is simulated."""


@contextmanager
def around(scheduler: Scheduler, network: Network, machines: Sequence[Machine]) -> Iterator[None]:
    """Replace server, threads and clocks around agents during the body."""
    clocks = {machine.name: machine.clock for machine in machines}

    def built(groups: Sequence[object], address: str, _: object, **more: Any) -> BuiltServer:
        collected = Collected(ErrorStatusMiddleware())
        collected.add_service(DATANODE.full_name, method_handlers(DATANODE, groups))
        life = scheduler.current.lives[-1]
        server: Any = _Serving(lambda: network.listen(address, life, collected.handlers))
        health: Any = _Health()
        return BuiltServer(server, f":{PORT}", health, more["waits"], Connections(0))

    def executor(max_workers: int, thread_name_prefix: str = "pool") -> Executor:
        return Executor(scheduler, max_workers, thread_name_prefix)

    replaced: list[tuple[Any, str, Any]] = [
        (agent.host.wiring, "build_server", built),
        (agent.host.wiring, "ThreadPoolExecutor", executor),
        (agent.host.wiring, "Event", lambda: Event(scheduler)),
        (agent.host.wiring, "SystemClock", lambda: clocks[scheduler.current.lives[-1].name]),
        (agent.scan.throttle, "STALL_FILE", Path("/nowhere/pressure")),
    ]
    with ExitStack() as undo:
        for owner, name, own in replaced:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, own)
        yield
