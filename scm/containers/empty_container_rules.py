"""Rules for deleting an empty container, and for restoring a deleted one. No I/O.

A container is deleted when every replica reports that it is empty, no key needs the container, and
no delete of blocks is pending. Its replicas are then deleted without force, so each datanode checks
that its replica is empty.

If a replica with data appears later, it restores the container, because the records of the control
plane alone are not sufficient to delete data. A replica that has only blocks which were deleted is
deleted, too. If it is still open, it is closed first (`scm.cluster.lifecycle`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.replica import ReplicaState
from scm.cluster.lifecycle import ContainerEvent, is_written
from scm.state.entities import Container, ContainerState, Replica

_CLOSED: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})
RETURNED: Final = frozenset({ContainerEvent.RETURNED, ContainerEvent.RETURNED_CLOSED})
_OPEN: Final = frozenset({ReplicaState.OPEN, ReplicaState.CLOSING})


@dataclass(frozen=True, slots=True)
class EmptyingStep:
    """The next step to delete or restore a container.

    It consists of the replicas to delete, and the event that changes the state of the container.
    The event is None if the state does not change.
    """

    event: ContainerEvent | None = None
    deletes: tuple[str, ...] = ()  # datanode ids; deletes without force
    forced: tuple[str, ...] = ()  # deletes with force: all data is known to be deleted


def next_step(
    container: Container,
    replicas: Sequence[Replica],
    *,
    is_unused: bool,
    leaving: Collection[str] = (),
) -> EmptyingStep:
    """Return the next step to delete or restore a container.

    `is_unused` is True if no key and no pending command needs the container. `leaving` are the
    decommissioned datanodes, whose damaged replicas are not repaired.
    """
    match container.state:
        case ContainerState.CLOSED | ContainerState.QUASI_CLOSED if not is_unused:
            return EmptyingStep()
        case ContainerState.CLOSED:
            staying = [
                r for r in replicas if r.datanode_id not in leaving or not _is_spent(container, r)
            ]
            step = _empty(container, staying)
            return (
                step if step.event is not None or len(staying) == len(replicas) else EmptyingStep()
            )
        case ContainerState.QUASI_CLOSED:
            return _empty(container, replicas)
        case ContainerState.DELETING:
            return _deleted_step(container, replicas, is_unused=is_unused)
        case ContainerState.DELETED if is_written(container):  # else any replica restores it
            return _deleted_step(container, replicas, is_unused=is_unused)
        case _:
            return EmptyingStep()


def _is_spent(container: Container, replica: Replica) -> bool:
    """Return True if a replica is damaged, reports that it is empty, and has no later commits.

    A later commit is a commit after the last commit of the container.
    """
    return (
        replica.state is ReplicaState.UNHEALTHY
        and replica.is_empty
        and not replica.load_error
        and replica.bcsid <= container.sequence_id
    )


def _empty(container: Container, replicas: Sequence[Replica]) -> EmptyingStep:
    is_closed = container.state is ContainerState.CLOSED
    if not replicas or not all(
        r.is_empty and not r.load_error and (r.state in _CLOSED or not is_closed) for r in replicas
    ):
        return EmptyingStep()
    deletes = tuple(r.datanode_id for r in replicas if r.state in _CLOSED)
    # A replica at the container's own bcsid proves that all of it was deleted, not only a part.
    is_proven = not is_closed or any(
        r.state is ReplicaState.CLOSED and r.bcsid == container.sequence_id for r in replicas
    )
    return EmptyingStep(ContainerEvent.EMPTIED if is_proven else None, deletes)


def _deleted_step(
    container: Container, replicas: Sequence[Replica], *, is_unused: bool
) -> EmptyingStep:
    if not replicas:
        is_deleting = container.state is ContainerState.DELETING
        return EmptyingStep(ContainerEvent.CLEANED_UP if is_deleting else None)
    with_data = [r for r in replicas if not r.is_empty]
    deletes = tuple(r.datanode_id for r in replicas if r.is_empty and not r.load_error)
    known = [  # nothing was deleted in a container that was never written
        r
        for r in with_data
        if is_written(container) and r.bcsid <= container.sequence_id and not r.load_error
    ]
    is_gone = container.state is ContainerState.DELETED
    expected = _CLOSED | _OPEN if is_gone else _CLOSED
    if is_unused and len(known) == len(with_data) and all(r.state in expected for r in known):
        return EmptyingStep(
            None, deletes, tuple(r.datanode_id for r in known if r.state in _CLOSED)
        )
    closed = any(r.state is ReplicaState.CLOSED for r in with_data)
    return EmptyingStep(ContainerEvent.RETURNED_CLOSED if closed else ContainerEvent.RETURNED)
