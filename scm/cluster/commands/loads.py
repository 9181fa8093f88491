"""Computes the load of each datanode and decides which one gets more. Pure.

    load = what it reported + what was sent with the answer to that report + what waits here

or the commands sent and not answered, if they are more. LOW commands are not counted: they wait at
the datanode while it has other work. Its reported running commands may include LOW ones; those that
it is known to have are subtracted, so that the balancer never delays urgent commands.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from scm.state.entities import CommandKind, CommandPriority, OpState, PendingCommand

# The numbers are Ozone's (ReplicationManager); the first is an option, `replication_limit`.
REPLICATION_LIMIT: Final = 20  # weighted replications and reconstructions at one datanode
OUT_OF_SERVICE_FACTOR: Final = 2  # a node without writes has more capacity for copies
DELETE_LIMIT: Final = 40  # not scaled: deletes cost the disk the same in any state
RECONSTRUCT_TYPE: Final = "reconstruct"  # as in `QueueCount.type`
RECONSTRUCT_WEIGHT: Final = 3  # in copies: it reads from several sources

VOLUME_REPLICATIONS: Final = 2  # copies per working volume, if that is more; agents do the same
VOLUME_REPLICATIONS_MAX: Final = 128  # twice the most threads that an agent starts by default


def volume_limit(replications: int, volume_count: int) -> int:
    """Return how many weighted replications an in-service datanode with `volume_count` volumes may
    have; `replications` is the minimum.
    """
    return max(replications, min(VOLUME_REPLICATIONS_MAX, volume_count * VOLUME_REPLICATIONS))


def replication_limit(op_state: OpState, replications: int = REPLICATION_LIMIT) -> int:
    """Return the limit of a datanode that may have `replications` while in service."""
    return replications * (1 if op_state is OpState.IN_SERVICE else OUT_OF_SERVICE_FACTOR)


def busy_count(
    kind: CommandKind, pending: Sequence[PendingCommand], *, reported_count: int, heard_at_s: float
) -> int:
    """Return the urgent commands at a datanode; its report may be older than our last answer."""
    sent, low = (
        [
            command.sent_at_s
            for command in pending
            if command.kind is kind
            and command.sent_at_s is not None
            and not command.is_answered
            and command.priority is priority
        ]
        for priority in (CommandPriority.NORMAL, CommandPriority.LOW)
    )
    since = sum(sent_at_s >= heard_at_s for sent_at_s in sent)
    known_low = sum(sent_at_s < heard_at_s for sent_at_s in low)
    return max(len(sent), max(0, reported_count - known_low) + since)


def load(
    kind: CommandKind, pending: Sequence[PendingCommand], *, reported_count: int, heard_at_s: float
) -> int:
    """Return the commands of a kind that are at a datanode or wait here for it."""
    waiting = sum(
        command.kind is kind
        and command.sent_at_s is None
        and not command.is_answered
        and command.priority is CommandPriority.NORMAL
        for command in pending
    )
    busy = busy_count(kind, pending, reported_count=reported_count, heard_at_s=heard_at_s)
    return busy + waiting


def least_loaded(
    datanode_ids: Sequence[str], load_of: Callable[[str], int], limit_of: Callable[[str], int]
) -> str | None:
    """Return the least loaded datanode below its own limit; None if all are at theirs."""
    loads = {node: load_of(node) for node in datanode_ids}
    allowed = [node for node in datanode_ids if loads[node] < limit_of(node)]
    return min(allowed, key=lambda node: (loads[node], node), default=None)


def in_flight_limit(limits_total: int, factor_percent: int) -> int:
    """Return the cluster-wide limit on replicas in flight; 0 = no limit.

    `limits_total` is the sum of the limits of all healthy datanodes.
    """
    return ceil(limits_total * factor_percent / 100)
