"""What goes into the control plane and comes out of it, as values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scm.administration.after_restore import Brought, Looked
from scm.administration.operator_commands import Queue
from scm.cluster.replica_map import Report
from scm.state.facts import Key, OpState, Outcome, Pending, Volume
from scm.state.starts import SeenStart


class Endpoint(NamedTuple):
    """A datanode and where it listens. Each lookup makes three."""

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
    seen_starts: tuple[SeenStart, ...] = ()
    refused: tuple[str, ...] = ()  # what of it breaks a rule, and is left out


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What it is told: commands, each with the datanodes it names, of which containers nobody
    else has a healthy copy, and how many of its threads it may use for copies, in percent."""

    is_known: bool
    commands: tuple[tuple[Pending, tuple[Endpoint, ...]], ...] = ()
    last_copies: tuple[int, ...] = ()


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


@dataclass(frozen=True, slots=True)
class PromisedBlock:
    """A block a writer may write, and where."""

    container_id: int
    local_id: int
    bcsid: int
    replicas: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class RecoveryCall:
    """What was found after a restore; `is_end`: that was all."""

    looked: Sequence[Looked]
    keys: Sequence[Key]
    last_local_id: int
    is_end: bool
    is_forced: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of it: containers that were adopted, keys whose delete was finished, puts."""

    adopted: Sequence[int]
    deleted: Sequence[str]
    brought: Sequence[Brought]
