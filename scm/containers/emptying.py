"""When a container is deleted as a whole, and what brings it back. Pure.

A container goes when every replica says that it is empty, nothing in it belongs to a key, and no
delete of blocks is owed. Its replicas are then deleted without force: each datanode looks for
itself whether it is empty. A replica with data that appears later was thought gone; it is not
destroyed on our memory's word alone, but makes the container come back. One that has no more than
was deleted is deleted, too: where it is still open, once it is closed (`scm.cluster.lifecycle`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.replica import ReplicaState
from scm.cluster.lifecycle import Event, is_written
from scm.state.facts import Container, ContainerState, Replica

_CLOSED: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})
RETURNED: Final = frozenset({Event.RETURNED, Event.RETURNED_CLOSED})
_OPEN: Final = frozenset({ReplicaState.OPEN, ReplicaState.CLOSING})


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to a container now: an event or none, and replicas to delete."""

    event: Event | None = None
    deletes: tuple[str, ...] = ()  # datanode ids, without force
    forced: tuple[str, ...] = ()  # with force: data that is known to be deleted


def next_step(
    container: Container,
    replicas: Sequence[Replica],
    *,
    is_unused: bool,
    leaving: Collection[str] = (),
) -> Step:
    """Say what to do; `is_unused` means that no key and no pending command needs the container.

    `leaving` are the datanodes that are decommissioned: a damaged replica there is not repaired.
    """
    match container.state:
        case ContainerState.CLOSED | ContainerState.QUASI_CLOSED if not is_unused:
            return Step()
        case ContainerState.CLOSED:
            staying = [
                r for r in replicas if r.datanode_id not in leaving or not _is_spent(container, r)
            ]
            step = _empty(container, staying)
            return step if step.event is not None or len(staying) == len(replicas) else Step()
        case ContainerState.QUASI_CLOSED:
            return _empty(container, replicas)
        case ContainerState.DELETING:
            return _gone(container, replicas, is_unused=is_unused)
        case ContainerState.DELETED if is_written(container):  # else any replica brings it back
            return _gone(container, replicas, is_unused=is_unused)
        case _:
            return Step()


def _is_spent(container: Container, replica: Replica) -> bool:
    """Whether a damaged replica says that it is empty, and never had more than was committed."""
    return (
        replica.state is ReplicaState.UNHEALTHY
        and replica.is_empty
        and not replica.load_error
        and replica.bcsid <= container.sequence_id
    )


def _empty(container: Container, replicas: Sequence[Replica]) -> Step:
    is_closed = container.state is ContainerState.CLOSED
    if not replicas or not all(
        r.is_empty and not r.load_error and (r.state in _CLOSED or not is_closed) for r in replicas
    ):
        return Step()
    deletes = tuple(r.datanode_id for r in replicas if r.state in _CLOSED)
    # A replica at the container's own bcsid is proof that all of it was deleted, not only a part.
    is_proven = not is_closed or any(
        r.state is ReplicaState.CLOSED and r.bcsid == container.sequence_id for r in replicas
    )
    return Step(Event.EMPTIED if is_proven else None, deletes)


def _gone(container: Container, replicas: Sequence[Replica], *, is_unused: bool) -> Step:
    if not replicas:
        is_deleting = container.state is ContainerState.DELETING
        return Step(Event.CLEANED_UP if is_deleting else None)
    with_data = [r for r in replicas if not r.is_empty]
    deletes = tuple(r.datanode_id for r in replicas if r.is_empty and not r.load_error)
    known = [  # nobody deleted anything of what was never written
        r
        for r in with_data
        if is_written(container) and r.bcsid <= container.sequence_id and not r.load_error
    ]
    is_gone = container.state is ContainerState.DELETED
    expected = _CLOSED | _OPEN if is_gone else _CLOSED
    if is_unused and len(known) == len(with_data) and all(r.state in expected for r in known):
        return Step(None, deletes, tuple(r.datanode_id for r in known if r.state in _CLOSED))
    closed = any(r.state is ReplicaState.CLOSED for r in with_data)
    return Step(Event.RETURNED_CLOSED if closed else Event.RETURNED)
