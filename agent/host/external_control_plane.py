"""Leaders of an agent: Suture's control planes, or others that do not speak suture.v1.

The agent knows none of the others. `agent.main` makes them if the config says so. Each provides a
worker that reports to it and receives its commands, from an outbox and into command queues like
those of Suture's own control planes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.config.options import AgentConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import HeartbeatWorker, RegistrationInfo, ReportSource
from agent.host.outbox import Outbox
from agent.host.term_tracker import TermTracker
from agent.leases import ContainerLeases
from agent.store.files.writebehind import Submit
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.runtime.clock import Clock
from suture.runtime.loop import Worker, WorkerLoop
from suture.wire.clients.peer import NodeAddress
from suture.wire.clients.replica_peer import ShardPeer
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2

NEWS_SPACING_S: Final = 0.05  # combines many answers into a few heartbeats


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """Agent services available to an external control plane's adapter."""

    config: AgentConfig
    who: DatanodeIdentity
    store: ReplicaStore
    reporter: ReportSource
    clock: Clock
    door_addresses: Sequence[str]
    leases: ContainerLeases
    submit: Submit
    """Runs writes of data beside the thread of a task."""
    ask_scan: Callable[[ContainerId, str], None]
    """Requests a scan of a replica, with a reason."""
    accept: Callable[[Sequence[scm_pb2.Command], int], None]
    """Queues the commands of a leader with that term."""
    answer: Callable[[scm_pb2.CommandStatus], None]
    """Answers a command that is not queued."""


class ExternalControlPlane(Protocol):
    """A control plane of another kind."""

    @property
    def address(self) -> str:
        """Its address in the config."""
        ...

    def cluster_id(self) -> str:
        """Return the id of the cluster that it leads. Raise UnavailableError, RefusedError."""
        ...

    def worker(self, led: AgentServices, outbox: Outbox, leads: Callable[[int], bool]) -> Worker:
        """Return the worker that reports `outbox` to it and receives its commands. Raise
        RefusedError.

        `leads` records a term, and returns whether its SCM is the leader as far as known here.
        """
        ...

    def dial(self, datanode: NodeAddress, index: int) -> ShardPeer:
        """Return one of its datanodes as the holder of the shard `index`, 0 = of a whole copy;
        nothing is sent yet. Thread-safe."""
        ...

    def copy(
        self, command: scm_pb2.ReplicateCommand, stop: Callable[[], bool], timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        """Carry out a copy that it ordered; its worker must exist. Raise SutureError."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def reporters(
    leaders: Sequence[ExternalControlPlane], boxes: Sequence[Outbox], led: AgentServices
) -> Iterator[WorkerLoop]:
    """Yield the loop of each leader of another kind."""
    terms = TermTracker()
    for leader, outbox in zip(leaders, boxes, strict=True):
        worker = leader.worker(led, outbox, terms.leads)
        yield WorkerLoop(worker, clock=led.clock, bell=outbox.bell)


def heartbeats(
    scms: Sequence[ScmClient],
    boxes: Sequence[Outbox],
    led: AgentServices,
    *,
    terms: TermTracker,
    address: str,
    on_last_copies: Callable[[Sequence[int]], None],
) -> Iterator[WorkerLoop]:
    """Yield the loop of each of Suture's control planes. `address` is this agent's own address."""
    identity = RegistrationInfo(led.who, address, led.config.node.rack)
    for scm, outbox in zip(scms, boxes, strict=True):
        beat = HeartbeatWorker(
            scm,
            led.reporter,
            identity,
            led.accept,
            led.clock,
            outbox=outbox,
            terms=terms,
            spacing_s=NEWS_SPACING_S,
            name="heartbeat" if len(scms) == 1 else f"heartbeat-{scm.address}",
            on_last_copies=on_last_copies,
        )
        yield WorkerLoop(beat, clock=led.clock, bell=outbox.bell)
