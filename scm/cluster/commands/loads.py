"""Computes the load of each datanode and chooses the datanode that gets more work. No I/O.

The load of a kind is the sum of three numbers: the commands that the datanode last reported, those
sent with the answer to that report, and those still queued for it. If the number of all sent and
unanswered commands is higher than the first two together, it replaces them.

LOW commands are not counted, because a datanode runs them only if it has no other work. A
datanode's report may include LOW commands. Therefore the LOW commands that were sent before the
report are subtracted from it, so that the balancer never delays urgent commands.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final

from scm.state.entities import CommandKind, CommandPriority, OpState, PendingCommand

# The numbers are Ozone's (ReplicationManager); the first is an option, `replication_limit`.
REPLICATION_LIMIT: Final = 20  # weighted replications and reconstructions at one datanode
OUT_OF_SERVICE_FACTOR: Final = 2  # a node without writes has more capacity for copies
DELETE_LIMIT: Final = 40  # not scaled: a delete costs the disk the same in any operational state
RECONSTRUCT_TYPE: Final = "reconstruct"  # as in `QueueCount.type`
RECONSTRUCT_WEIGHT: Final = 3  # in copies: a reconstruction reads from several sources

VOLUME_REPLICATIONS: Final = 2  # copies per working volume, if more than the limit; as in agents
VOLUME_REPLICATIONS_MAX: Final = 128  # twice the most threads that an agent starts by default


def volume_limit(replications: int, volume_count: int) -> int:
    """Return how many weighted replications an in-service datanode with `volume_count` volumes may
    have; at least `replications`."""
    return max(replications, min(VOLUME_REPLICATIONS_MAX, volume_count * VOLUME_REPLICATIONS))


def replication_limit(op_state: OpState, replications: int = REPLICATION_LIMIT) -> int:
    """Return the limit of a datanode in this operational state. `replications` is its limit in
    service."""
    return replications * (1 if op_state is OpState.IN_SERVICE else OUT_OF_SERVICE_FACTOR)


def busy_count(
    kind: CommandKind, pending: Sequence[PendingCommand], *, reported_count: int, heard_at_s: float
) -> int:
    """Return the number of urgent commands of a kind at a datanode. The datanode's report
    (`reported_count`) may be older than the control plane's last answer to the datanode."""
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
    """Return the number of urgent commands of a kind that are at a datanode or queued for it."""
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
    """Return the least loaded datanode that is below its own limit; None if all are at their
    limits."""
    loads = {node: load_of(node) for node in datanode_ids}
    allowed = [node for node in datanode_ids if loads[node] < limit_of(node)]
    return min(allowed, key=lambda node: (loads[node], node), default=None)


def in_flight_limit(limits_total: int, factor_percent: int) -> int:
    """Return the cluster-wide limit on replicas in flight; 0 = no limit.

    `limits_total` is the sum of the limits of all healthy datanodes.
    """
    return ceil(limits_total * factor_percent / 100)
