"""Servers for other protocols than suture.v1, over the same store.

The agent knows none of them. `agent.main` composes the process and says how each is made. The host
makes them once the store is open, and starts and stops them with its own server. Their calls have
the same bounds as that server's: each has threads for as many calls, all share the same slots, and
their waits are counted together.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agent.config.options import AgentConfig
from agent.host.recovering_replicas import RecoveringReplicas
from agent.leases import ContainerLeases
from agent.services.limits import DatanodeServerLimits
from agent.store.files.writebehind import Submit
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.runtime.memory import MemoryBudget
from suture.wire.server.authorization import Audit
from suture.wire.server.blocked_calls import BlockedCalls, WorkerSlots
from suture.wire.server.connections import Connections


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """Services of the agent that a protocol server may use."""

    config: AgentConfig
    store: ReplicaStore
    leases: ContainerLeases
    recoveries: RecoveringReplicas
    limits: DatanodeServerLimits
    waits: BlockedCalls
    slots: WorkerSlots
    memory: MemoryBudget
    connections: Connections
    audit: Audit
    executor: Any  # a thread for each admitted call
    submit: Submit
    """Runs writes of data beside the thread of a call."""
    on_read: Callable[[float], None]
    """Receives the duration in seconds of each read of chunk data, because clients go before
    scans."""
    ask_scan: Callable[[ContainerId, str], None]
    """Requests a scan of a replica, with a reason."""


class ShutdownHandle(Protocol):
    """The end of a server's stop."""

    def wait(self) -> object:
        """Wait for the last call."""
        ...


class ProtocolServer(Protocol):
    """A server for another protocol."""

    @property
    def address(self) -> str:
        """Address on which it listens."""
        ...

    def start(self) -> None:
        """Serve from now on."""
        ...

    def stop(self, grace_s: float) -> ShutdownHandle:
        """Refuse new calls, and give running calls `grace_s`. Harmless before `start`."""
        ...


MakeDoor: TypeAlias = Callable[[HostServices], ProtocolServer]


class ProtocolServers:
    """All protocol servers of a host; each has its own threads."""

    def __init__(
        self,
        makers: Sequence[MakeDoor],
        inside: Callable[[Executor], HostServices],
        threads: Callable[[], Executor],
    ) -> None:
        """Make all servers, or none. Raise SutureError."""
        self._executors: list[Executor] = []
        self._doors: list[ProtocolServer] = []
        try:
            for make in makers:
                self._executors.append(threads())
                self._doors.append(make(inside(self._executors[-1])))
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[str]:
        """Address of each server."""
        return [door.address for door in self._doors]

    def start(self) -> None:
        """Start all servers."""
        for door in self._doors:
            door.start()

    def stop(self, grace_s: float) -> list[ShutdownHandle]:
        """Begin to stop all servers; return their ends to wait for."""
        return [door.stop(grace_s) for door in self._doors]

    def close(self) -> None:
        """Stop servers that are still running, and end the threads. Idempotent."""
        for ended in self.stop(0):
            ended.wait()
        for executor in self._executors:
            executor.shutdown(wait=True, cancel_futures=True)
