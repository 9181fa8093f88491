"""Servers for protocols other than suture.v1, which use the same store.

The agent does not import the modules of these protocols. `agent.main` provides a function for each
server that creates it. The agent calls these functions when the store is open. It starts and stops
these servers together with its own server. Each server has its own threads. The limits on running
and blocked calls apply to all servers together.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeAlias

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
from suture.wire.server.limited_server import BoundServer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """Services of the agent that a server for another protocol may use."""

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
    executor: Any  # provides a thread for each admitted call
    submit: Submit
    """Function that executes writes of data in another thread."""
    on_read: Callable[[float], None]
    """Function that is called with the duration of each read of chunk data, in seconds.

    If reads get slower, the scans reduce their rate.
    """
    request_scan: Callable[[ContainerId, str], None]
    """Function that requests a scan of a replica. Its second argument is the reason."""


MakeServer: TypeAlias = Callable[[HostServices], BoundServer]


class ProtocolServers:
    """The servers of this host for other protocols. Each server has its own threads."""

    def __init__(
        self,
        makers: Sequence[MakeServer],
        inside: Callable[[Executor], HostServices],
        threads: Callable[[], Executor],
    ) -> None:
        """Create all servers.

        If a server cannot be created, stop the servers that were created before and raise
        SutureError.
        """
        self._executors: list[Executor] = []
        self._servers: list[BoundServer] = []
        try:
            for make in makers:
                self._executors.append(threads())
                self._servers.append(make(inside(self._executors[-1])))
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[str]:
        """Addresses of all servers."""
        return [bound.address for bound in self._servers]

    def start(self) -> None:
        """Start all servers."""
        for bound in self._servers:
            bound.server.start()

    def stop(self, grace_s: float) -> list[Event]:
        """Begin to stop all servers. Return an event for each server, which is set when the server
        has stopped."""
        return [bound.server.stop(grace_s) for bound in self._servers]

    def close(self) -> None:
        """Stop the servers that are still running, and end their threads. A second call does
        nothing."""
        for ended in self.stop(0):
            ended.wait()
        for executor in self._executors:
            executor.shutdown(wait=True, cancel_futures=True)
