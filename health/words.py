"""The words of the health rules and their codes: states, conditions, classes, reasons for
rejection.

Files and messages contain the words. The rules use a small integer for each word, so that a million
values are one array. The integer is the index of the word in the tuple that lists it. The names and
numbers of health states are Ozone's.
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
"""Replica states with a valid root."""

COUNTED_STATES: Final = ("OPEN", "CLOSING", *TREE_STATES)
"""States in which a replica counts towards the number of replicas of its container: all except
deleted, invalid and arriving."""

REACHABLE_HEALTHS: Final = ("HEALTHY", "HEALTHY_READONLY")
UNKNOWN: Final = -1
"""Code of a missing word, for instance for the type of a container that only the datanodes
report."""


class ReplicationType(IntEnum):
    """The replication type of a container."""

    RATIS = 0
    EC = 1
    STAND_ALONE = 2


class SharedState(IntEnum):
    """States that both containers and replicas may have, with the same codes."""

    OPEN = 0
    CLOSING = 1
    QUASI_CLOSED = 2
    CLOSED = 3


class ContainerOnlyState(IntEnum):
    """States that only containers may have."""

    DELETING = 4
    DELETED = 5
    RECOVERING = 6


UNHEALTHY: Final = REPLICA_STATES.index("UNHEALTHY")
"""Code of UNHEALTHY in `REPLICA_STATES`."""

RECOVERING: Final = REPLICA_STATES.index("RECOVERING")
"""Code of RECOVERING in `REPLICA_STATES`, the state of an arriving replica."""


class NodeHealth(IntEnum):
    """The health of a node, determined by its last heartbeat."""

    HEALTHY = 0
    STALE = 1
    DEAD = 2
    HEALTHY_READONLY = 3


class ServiceState(IntEnum):
    """The operational state of a node, reduced to the three values that are counted separately."""

    IN_SERVICE = 0
    DECOMMISSION = 1
    """The node is decommissioning or decommissioned: its replicas do not count, but may be read."""
    MAINTENANCE = 2
    """The node enters or is in maintenance: its replicas are expected to return."""


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
    """Ozone's health states and their numbers. A container has one health state."""

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
"""Conditions of a container; several may apply. In a set of conditions, bit i stands for the name
with index i."""

QUEUES: Final = ("-", "U", "O")
"""The queue of Ozone's replication manager that a container is in: none, under-replicated,
over-replicated."""


class Queue(IntEnum):
    """Codes of `QUEUES`, the queues of Ozone's replication manager."""

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
"""Results of the comparison of a container's roots, from worst to best. Reports use this order."""

INCOMPARABLE: Final = ("NOT_CLOSED", "NO_REPLICA_ANSWERS", "SHARDS_ALONE", "TREES_OF_OTHER_KINDS")
"""Reasons why the roots of a container are NOT_COMPARABLE. If several apply, the first is used."""


class Incomparable(IntEnum):
    """Codes of `INCOMPARABLE`, the reasons why a container is NOT_COMPARABLE."""

    NOT_CLOSED = 0
    """Clients still write the replicas, or the replicas are being deleted. Therefore they may
    differ."""
    NO_REPLICA_ANSWERS = 1
    SHARDS_ALONE = 2
    """The container is erasure-coded, and no index has two replicas. Shards of different indexes
    have different data."""
    TREES_OF_OTHER_KINDS = 3
    """No two replicas have trees of the same algorithm."""


DISPUTED: Final = CLASSES[:3]
"""Results of the comparison for which it is unknown which of the available replicas is correct."""

DIFFERING: Final = (*DISPUTED, "EXPLAINED")
"""Results of the comparison with different reported roots, or with a contradiction that a datanode
reported."""


class ChecksumClass(IntEnum):
    """Codes of `CLASSES`, the results of the comparison of a container's roots. For codes up to
    MISMATCH_MINORITY, it is unknown which replica is correct."""

    CONTRADICTORY = 0
    """A datanode reports that two replicas have intact stored checksums that disagree, whether or
    not the roots differ. An operator must decide."""
    MISMATCH_SPLIT = 1
    """Roots differ, and no root has a majority."""
    MISMATCH_MINORITY = 2
    """Roots differ; one root has at least two replicas, and more replicas than any other root."""
    PARTIAL = 3
    """The known roots are equal, and some roots are unknown."""
    UNKNOWN = 4
    """No root is known."""
    NOT_COMPARABLE = 5
    """No two replicas can be compared."""
    SINGLE = 6
    """Only one replica is available."""
    EMPTY = 7
    """No replica exists, or no replica has a block."""
    EXPLAINED = 8
    """Reported roots differ only because different programs built the trees; the data is equal."""
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
"""Results of the check whether a container may be reconciled: Ozone's codes in Ozone's order, then
two codes of Suture for no reachable peer and for a reconcile that is already running."""

ROLES: Final = ("VULNERABLE", "UNHEALTHY", "STALE", "MATCHING", "MISMATCHED")
"""The role of a replica in its container. If several apply, the first is used."""

ACTIONS: Final = ("replicate", "reconstruct", "delete", "close", "scan")


class Action(IntEnum):
    """Codes of `ACTIONS`, the actions of a plan."""

    REPLICATE = 0
    RECONSTRUCT = 1
    DELETE = 2
    CLOSE = 3
    SCAN = 4


def flag_bit(name: str) -> int:
    """Return the integer in which only the bit of the condition `name` is set."""
    return 1 << FLAGS.index(name)


def flag_names(flags: int) -> list[str]:
    """Return the names of the conditions whose bits are set in `flags`."""
    return [name for i, name in enumerate(FLAGS) if flags >> i & 1]


def states_counted(health: int, *, is_stuck: bool) -> list[int]:
    """Return the health states under which Ozone's report counts a container of state `health`. A
    stuck quasi-closed container is also counted as QUASI_CLOSED_STUCK."""
    stuck = int(HealthState.QUASI_CLOSED_STUCK)
    if not is_stuck:
        return [health] if health else []
    return [stuck] if health in (0, stuck) else [stuck, health]
