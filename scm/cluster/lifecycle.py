"""The states of a container from OPEN to CLOSED, and the close commands that are due. No I/O.

Reports of datanodes change the state of a container:

- OPEN becomes CLOSING when the writes end, or when one of the replicas is no longer open.
- CLOSING becomes CLOSED when a replica is closed with all commits.
- CLOSING becomes QUASI_CLOSED when a replica is closed without all commits, or when no replica is
  open.
- CLOSING becomes DELETED if the container was never written. Only its row is removed, because there
  is no data.
- QUASI_CLOSED becomes CLOSED when a replica is closed with all commits.

The writer reports the last committed bcsid (block commit sequence id). A replica with a lower bcsid
is closed as QUASI_CLOSED. A reconcile then copies the missing commits. The replica becomes CLOSED
when its tree equals the tree of a CLOSED replica. If no replica is CLOSED, `health.quasi_closed`
decides when a QUASI_CLOSED container may close.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from health.batch import NO_BCSID
from health.quasi_closed import Obstacle, majority
from health.quasi_closed import close_obstacle as obstacle_of
from merkle.diff import SummaryComparison, compare
from merkle.replica import ReplicaState
from scm.state.entities import Container, ContainerState, Replica


class ContainerEvent(StrEnum):
    """An event that can change a container's state."""

    WRITES_ENDED = "WRITES_ENDED"  # finished, full, idle, or ordered by an operator
    REPLICA_LEFT_OPEN = "REPLICA_LEFT_OPEN"  # a datanode closed its replica to writes by itself
    CLOSED_BEHIND = "CLOSED_BEHIND"  # a replica is closed without all commits
    NONE_WRITABLE = "NONE_WRITABLE"  # no replica is open any more, and none is known to be complete
    CLOSED_COMPLETE = "CLOSED_COMPLETE"  # a replica is CLOSED with all commits
    GIVEN_UP = (
        "GIVEN_UP"  # commits that no closed replica has are lost (`scm.containers.close_rules`)
    )
    NEVER_WRITTEN = "NEVER_WRITTEN"  # no datanode ever had a replica, and nothing was committed
    REPLICA_SEEN = "REPLICA_SEEN"  # a replica of a container that was assumed never written
    EMPTIED = "EMPTIED"  # every replica is empty, and no key needs the container
    CLEANED_UP = "CLEANED_UP"  # the last replica of a deleted container is gone
    RETURNED_CLOSED = "RETURNED_CLOSED"  # a CLOSED replica with data of a deleted container
    RETURNED = "RETURNED"  # a replica with data of a deleted container, not CLOSED


NEXT: Final[Mapping[tuple[ContainerState, ContainerEvent], ContainerState]] = {
    (ContainerState.OPEN, ContainerEvent.WRITES_ENDED): ContainerState.CLOSING,
    (ContainerState.OPEN, ContainerEvent.REPLICA_LEFT_OPEN): ContainerState.CLOSING,
    (ContainerState.CLOSING, ContainerEvent.CLOSED_BEHIND): ContainerState.QUASI_CLOSED,
    (ContainerState.CLOSING, ContainerEvent.NONE_WRITABLE): ContainerState.QUASI_CLOSED,
    (ContainerState.CLOSING, ContainerEvent.CLOSED_COMPLETE): ContainerState.CLOSED,
    (ContainerState.CLOSING, ContainerEvent.NEVER_WRITTEN): ContainerState.DELETED,
    (ContainerState.QUASI_CLOSED, ContainerEvent.CLOSED_COMPLETE): ContainerState.CLOSED,
    (ContainerState.CLOSING, ContainerEvent.GIVEN_UP): ContainerState.CLOSED,
    (ContainerState.QUASI_CLOSED, ContainerEvent.GIVEN_UP): ContainerState.CLOSED,
    (ContainerState.DELETED, ContainerEvent.REPLICA_SEEN): ContainerState.CLOSING,
    (ContainerState.CLOSED, ContainerEvent.EMPTIED): ContainerState.DELETING,
    (ContainerState.QUASI_CLOSED, ContainerEvent.EMPTIED): ContainerState.DELETING,
    (ContainerState.DELETING, ContainerEvent.CLEANED_UP): ContainerState.DELETED,
    (ContainerState.DELETING, ContainerEvent.RETURNED_CLOSED): ContainerState.CLOSED,
    (ContainerState.DELETED, ContainerEvent.RETURNED_CLOSED): ContainerState.CLOSED,
    (ContainerState.DELETING, ContainerEvent.RETURNED): ContainerState.QUASI_CLOSED,
    (ContainerState.DELETED, ContainerEvent.RETURNED): ContainerState.QUASI_CLOSED,
}
"""The next state for each pair of state and event.

Any other pair changes nothing.
"""

CLOSED_STATES: Final = frozenset({ReplicaState.QUASI_CLOSED, ReplicaState.CLOSED})
_WRITABLE: Final = frozenset({ReplicaState.OPEN, ReplicaState.CLOSING})
_WITNESSES: Final = CLOSED_STATES | _WRITABLE | {ReplicaState.UNHEALTHY}
_OVER: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})
_DECIDED: Final = frozenset({ContainerState.CLOSED, ContainerState.DELETING})
"""Container states in which the last commit of the container does not change any more."""


@dataclass(frozen=True, slots=True)
class CloseCommand:
    """A close command that is due for one replica."""

    datanode_id: str
    bcsid: int
    force: bool


def advance(container: Container, event: ContainerEvent, *, now_ms: int) -> Container:
    """Return the container in the state after `event`.

    Return it unchanged if the event does not apply to its state.
    """
    state = NEXT.get((container.state, event))
    if state is None:
        return container
    return replace(container, state=state, state_since_ms=now_ms)


def end_writes(container: Container, reason: str, *, now_ms: int) -> Container:
    """Return an OPEN container as CLOSING. Return any other container unchanged.

    `reason` is shown to operators.
    """
    if container.state is not ContainerState.OPEN:
        return container
    closing = advance(container, ContainerEvent.WRITES_ENDED, now_ms=now_ms)
    return replace(closing, is_sealed=True, close_reason=reason)


def close_at(container: Container, bcsid: int, reason: str, *, now_ms: int) -> Container:
    """Return a CLOSING or QUASI_CLOSED container as CLOSED at the commit `bcsid`.

    Later commits are lost. Close commands then become due for its replicas.
    """
    closed = advance(container, ContainerEvent.GIVEN_UP, now_ms=now_ms)
    return replace(closed, sequence_id=bcsid, is_sealed=True, close_reason=reason)


def with_observed_state(
    container: Container, replicas: Sequence[Replica], *, now_ms: int
) -> Container:
    """Return the container in the state that results from the states of its replicas."""
    if container.state in _OVER and is_written(container):
        return container  # `scm.containers.empty_container_rules` decides about it
    if container.state not in _DECIDED:
        sequence_id = _sequence_id(container, replicas)
        if sequence_id != container.sequence_id:
            container = replace(container, sequence_id=sequence_id)
    reported = {replica.datanode_id for replica in replicas}
    awaited = tuple(node for node in container.pipeline if node not in reported)
    for event in _events(container, replicas, is_awaiting=bool(awaited)):
        container = advance(container, event, now_ms=now_ms)
    if container.state is ContainerState.OPEN or not container.pipeline:
        return container
    return replace(container, pipeline=awaited)


def without_replica(container: Container, datanode_id: str) -> Container:
    """Return a copy of the container whose pipeline lacks a datanode that has no replica."""
    awaited = tuple(node for node in container.pipeline if node != datanode_id)
    return replace(container, pipeline=awaited)


def is_written(container: Container) -> bool:
    """Return True if a container ever had data.

    If a container without data was deleted, any replica that appears restores it.
    """
    return container.sequence_id > 0 or container.committed_count > 0


def is_complete(container: Container, replica: Replica) -> bool:
    """Return True if a replica is CLOSED and has all commits of its container."""
    return replica.state is ReplicaState.CLOSED and replica.bcsid >= container.sequence_id


def closes_due(
    container: Container, replicas: Sequence[Replica], *, acknowledged_bcsid: int | None = None
) -> list[CloseCommand]:
    """Return the close commands that are due for the replicas of a container.

    They are sorted by datanode id. An open replica of a deleted container is closed, so that it
    gets no more data before `scm.containers.empty_container_rules` decides about it.
    `acknowledged_bcsid` is the last commit that any key needed; it is None if that is uncertain.
    """
    bcsid = container.sequence_id
    if container.state is ContainerState.DELETED and is_written(container):
        late = (r for r in replicas if r.state in _WRITABLE and not (r.is_empty or r.load_error))
        nodes = sorted(r.datanode_id for r in late if r.bcsid <= bcsid)
        return [CloseCommand(node, bcsid, force=False) for node in nodes]
    if container.state not in {
        ContainerState.CLOSING,
        ContainerState.QUASI_CLOSED,
        ContainerState.CLOSED,
    }:
        return []
    orders = {node: CloseCommand(node, bcsid, force=False) for node in container.pipeline}
    for replica in replicas:
        orders.pop(replica.datanode_id, None)
        if replica.load_error:
            continue
        if replica.state in _WRITABLE:
            orders[replica.datanode_id] = CloseCommand(replica.datanode_id, bcsid, force=False)
        elif replica.state is ReplicaState.QUASI_CLOSED and replica.bcsid >= bcsid:
            order = _final_close(container, replica, replicas)
            if order is not None:
                orders[replica.datanode_id] = order
        elif acknowledged_bcsid is not None and _has_all_that_counts(
            container, replica, replicas, acknowledged_bcsid
        ):
            orders[replica.datanode_id] = CloseCommand(replica.datanode_id, bcsid, force=True)
    return [orders[node] for node in sorted(orders)]


def close_obstacle(
    container: Container, replicas: Sequence[Replica], *, acknowledged_bcsid: int
) -> Obstacle:
    """Return why a container cannot be closed at the last commit of its closed replicas.

    Return Obstacle.NONE if it can be closed.
    """
    closed = [r for r in replicas if r.state in CLOSED_STATES and not r.load_error]
    others = [r.bcsid for r in replicas if r not in closed and r.state in _WITNESSES]
    found = obstacle_of(
        last=readable_bcsid(container, closed) if closed else NO_BCSID,
        other_last=max(others, default=NO_BCSID),
        acknowledged=acknowledged_bcsid,
        origin_count=len(origins(container, replicas)),
        required_count=container.data_count
        if container.scheme
        else majority(container.replication_factor),
    )
    return Obstacle(int(found))


def origins(container: Container, replicas: Sequence[Replica]) -> set[str]:
    """Return the origins of the replicas that accept no more writes.

    The origin of a replica is the datanode that its writer wrote to, even if the replica was copied
    later. The origin of a shard is its index.
    """
    seen = CLOSED_STATES | {ReplicaState.UNHEALTHY}
    return {
        str(r.replica_index) if container.scheme else r.origin_datanode_id or r.datanode_id
        for r in replicas
        if r.state in seen and not r.load_error
    }


def readable_bcsid(container: Container, held: Sequence[Replica]) -> int:
    """Return the last commit that can be read from these replicas.

    For an erasure-coded container, this is the last commit that at least `data_count` shards have.
    """
    best: dict[int, int] = {}
    for r in held:
        index = r.replica_index  # 0 for a whole copy
        best[index] = max(best.get(index, 0), r.bcsid)
    ranked = sorted(best.values(), reverse=True)
    return ranked[min(container.data_count, len(ranked)) - 1]


def _final_close(
    container: Container, replica: Replica, replicas: Sequence[Replica]
) -> CloseCommand | None:
    """Return the command that closes a QUASI_CLOSED replica that has all commits.

    Return None if the data of the replica is not proven to be correct. If a CLOSED replica has all
    commits, the trees of both replicas must be equal, because an equal bcsid does not prove equal
    data. Shards are only compared with shards of the same index.

    If there is no such replica, the bcsid is the only evidence. Then enough origins must have
    reported their replicas, and the datanode checks the bcsid again.
    """
    bcsid = container.sequence_id
    closed = [
        other
        for other in replicas
        if is_complete(container, other) and other.replica_index == replica.replica_index
    ]
    if not closed:
        is_asked = container.state is ContainerState.QUASI_CLOSED and not container.scheme
        if is_asked and close_obstacle(container, replicas, acknowledged_bcsid=bcsid):
            return None
        return CloseCommand(replica.datanode_id, bcsid, force=False)
    tree = replica.tree
    proven = tree is not None and any(
        other.tree is not None and compare(tree, other.tree) is SummaryComparison.EQUAL
        for other in closed
    )
    if not proven:
        return None
    return CloseCommand(replica.datanode_id, bcsid, force=True)


def _has_all_that_counts(
    container: Container, replica: Replica, replicas: Sequence[Replica], acknowledged_bcsid: int
) -> bool:
    """Return True if a quasi-closed shard can be closed although it lacks commits.

    That is the case if the missing commits were not acknowledged and no shard of its index is
    complete. A client that fails leaves such commits on some datanodes, and a closed container
    accepts no more commits. Containers without erasure code are excluded, because reconciles make
    their replicas equal.
    """
    return (
        container.state is ContainerState.CLOSED
        and bool(container.scheme)
        and replica.state is ReplicaState.QUASI_CLOSED
        and replica.bcsid >= acknowledged_bcsid
        and not any(
            is_complete(container, other) and other.replica_index == replica.replica_index
            for other in replicas
        )
    )


def _sequence_id(container: Container, replicas: Sequence[Replica]) -> int:
    """Return the highest bcsid that the writer or a replica has committed.

    An UNHEALTHY replica does not count, because its metadata may be wrong.
    """
    held = (r.bcsid for r in replicas if r.state is not ReplicaState.UNHEALTHY)
    return max([container.sequence_id, *held])


def _events(
    container: Container, replicas: Sequence[Replica], *, is_awaiting: bool
) -> list[ContainerEvent]:
    """Return the events that result from the states of the replicas.

    `is_awaiting` is True if a datanode of the pipeline has not reported its replica yet.
    """
    if not replicas:
        is_unwritten = not container.pipeline and not container.committed_count
        return [ContainerEvent.NEVER_WRITTEN] if is_unwritten else []
    events = [ContainerEvent.REPLICA_SEEN]
    states = {replica.state for replica in replicas}
    if states - {ReplicaState.OPEN, ReplicaState.RECOVERING}:
        events.append(ContainerEvent.REPLICA_LEFT_OPEN)
    if any(is_complete(container, replica) for replica in replicas):
        events.append(ContainerEvent.CLOSED_COMPLETE)
    elif states & {ReplicaState.QUASI_CLOSED, ReplicaState.CLOSED}:
        events.append(ContainerEvent.CLOSED_BEHIND)
    elif not states & _WRITABLE and not is_awaiting:
        events.append(ContainerEvent.NONE_WRITABLE)
    return events
