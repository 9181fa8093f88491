"""The types of the control plane's state: small immutable values, replaced at every change.

    node        a registered datanode (on disk), and its last heartbeat (not on disk)
    container   the unit of replication; while OPEN, it belongs to a writer's session
    replica     one datanode's report of its replica of a container
    allocation  a block that is allocated to a writer and not committed yet
    key         a name and its blocks
    pending     a command that is not answered yet
    outcome     the end of a command

The module reads no clock, no disk and no socket.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from health.tables.replica_numbers import ReplicaNumbers
from merkle.replica import LAYOUT_VERSION, ReplicaState
from merkle.tree_summary import TreeSummary
from suture.ec.scheme import parse_scheme


class NodeHealthState(StrEnum):
    """The health of a datanode, computed from the time since its last heartbeat."""

    HEALTHY = "HEALTHY"
    STALE = "STALE"
    DEAD = "DEAD"


class OpState(StrEnum):
    """The operational state of a datanode.

    Operators request it; the monitor of departures completes it.
    """

    IN_SERVICE = "IN_SERVICE"
    DECOMMISSIONING = "DECOMMISSIONING"
    DECOMMISSIONED = "DECOMMISSIONED"
    ENTERING_MAINTENANCE = "ENTERING_MAINTENANCE"
    IN_MAINTENANCE = "IN_MAINTENANCE"


class ContainerState(StrEnum):
    """The states of a container in the control plane (Ozone's names)."""

    OPEN = "OPEN"
    CLOSING = "CLOSING"
    QUASI_CLOSED = "QUASI_CLOSED"
    CLOSED = "CLOSED"
    DELETING = "DELETING"
    DELETED = "DELETED"


UNFINISHED: Final = frozenset(
    {ContainerState.OPEN, ContainerState.CLOSING, ContainerState.QUASI_CLOSED}
)
"""States of a container whose last commits may be unknown.

The container may get more commits, or only one replica may have its last commits.
"""


class CommandKind(StrEnum):
    """The kinds of commands to datanodes.

    The values are also the values of `CommandStatus.type` and `QueueCount.type` in the protocol.
    """

    CLOSE = "close"
    DELETE = "delete"
    RECONCILE = "reconcile"
    REPLICATE = "replicate"
    RECONSTRUCT = "reconstruct"
    DELETE_BLOCKS = "delete_blocks"
    SET_OPERATIONAL_STATE = "set_operational_state"
    REFRESH_VOLUME_USAGE = "refresh_volume_usage"
    REREGISTER = "reregister"


class CommandPriority(StrEnum):
    """The priority of a command. NORMAL commands are sent before LOW commands of the same kind."""

    NORMAL = "NORMAL"
    LOW = "LOW"


@dataclass(frozen=True, slots=True)
class ReportedVolume:
    """A volume of a datanode, as the datanode reported it."""

    volume_id: str
    path: str
    capacity_bytes: int
    available_bytes: int
    used_bytes: int
    container_count: int
    failed: bool
    oldest_scan_at_ms: int
    error: str
    data_bytes: int = 0  # of closed replicas
    in_time_bytes: int = 0  # of these, verified within the datanode's interval
    service: str = ""  # operational state; "" = in service
    log_count: int = 0  # entries of its verification log
    log_checksum: str = ""  # SHA-256 of the last entry, in hexadecimal

    @property
    def takes_replicas(self) -> bool:
        """Return True if the volume accepts new replicas.

        Otherwise, its datanode reports 0 bytes available, so that the SCM places nothing on the
        volume.
        """
        return not self.failed and self.service in {"", "IN_SERVICE"}


@dataclass(frozen=True, slots=True)
class Node:
    """A registered datanode. The row is stored on disk."""

    datanode_id: str
    address: str
    rack: str
    version: str
    boot_id: int
    op_state: OpState
    op_expiry_ms: int  # 0 = none
    registered_at_ms: int
    last_heartbeat_at_ms: int  # as of the last durable change of this row
    was_online: bool = True  # True if the node was online then; a restarted SCM waits for it
    layout_version: int = LAYOUT_VERSION  # layout version of its volumes

    @property
    def is_read_only(self) -> bool:
        """Return True if the volumes of the datanode have another layout version.

        Such a datanode is being upgraded. It gets no new replicas. Clients and peers read its
        replicas as usual.
        """
        return self.layout_version != LAYOUT_VERSION


@dataclass(frozen=True, slots=True)
class Liveness:
    """The facts of a datanode's last heartbeat, kept in memory only."""

    heard_at_s: float  # monotonic
    heartbeat_at_ms: int  # wall clock, for display
    volumes: tuple[ReportedVolume, ...]
    queues: tuple[tuple[str, int], ...]  # commands queued and running there, by type

    @property
    def capacity_bytes(self) -> int:
        """Return the capacity of all working volumes in bytes."""
        return sum(volume.capacity_bytes for volume in self.volumes if not volume.failed)

    @property
    def available_bytes(self) -> int:
        """Return the number of bytes that can still be written to working volumes."""
        return sum(volume.available_bytes for volume in self.volumes if not volume.failed)

    @property
    def used_bytes(self) -> int:
        """Return the number of bytes that replicas use on working volumes."""
        return sum(volume.used_bytes for volume in self.volumes if not volume.failed)


@dataclass(frozen=True, slots=True)
class Replica(ReplicaNumbers):
    """A datanode's replica of a container, as the datanode last reported it."""

    container_id: int
    datanode_id: str
    state: ReplicaState
    origin_datanode_id: str
    is_empty: bool
    tree: TreeSummary | None  # None = no tree yet, which is equal to no other tree
    volume_id: str
    load_error: str
    reported_at_ms: int
    is_contradictory: bool = False  # it contradicts a peer's replica, and both have intact rows


@dataclass(frozen=True, slots=True)
class Holder:
    """A replica that a reconcile command lists although its datanode is not a peer.

    `is_dead` is True if the datanode is DEAD.
    """

    replica: Replica
    is_dead: bool


def data_count_of(scheme: str) -> int:
    """Return the number of data shards of an erasure code. Return 1 if `scheme` is empty."""
    return parse_scheme(scheme).data_count if scheme else 1


def replica_bytes(scheme: str, length_bytes: int) -> int:
    """Return the number of bytes that a block takes in the largest replica of its container.

    Without an erasure code, this is the length of the block. Otherwise, it is the length of the
    longest shard. The first shard and the parity shards have this length.
    """
    if not scheme:
        return length_bytes
    code = parse_scheme(scheme)
    stripe_count, rest_bytes = divmod(length_bytes, code.stripe_bytes)
    return stripe_count * code.cell_bytes + min(rest_bytes, code.cell_bytes)


def block_bytes_max(scheme: str, container_bytes_max: int) -> int:
    """Return the maximum length of a block that fits into a container.

    No replica of the container may be larger than `container_bytes_max`.
    """
    if not scheme:
        return container_bytes_max
    code = parse_scheme(scheme)
    stripe_count, rest_bytes = divmod(container_bytes_max, code.cell_bytes)
    return stripe_count * code.stripe_bytes + rest_bytes


@dataclass(frozen=True, slots=True)
class Container:
    """A container: the unit of replication.

    `pipeline` has the datanodes that were chosen for the container and have not reported a replica
    yet. While the container is OPEN, `client_id` is the session of its writer. If `client_id` is
    empty, any session may use the container. `is_sealed` means that no more blocks are allocated in
    it.

    `allocated_bytes` and `committed_bytes` are the sizes of the largest replica (`replica_bytes`).
    Earlier versions counted the lengths of all keys in erasure-coded containers, which is never
    less.
    """

    container_id: int
    state: ContainerState
    replication_factor: int
    sequence_id: int  # highest bcsid known to be committed
    state_since_ms: int
    pipeline: tuple[str, ...]
    client_id: str = ""
    is_sealed: bool = False
    allocated_bytes: int = 0
    allocated_bcsid: int = 0  # bcsid of the newest allocated block; also the number of blocks
    committed_bytes: int = 0
    committed_count: int = 0
    close_reason: str = ""
    scheme: str = ""  # erasure code, such as rs-3-2-1024k; empty = replicas are whole copies

    @property
    def data_count(self) -> int:
        """Return the number of data shards. Return 1 if every replica is a full copy."""
        return data_count_of(self.scheme)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A block that is allocated to a writer and not committed yet."""

    container_id: int
    local_id: int
    bcsid: int
    size_bytes: int
    client_id: str


@dataclass(frozen=True, slots=True)
class KeyBlock:
    """A block that stores a part of a key."""

    container_id: int
    local_id: int
    bcsid: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class Key:
    """A key: the name of a stored file, and its blocks in order."""

    name: str
    size_bytes: int
    created_at_ms: int
    blocks: tuple[KeyBlock, ...]


@dataclass(frozen=True, slots=True)
class DeletedBlocks:
    """Blocks of one container whose delete all datanodes with a replica have acknowledged.

    The record is kept as long as the container exists. If a peer later reports a tombstone of
    another block, the tombstone is known to be false.
    """

    container_id: int
    transaction_id: int
    local_ids: tuple[int, ...]  # block ids, ascending
    is_unproven: bool = False  # as in the transaction


@dataclass(frozen=True, slots=True)
class DeleteTransaction:
    """Blocks to delete in one container.

    The transaction is kept until every datanode with a replica has acknowledged it.
    """

    transaction_id: int
    container_id: int
    local_ids: tuple[int, ...]
    created_at_ms: int
    acknowledged_by: tuple[str, ...] = ()  # datanode ids
    is_unproven: bool = False  # no key was deleted: no commit of these blocks is known


ASKED: Final = "asked by an operator"
"""The reason of a hold that an operator has set. Only an operator releases such a hold."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A container, or its replica on one datanode, for which no commands are sent."""

    container_id: int
    datanode_id: str  # empty = the whole container is suppressed
    since_ms: int
    reason: str


class ControlKind(StrEnum):
    """The kinds of settings that operators change at run time."""

    PAUSE = "pause"
    WINDOWS = "windows"
    NODE_RATE = "node_rate"
    CLUSTER_RATE = "cluster_rate"
    SAFE_MODE = "safe_mode"


class WorkKind(StrEnum):
    """The kinds of work to which a run-time setting applies."""

    COPIES = "copies"
    DELETES = "deletes"
    RECONCILES = "reconciles"
    BALANCING = "balancing"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class WorkControl:
    """A run-time setting that an operator has set."""

    control: ControlKind
    work: WorkKind
    rack: str  # rack of a pause; empty = all racks
    value: str  # bytes per second, or windows of the week
    since_ms: int
    until_ms: int  # 0 = until removed


@dataclass(frozen=True, slots=True)
class ForgottenContainer:
    """A container that an operator has marked as lost, with its last record.

    Keys with blocks in it are lost.
    """

    container: Container
    at_ms: int
    key_count: int


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command that has not ended. It is queued while `sent_at_s` is None; then it is sent.

    After the answer, a copy or delete remains pending until a report shows that the replica is
    present or gone.
    """

    command_id: int
    kind: CommandKind
    container_id: int
    datanode_id: str
    priority: CommandPriority = CommandPriority.NORMAL
    bcsid: int = 0  # close
    force: bool = False  # close, delete
    created_at_ms: int = 0
    target_id: str = ""  # replicate: the datanode that gets the replica
    size_bytes: int = 0  # replicate, reconstruct: space that each target needs during the work
    keep_count: int = 0  # delete: sent only if at least this many intact replicas remain
    op_state: str = ""  # set_operational_state
    op_expiry_ms: int = 0
    queued_at_s: float = 0.0  # monotonic, of this process
    sent_at_s: float | None = None  # monotonic, of this process
    lifetime_ms: int = 0  # time that the datanode has from its receipt; 0 = never sent
    deadline_ms: int = 0  # end of that time on the SCM's wall clock, for display and Spark
    is_answered: bool = False  # EXECUTED, but no report shows it yet; lost at a restart
    is_second: bool = False  # reconcile: sent after the commands of the minority are answered
    transactions: tuple[DeleteTransaction, ...] = ()  # delete_blocks, which is never kept on disk
    shards: tuple[tuple[int, str], ...] = ()  # reconstruct: index and target
    sources: tuple[tuple[int, str], ...] = ()  # reconstruct: index and source; not on disk
    block_count: int = 0  # reconstruct: blocks to rebuild, set when it is sent; not on disk
    scheme: str = ""
    holders: tuple["Holder", ...] = ()  # reconcile: holders that are no peers; not on disk
    why: str = ""  # the reason, for display

    @property
    def subject_id(self) -> str:
        """Return the datanode whose replica the command creates, changes or deletes."""
        return self.target_id or self.datanode_id


class OutcomeState(StrEnum):
    """The possible results of a command."""

    EXECUTED = "EXECUTED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"  # by the datanode (duplicate, stale term, late), or before it was sent


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of a command.

    `detail` is the serialized outcome message for its kind of command, or empty.
    """

    command_id: int
    datanode_id: str
    reported_at_ms: int
    state: OutcomeState
    kind: str
    container_id: int
    code: str
    message: str
    detail: bytes
    acknowledged: tuple[tuple[int, int], ...] = ()  # container and transaction; not kept
    moved_bytes: int = 0  # by a replicate; not kept
    duration_ms: int = 0
    is_complete: bool = True  # False = a reconcile that was stopped or missed a peer; not kept
