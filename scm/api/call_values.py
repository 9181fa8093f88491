"""Arguments and results of the calls of the control plane."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scm.administration.replica_orders import DatanodeQueue
from scm.cluster.replica_map import NodeReplicaReport
from scm.state.entities import CommandOutcome, OpState, PendingCommand, ReportedVolume
from scm.state.starts import ReportedStart


class DatanodeAddress(NamedTuple):
    """A datanode id with an address.

    The class is a NamedTuple, because a NamedTuple is fast to create and each lookup creates three.
    """

    datanode_id: str
    address: str


@dataclass(frozen=True, slots=True)
class ContainerLocation:
    """A container and the datanodes that a client should read it from, in order of preference."""

    container_id: int
    endpoints: tuple[DatanodeAddress, ...]
    scheme: str  # the erasure code's name; empty = each replica is a whole copy
    equal_count: int  # number of first datanodes that are equally good: readers spread over them


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The contents of a datanode's heartbeat."""

    datanode_id: str
    boot_id: int
    volumes: tuple[ReportedVolume, ...]
    reports: tuple[NodeReplicaReport, ...]
    outcomes: tuple[CommandOutcome, ...]
    queues: tuple[tuple[str, int], ...]
    op_state: OpState | None = None  # as the datanode stores it; None = never set
    op_expiry_ms: int = 0
    seen_starts: tuple[ReportedStart, ...] = ()
    refused: tuple[str, ...] = ()  # texts about invalid parts that were left out


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a datanode's heartbeat.

    Each command comes with the addresses of the datanodes that it names. `last_copies` are the
    containers whose last healthy copy is on this datanode. `is_known` is False if the datanode must
    register first.
    """

    is_known: bool
    commands: tuple[tuple[PendingCommand, tuple[DatanodeAddress, ...]], ...] = ()
    last_copies: tuple[int, ...] = ()
    rates: tuple[int, int] = (0, 0)  # bytes per second of copies and of reconciles; 0 = no limit


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The commands of each datanode, and the numbers of containers and deletes that wait."""

    nodes: Sequence[DatanodeQueue]
    pending_add_count: int
    pending_add_limit: int
    under_count: int
    over_count: int
    transaction_count: int
    delete_count: int


@dataclass(frozen=True, slots=True)
class AllocatedBlockInfo:
    """A block that the control plane allocated to a writer, and the datanodes to write it to."""

    container_id: int
    local_id: int
    bcsid: int
    replicas: tuple[DatanodeAddress, ...]
