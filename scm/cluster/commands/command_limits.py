"""Decides which commands may be sent now, and which commands have waited too long. No I/O.

`scm.cluster.commands.loads` counts the loads of the datanodes. Reconciles have a separate limit,
and replications have priority over reconciles. Therefore, a long queue of reconciles never delays
the replacement of a missing replica.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Final

from scm.cluster.commands.loads import (
    DELETE_LIMIT,
    RECONSTRUCT_WEIGHT,
    REPLICATION_LIMIT,
    busy_count,
    replication_limit,
)
from scm.state.entities import CommandKind, CommandPriority, OpState, PendingCommand

RECONCILE_LIMIT: Final = 10  # the most that an agent's thread pool runs at once
RECONCILE_WEIGHT: Final = 2  # in replications: a reconcile reads its own replica and a peer's
DELETE_BLOCKS_LIMIT: Final = 1  # one command carries many transactions
CLOSE_LIMIT: Final = 100  # cheap, and writers wait for them

QUEUE_MAX: Final = 5_000  # commands waiting for one datanode; more are rejected
COMMANDS_PER_HEARTBEAT_MAX: Final = 100
LOW_DEADLINE_FACTOR: Final = 4  # 48 minutes for a balancer's copy, with the default
BLOCK_S: Final = 0.05  # time per rebuilt block: a few calls, and a file created and synced
QUEUED_AGE_S_MAX: Final = 1_800  # an older command no longer matches the state

assert COMMANDS_PER_HEARTBEAT_MAX <= QUEUE_MAX

# Close commands come first: nothing else can be done for a container until it is closed.
_ORDER: Final = (
    CommandKind.SET_OPERATIONAL_STATE,
    CommandKind.REREGISTER,
    CommandKind.REFRESH_VOLUME_USAGE,
    CommandKind.CLOSE,
    CommandKind.REPLICATE,
    CommandKind.RECONSTRUCT,
    CommandKind.DELETE,
    CommandKind.DELETE_BLOCKS,
    CommandKind.RECONCILE,
)
assert len(_ORDER) == len(CommandKind)

OF_THE_NODE: Final = frozenset(
    {CommandKind.SET_OPERATIONAL_STATE, CommandKind.REREGISTER, CommandKind.REFRESH_VOLUME_USAGE}
)
"""Kinds of commands that concern no replica.

A datanode of another layout version may receive only these kinds.
"""

HARMLESS: Final = OF_THE_NODE | {CommandKind.CLOSE}
"""Kinds of commands that may be sent in safe mode.

They do not copy, change or delete the data of a replica.
"""


def limit(
    kind: CommandKind,
    op_state: OpState,
    replication_count: int,
    replications: int = REPLICATION_LIMIT,
) -> int:
    """Return how many urgent commands of a kind a datanode may have at once.

    `replication_count` is the datanode's number of other replications, in which a reconstruction
    counts as three copies. Reconstructions and reconciles may use the rest of the limit. The last
    reconstruction may exceed the limit, so seven reconstructions are allowed with a limit of 20.
    """
    room = replication_limit(op_state, replications) - replication_count
    match kind:
        case CommandKind.DELETE:
            return DELETE_LIMIT
        case CommandKind.REPLICATE:
            return max(0, room)
        case CommandKind.RECONSTRUCT:
            return max(0, ceil(room / RECONSTRUCT_WEIGHT))
        case CommandKind.RECONCILE:
            return max(0, min(RECONCILE_LIMIT, room // RECONCILE_WEIGHT))
        case CommandKind.DELETE_BLOCKS:
            return DELETE_BLOCKS_LIMIT
        case _:
            return CLOSE_LIMIT


def select_sendable(
    pending: Sequence[PendingCommand],
    *,
    reported: Mapping[str, int],
    op_state: OpState,
    heard_at_s: float = inf,
    replications: int = REPLICATION_LIMIT,
) -> list[PendingCommand]:
    """Return the queued commands of one datanode that may be sent now.

    NORMAL commands precede LOW commands, and older commands precede newer ones. The limit of each
    kind and the maximum number of commands per heartbeat are never exceeded. LOW commands use only
    the part of a limit that NORMAL commands leave free.
    """
    waiting = [c for c in pending if c.sent_at_s is None and not c.is_answered]
    if not waiting:
        return []  # the usual case in a heartbeat
    sending: list[PendingCommand] = []
    busy = {
        kind: busy_count(kind, pending, reported_count=reported.get(kind, 0), heard_at_s=heard_at_s)
        for kind in _ORDER
    }
    for kind in _ORDER:
        queued = sorted(
            (c for c in waiting if c.kind is kind),
            key=lambda command: command.command_id,
        )
        room = limit(kind, op_state, _beside(kind, busy), replications) - busy[kind]
        room = max(0, min(room, COMMANDS_PER_HEARTBEAT_MAX - len(sending)))
        urgent = [c for c in queued if c.priority is CommandPriority.NORMAL][:room]
        low = [c for c in queued if c.priority is CommandPriority.LOW]
        low_room = room - len(urgent) - _low_count(kind, pending)
        busy[kind] += len(urgent)
        sending += urgent + low[: max(0, low_room)]
    return sending


def _beside(kind: CommandKind, busy: Mapping[CommandKind, int]) -> int:
    """Return the number of a datanode's copies and reconstructions, without the commands of `kind`.

    A reconstruction counts as three copies.
    """
    copies = busy[CommandKind.REPLICATE]
    rebuilds = RECONSTRUCT_WEIGHT * busy[CommandKind.RECONSTRUCT]
    match kind:
        case CommandKind.REPLICATE:
            return rebuilds
        case CommandKind.RECONSTRUCT:
            return copies
        case _:
            return copies + rebuilds


def _low_count(kind: CommandKind, pending: Sequence[PendingCommand]) -> int:
    """Return the number of sent, unanswered commands of a kind with priority LOW."""
    return sum(
        c.kind is kind and c.sent_at_s is not None and not c.is_answered
        for c in pending
        if c.priority is CommandPriority.LOW
    )


def commands_to_resend(
    pending: Sequence[PendingCommand],
    *,
    reported: Mapping[str, int],
    now_s: float,
    patience_s: float,
) -> list[PendingCommand]:
    """Return the sent commands that must be sent again, marked as not sent.

    These commands were sent more than `patience_s` ago and are not answered, and the datanode
    reports no queued or running command of their kind. Therefore, the datanode probably did not
    receive the heartbeat answer with the command. If it did receive the command, it ignores the
    repetition, which has the same id.
    """
    return [
        replace(command, sent_at_s=None, deadline_ms=0)
        for command in pending
        if command.sent_at_s is not None
        and not command.is_answered
        and now_s - command.sent_at_s > patience_s
        and not reported.get(command.kind, 0)
    ]


def expired(
    pending: Sequence[PendingCommand], *, now_s: float, deadline_s: float, bytes_per_s: int = 0
) -> list[PendingCommand]:
    """Return the commands that must end: unanswered past their deadline, or queued for too long."""
    return [
        command
        for command in pending
        if is_late(command, now_s=now_s, first_s=deadline_s, bytes_per_s=bytes_per_s)
        or (command.sent_at_s is None and now_s - command.queued_at_s > QUEUED_AGE_S_MAX)
    ]


def deadline_s(command: PendingCommand, first_s: float, bytes_per_s: int = 0) -> float:
    """Return the maximum time in seconds for which a sent command may remain unanswered.

    It is `first_s`, or LOW_DEADLINE_FACTOR times as much for a LOW command, which waits for other
    commands. BLOCK_S is added for each rebuilt block, and the time to move the command's bytes at
    `bytes_per_s`. If `bytes_per_s` is 0, no time for bytes is added.
    """
    moving_s = command.size_bytes / bytes_per_s if bytes_per_s else 0.0
    moving_s += command.block_count * BLOCK_S
    return (
        first_s * (LOW_DEADLINE_FACTOR if command.priority is CommandPriority.LOW else 1) + moving_s
    )


def is_late(command: PendingCommand, *, now_s: float, first_s: float, bytes_per_s: int = 0) -> bool:
    """Return True if a command was sent and its deadline has passed without an answer."""
    if command.sent_at_s is None:
        return False
    return now_s - command.sent_at_s > deadline_s(command, first_s, bytes_per_s)
