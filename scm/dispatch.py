"""Which commands may leave now, and which have waited too long. Pure.

A datanode's load is what it reports as queued and running, or what we sent and it has not
answered, whichever is more: its report may be older than our last answer. Reconcile has a budget
of its own and yields to replication, so that mending what differs never delays replacing what is
missing (health-rules 4.5 describes the incumbent's starvation).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from scm.facts import Kind, OpState, Pending, Priority

REPLICATION_LIMIT: Final = 20  # weighted replications and reconstructions at one datanode
OUT_OF_SERVICE_FACTOR: Final = 2  # a node that serves no writes has that much more to give
OUT_OF_SERVICE_LIMIT: Final = REPLICATION_LIMIT * OUT_OF_SERVICE_FACTOR
DELETE_LIMIT: Final = 40  # not scaled: deletes cost the disk the same in any state
REPLICATE_TYPE: Final = "replicate"  # as in `QueueCount.type`
RECONSTRUCT_TYPE: Final = "reconstruct"
RECONSTRUCT_WEIGHT: Final = 3  # one reconstruction reads from several sources
RECONCILE_LIMIT: Final = 10  # never more than a datanode's pool runs at once
CLOSE_LIMIT: Final = 100  # cheap, and writers wait for them

QUEUE_MAX: Final = 5_000  # commands waiting for one datanode; more are refused
COMMANDS_PER_HEARTBEAT_MAX: Final = 100
QUEUED_AGE_S_MAX: Final = 1_800  # a plan this old is not this world's any more

assert OUT_OF_SERVICE_LIMIT == 40
assert COMMANDS_PER_HEARTBEAT_MAX <= QUEUE_MAX

# Closing comes first: until a container is closed, nothing else can be done for it.
_ORDER: Final = (Kind.CLOSE, Kind.DELETE, Kind.RECONCILE)


def replication_limit(op_state: OpState) -> int:
    """Return how many weighted replications a datanode may have."""
    return REPLICATION_LIMIT if op_state is OpState.IN_SERVICE else OUT_OF_SERVICE_LIMIT


def replication_load(reported: Mapping[str, int]) -> int:
    """Return the weighted replications a datanode has queued or running."""
    return reported.get(REPLICATE_TYPE, 0) + RECONSTRUCT_WEIGHT * reported.get(RECONSTRUCT_TYPE, 0)


def limit(kind: Kind, op_state: OpState, reported: Mapping[str, int]) -> int:
    """Return how many commands of a kind a datanode may have at once."""
    match kind:
        case Kind.CLOSE:
            return CLOSE_LIMIT
        case Kind.DELETE:
            return DELETE_LIMIT
        case Kind.RECONCILE:
            is_saturated = replication_load(reported) >= replication_limit(op_state)
            return 0 if is_saturated else RECONCILE_LIMIT


def drain(
    pending: Sequence[Pending], *, reported: Mapping[str, int], op_state: OpState
) -> list[Pending]:
    """Return the queued commands of one datanode that may be sent now.

    NORMAL before LOW, then oldest first; never above a kind's limit or the size of one answer.
    """
    in_flight = Counter(command.kind for command in pending if command.sent_at_s is not None)
    sending: list[Pending] = []
    for kind in _ORDER:
        queued = sorted(
            (command for command in pending if command.kind is kind and command.sent_at_s is None),
            key=lambda command: (command.priority is Priority.LOW, command.command_id),
        )
        busy = max(reported.get(kind, 0), in_flight[kind])
        room = min(
            limit(kind, op_state, reported) - busy, COMMANDS_PER_HEARTBEAT_MAX - len(sending)
        )
        sending += queued[: max(0, room)]
    return sending


def lost(
    pending: Sequence[Pending], *, reported: Mapping[str, int], now_s: float, patience_s: float
) -> list[Pending]:
    """Return commands to send again, as queued ones.

    The datanode has called since, says that nothing of that kind waits or runs there, and did not
    answer: the heartbeat's answer that carried them was lost. A datanode that got them after all
    drops the repetition by its id.
    """
    return [
        replace(command, sent_at_s=None, deadline_ms=0)
        for command in pending
        if command.sent_at_s is not None
        and now_s - command.sent_at_s > patience_s
        and not reported.get(command.kind, 0)
    ]


def expired(pending: Sequence[Pending], *, now_s: float, deadline_s: float) -> list[Pending]:
    """Return commands to give up: unanswered for `deadline_s`, or queued until stale."""
    return [
        command
        for command in pending
        if (command.sent_at_s is not None and now_s - command.sent_at_s > deadline_s)
        or (command.sent_at_s is None and now_s - command.queued_at_s > QUEUED_AGE_S_MAX)
    ]


def backoff_s(attempts: int, *, first_s: float) -> float:
    """Return the pause before attempt `attempts` + 1: doubles up to 64 times the first."""
    assert attempts >= 1
    return first_s * float(2 ** min(attempts - 1, 6))
