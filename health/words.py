"""The words of the rules and their codes: states, flags, classes, reasons for rejection.

Words are text in files and messages. Here each is a small integer, its place in the tuple that
lists it, so that a million of them are one array. Names and numbers of health states are Ozone's,
so reports of both look alike.
"""

from enum import IntEnum
from typing import Final

REPLICATION_TYPES: Final = ("RATIS", "EC", "STAND_ALONE")
CONTAINER_STATES: Final = (
    "OPEN",
    "CLOSING",
    "QUASI_CLOSED",
    "CLOSED",
    "DELETING",
    "DELETED",
    "RECOVERING",
)
REPLICA_STATES: Final = (
    "OPEN",
    "CLOSING",
    "QUASI_CLOSED",
    "CLOSED",
    "UNHEALTHY",
    "RECOVERING",
    "INVALID",
    "DELETED",
)
NODE_HEALTHS: Final = ("HEALTHY", "STALE", "DEAD", "HEALTHY_READONLY")
OP_STATES: Final = (
    "IN_SERVICE",
    "DECOMMISSIONING",
    "DECOMMISSIONED",
    "ENTERING_MAINTENANCE",
    "IN_MAINTENANCE",
)
OPS: Final = ("ADD", "DELETE", "RECONCILE", "CLOSE")
TREE_STATES: Final = ("CLOSED", "QUASI_CLOSED", "UNHEALTHY")
"""Replica states in which a root means something."""

COUNTED_STATES: Final = ("OPEN", "CLOSING", *TREE_STATES)
"""A replica that is being deleted, is invalid or still arrives is no replica."""

REACHABLE_HEALTHS: Final = ("HEALTHY", "HEALTHY_READONLY")
UNKNOWN: Final = -1
"""The code of a word that is not there: of a container that only replicas name, for instance."""


class ReplicationType(IntEnum):
    """The replication type of a container."""

    RATIS = 0
    EC = 1
    STAND_ALONE = 2


class SharedState(IntEnum):
    """States that containers and replicas share, with the same codes."""

    OPEN = 0
    CLOSING = 1
    QUASI_CLOSED = 2
    CLOSED = 3


class ContainerOnlyState(IntEnum):
    """States of containers only."""

    DELETING = 4
    DELETED = 5
    RECOVERING = 6


UNHEALTHY: Final = REPLICA_STATES.index("UNHEALTHY")
"""Code of the replica state."""

RECOVERING: Final = REPLICA_STATES.index("RECOVERING")
"""Code of the replica state: it is arriving."""


class NodeHealth(IntEnum):
    """A node's health by its last heartbeat."""

    HEALTHY = 0
    STALE = 1
    DEAD = 2
    HEALTHY_READONLY = 3


class ServiceState(IntEnum):
    """Operational states, reduced to the three that are counted separately."""

    IN_SERVICE = 0
    DECOMMISSION = 1
    """Decommissioning or decommissioned: counts as no replica, may be read."""
    MAINTENANCE = 2
    """Entering or in maintenance: counts as one that will be back."""


SERVICE_OF: Final = {
    "IN_SERVICE": ServiceState.IN_SERVICE,
    "DECOMMISSIONING": ServiceState.DECOMMISSION,
    "DECOMMISSIONED": ServiceState.DECOMMISSION,
    "ENTERING_MAINTENANCE": ServiceState.MAINTENANCE,
    "IN_MAINTENANCE": ServiceState.MAINTENANCE,
}


class PendingOpKind(IntEnum):
    """The kinds of pending operations for a container on a datanode."""

    ADD = 0
    DELETE = 1
    RECONCILE = 2
    CLOSE = 3


class HealthState(IntEnum):
    """Ozone's health states and numbers; a container has one, the last that its chain set."""

    HEALTHY = 0
    UNDER_REPLICATED = 1
    MIS_REPLICATED = 2
    OVER_REPLICATED = 3
    MISSING = 4
    UNHEALTHY = 5
    EMPTY = 6
    OPEN_UNHEALTHY = 7
    QUASI_CLOSED_STUCK = 8
    OPEN_WITHOUT_PIPELINE = 9
    UNHEALTHY_UNDER_REPLICATED = 100
    UNHEALTHY_OVER_REPLICATED = 101
    MISSING_UNDER_REPLICATED = 102
    QUASI_CLOSED_STUCK_UNDER_REPLICATED = 103
    QUASI_CLOSED_STUCK_OVER_REPLICATED = 104
    QUASI_CLOSED_STUCK_MISSING = 105


FLAGS: Final = (
    "MISSING",
    "UNDER_REPLICATED",
    "OVER_REPLICATED",
    "MIS_REPLICATED",
    "UNHEALTHY",
    "EMPTY",
    "OPEN_UNHEALTHY",
    "OPEN_WITHOUT_PIPELINE",
    "QUASI_CLOSED_STUCK",
    "VULNERABLE",
    "UNHEALTHY_REPLICA",
    "UNHEALTHY_EXCESS",
    "MISMATCHED_STATE",
    "ROOTS_DIFFER",
    "TOMBSTONES_DIFFER",
    "UNREACHABLE_DIFFERS",
    "SCAN_FINDINGS",
    "DATA_AT_RISK",
    "CONTRADICTORY",
)
"""Independent conditions, which hide nothing of each other; bit i of a mask is the i-th name."""

QUEUES: Final = ("-", "U", "O")
"""The queue of Ozone's replication manager: none, under- or over-replicated."""


class Queue(IntEnum):
    """Codes of `QUEUES`."""

    NONE = 0
    UNDER = 1
    OVER = 2


CLASSES: Final = (
    "CONTRADICTORY",
    "MISMATCH_SPLIT",
    "MISMATCH_MINORITY",
    "PARTIAL",
    "UNKNOWN",
    "NOT_COMPARABLE",
    "SINGLE",
    "EMPTY",
    "EXPLAINED",
    "MATCH",
)
"""Classes of a container's roots, from worst to best: the order of reports."""

INCOMPARABLE: Final = ("NOT_CLOSED", "NO_REPLICA_ANSWERS", "SHARDS_ALONE", "TREES_OF_OTHER_KINDS")
"""Why a container is NOT_COMPARABLE; the first that holds."""


class Incomparable(IntEnum):
    """Codes of `INCOMPARABLE`."""

    NOT_CLOSED = 0
    """Its replicas are still written, or on their way out: they may differ."""
    NO_REPLICA_ANSWERS = 1
    SHARDS_ALONE = 2
    """Erasure-coded, and no shard is there twice: shards differ by their nature."""
    TREES_OF_OTHER_KINDS = 3
    """Its trees were made by several algorithms, of which no two replicas have the same."""


DISPUTED: Final = CLASSES[:3]
"""It is unknown which of the answering replicas is right."""

DIFFERING: Final = (*DISPUTED, "EXPLAINED")
"""Replicas reported other roots, or say that they contradict each other."""


class ChecksumClass(IntEnum):
    """Codes of `CLASSES`; up to MISMATCH_MINORITY it is unknown which replica is right."""

    CONTRADICTORY = 0
    """A replica reports that a peer contradicts it though both are right by their own rows,
    whatever the roots say: a person decides."""
    MISMATCH_SPLIT = 1
    """Roots differ, and no majority holds one of them."""
    MISMATCH_MINORITY = 2
    """Roots differ; one is held by at least two and by more than any other."""
    PARTIAL = 3
    """The known roots agree, some are not known."""
    UNKNOWN = 4
    """No root is known."""
    NOT_COMPARABLE = 5
    """Nothing that may be compared with anything."""
    SINGLE = 6
    """A single replica answers."""
    EMPTY = 7
    """No replica, or none that holds a block."""
    EXPLAINED = 8
    """Roots differ because trees were made in different ways; the replicas hold the same."""
    MATCH = 9
    """All roots are known and equal."""


ELIGIBILITY: Final = (
    "OK",
    "CONTAINER_NOT_FOUND",
    "INELIGIBLE_CONTAINER_STATE",
    "NO_REPLICAS_FOUND",
    "INELIGIBLE_REPLICA_STATES",
    "INELIGIBLE_REPLICATION_TYPE",
    "NOT_ENOUGH_REQUIRED_NODES",
    "NOT_ENOUGH_REACHABLE_REPLICAS",
    "RECONCILE_PENDING",
)
"""Eligibility for a reconcile: Ozone's result codes in Ozone's order, then two of ours: no
reachable peer, and a reconcile that is already running."""

ROLES: Final = ("VULNERABLE", "UNHEALTHY", "STALE", "MATCHING", "MISMATCHED")
"""The role of a replica in its container; the first that applies."""

ACTIONS: Final = ("replicate", "reconstruct", "delete", "close", "scan")


class Action(IntEnum):
    """Codes of `ACTIONS`."""

    REPLICATE = 0
    RECONSTRUCT = 1
    DELETE = 2
    CLOSE = 3
    SCAN = 4


def flag_bit(name: str) -> int:
    """Return the bit of a flag."""
    return 1 << FLAGS.index(name)


def flag_names(flags: int) -> list[str]:
    """Return the names of the bits that are set."""
    return [name for i, name in enumerate(FLAGS) if flags >> i & 1]


def states_counted(health: int, *, is_stuck: bool) -> list[int]:
    """Return every state that Ozone's report counts: stuck is counted in addition to others."""
    stuck = int(HealthState.QUASI_CLOSED_STUCK)
    if not is_stuck:
        return [health] if health else []
    return [stuck] if health in (0, stuck) else [stuck, health]
