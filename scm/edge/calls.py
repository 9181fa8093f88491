"""What goes into the control plane and comes out of it, as values."""

from collections.abc import Sequence
from dataclasses import dataclass

from scm.administration.admin import Queue
from scm.cluster.replicas import Report
from scm.state.facts import OpState, Outcome, Pending, Volume


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A datanode and where it listens."""

    datanode_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Located:
    """Where a container is to be read: the most promising datanode first."""

    container_id: int
    endpoints: tuple[Endpoint, ...]
    scheme: str  # the erasure code's name; "": each replica is a whole copy
    equal_count: int  # so many of the first promise the same: readers spread over them


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One call of a datanode."""

    datanode_id: str
    boot_id: int
    volumes: tuple[Volume, ...]
    reports: tuple[Report, ...]
    outcomes: tuple[Outcome, ...]
    queues: tuple[tuple[str, int], ...]
    op_state: OpState | None = None  # as the datanode keeps it; None: never told
    op_expiry_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What it is told: commands, each with the datanodes it names, of which containers nobody
    else has a healthy copy, and how many of its threads it may use for copies, in percent."""

    is_known: bool
    commands: tuple[tuple[Pending, tuple[Endpoint, ...]], ...] = ()
    last_copies: tuple[int, ...] = ()
    task_percent: int = 100


@dataclass(frozen=True, slots=True)
class Queues:
    """What waits for datanodes, and what waits to become a command."""

    nodes: Sequence[Queue]
    pending_add_count: int
    pending_add_limit: int
    under_count: int
    over_count: int
    transaction_count: int
    delete_count: int
    delete_limit: int  # of surplus replicas; 0: none


@dataclass(frozen=True, slots=True)
class PromisedBlock:
    """A block a writer may write, and where."""

    container_id: int
    local_id: int
    bcsid: int
    replicas: tuple[Endpoint, ...]
