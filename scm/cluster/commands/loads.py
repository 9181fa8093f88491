"""Computes the load of each datanode, and chooses the datanode for the next command. No I/O.

The load of a kind of command is the sum of three numbers: the commands that the datanode last
reported, the commands sent since that report, and the commands that are still queued. If more
commands are sent and unanswered than the first two numbers together, that number is used instead of
the two.

LOW commands are not counted, because a datanode runs them only if it has no other work. A
datanode's report includes its LOW commands. Therefore, the LOW commands sent before the report are
subtracted from the reported number. The balancer's LOW commands thus never delay urgent commands.
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
    """Return the limit on replications for a datanode in service with `volume_count` volumes.

    The limit is at least `replications`. A reconstruction counts as three replications.
    """
    return max(replications, min(VOLUME_REPLICATIONS_MAX, volume_count * VOLUME_REPLICATIONS))


def replication_limit(op_state: OpState, replications: int = REPLICATION_LIMIT) -> int:
    """Return the limit on replications for a datanode in this operational state.

    `replications` is the limit that the datanode has while it is in service. A reconstruction
    counts as three replications.
    """
    return replications * (1 if op_state is OpState.IN_SERVICE else OUT_OF_SERVICE_FACTOR)


def busy_count(
    kind: CommandKind, pending: Sequence[PendingCommand], *, reported_count: int, heard_at_s: float
) -> int:
    """Return the number of urgent commands of a kind that a datanode has received and not answered.

    `reported_count` is the number in the datanode's last report, which arrived at `heard_at_s`.
    Commands that were sent later are added.
    """
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
    """Return the number of urgent commands of a kind that a datanode has or that wait for it."""
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
    """Return the datanode with the lowest load among those below their limits.

    Return None if all datanodes are at their limits.
    """
    loads = {node: load_of(node) for node in datanode_ids}
    allowed = [node for node in datanode_ids if loads[node] < limit_of(node)]
    return min(allowed, key=lambda node: (loads[node], node), default=None)


def in_flight_limit(limits_total: int, factor_percent: int) -> int:
    """Return the limit on the number of replicas that the cluster copies at once. 0 means no limit.

    `limits_total` is the sum of the limits of all healthy datanodes, and `factor_percent` is the
    share of it.
    """
    return ceil(limits_total * factor_percent / 100)
