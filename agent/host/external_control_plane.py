"""Interface of control planes that do not use suture.v1, and the loops that report to all SCMs.

The agent does not import the modules of these control planes; `agent.main` creates the ones that
the config names. Each of them provides a worker, which sends the pending reports of an outbox and
queues the received commands. `HeartbeatWorker` does the same for Suture's own control plane.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.config.options import AgentConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import HeartbeatWorker, RegistrationInfo
from agent.host.outbox import Outbox
from agent.host.term_tracker import TermTracker
from agent.leases import ContainerLeases
from agent.observe.datanode_status import DatanodeStatus
from agent.store.files.writebehind import Submit
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.runtime.clock import Clock
from suture.runtime.loop import Worker, WorkerLoop
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.replica_peer import ShardPeer
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2

NEWS_SPACING_S: Final = 0.05  # minimum time between heartbeats, so that answers are combined


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentServices:
    """Services of the agent that an external control plane may use."""

    config: AgentConfig
    who: DatanodeIdentity
    store: ReplicaStore
    reporter: DatanodeStatus
    clock: Clock
    protocol_addresses: Sequence[str]
    leases: ContainerLeases
    submit: Submit
    """Function that executes writes of data in another thread."""
    request_scan: Callable[[ContainerId, str], None]
    """Function that requests a scan of a replica. Its second argument is the reason."""
    accept: Callable[[Sequence[scm_pb2.Command], int], None]
    """Function that queues commands of the SCM leader. Its second argument is the election term of
    the SCM."""
    answer: Callable[[scm_pb2.CommandStatus], None]
    """Function that reports the status of a command that was not queued."""


class ExternalControlPlane(Protocol):
    """A control plane of another system, for example Ozone's SCM."""

    @property
    def address(self) -> str:
        """The address of the control plane, as written in the config."""
        ...

    def cluster_id(self) -> str:
        """Return the id of the control plane's cluster.

        Raise UnavailableError if the control plane does not answer. Raise RefusedError if it
        refuses this agent.
        """
        ...

    def worker(self, led: AgentServices, outbox: Outbox, leads: Callable[[int], bool]) -> Worker:
        """Return a worker that sends the reports in `outbox` to the control plane, and receives its
        commands.

        `leads` is a function that records an election term, and returns True if no higher term is
        known. Raise RefusedError if the worker cannot be created.
        """
        ...

    def dial(self, datanode: NodeAddress, index: int) -> ShardPeer:
        """Return a client for a datanode that has a replica. Thread-safe.

        `index` is the number of the shard, or 0 for a complete replica. The client connects on its
        first call.
        """
        ...

    def copy(
        self, command: scm_pb2.ReplicateCommand, stop: Callable[[], bool], timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        """Execute a copy that this control plane has ordered.

        `worker` must have been called before. Raise SutureError if the copy fails.
        """
        ...

    def close(self) -> None:
        """Close the connections to the control plane and to datanodes."""
        ...


def reporters(
    leaders: Sequence[ExternalControlPlane], boxes: Sequence[Outbox], led: AgentServices
) -> Iterator[WorkerLoop]:
    """Yield the worker loop for each external control plane."""
    terms = TermTracker()
    for leader, outbox in zip(leaders, boxes, strict=True):
        worker = leader.worker(led, outbox, terms.observe_term)
        yield WorkerLoop(worker, clock=led.clock, bell=outbox.bell)


def heartbeats(
    scms: Sequence[ScmClient],
    boxes: Sequence[Outbox],
    led: AgentServices,
    *,
    terms: TermTracker,
    address: str,
    on_last_copies: Callable[[Sequence[int]], None],
    on_rates: Callable[[int, int], None],
) -> Iterator[WorkerLoop]:
    """Yield a heartbeat loop for each of Suture's control planes (`scms`).

    `boxes` has the outbox of each control plane. `address` is the address of this agent.
    """
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
            on_rates=on_rates,
        )
        yield WorkerLoop(beat, clock=led.clock, bell=outbox.bell)
