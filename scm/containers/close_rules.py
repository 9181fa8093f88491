"""What closing a container for good would rest on, and what it would give up. Pure.

As a rule a container closes by itself: a replica that is closed has all that was committed
(`scm.cluster.lifecycle`). Where the only replica with the last commit is gone or damaged, this
decides:

    every origin is seen, and no damaged replica has more  ──► it closes
    most origins are seen, and the others are lost         ──► it closes after a while
    an acknowledged commit would be given up, or else      ──► a person closes it by force

It closes at the last commit that a closed replica has. An origin is the datanode that took the
writes of a replica. A commit is acknowledged if a key needs its block: its client was told that it
is stored. What has more commits than the container then has is kept, whatever its state.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.replica import ReplicaState
from scm.cluster.case import Placed, present
from scm.state.facts import Container, ContainerState, Replica

STUCK: Final = "QUASI_CLOSED_STUCK"  # Ozone's word

_CLOSED: Final = frozenset({ReplicaState.QUASI_CLOSED, ReplicaState.CLOSED})
_WRITABLE: Final = frozenset({ReplicaState.OPEN, ReplicaState.CLOSING})
_UNFINISHED: Final = frozenset(
    {ContainerState.CLOSING, ContainerState.QUASI_CLOSED, ContainerState.CLOSED}
)


@dataclass(frozen=True, slots=True)
class Closure:
    """How a container that no replica holds whole could be closed.

    `obstacle` says why only a person may order it; empty: nothing acknowledged is given up.
    """

    bcsid: int  # of the last commit it would have
    last_bcsid: int  # of the last commit it is known to have had
    holders: tuple[str, ...]  # datanodes that have everything up to `bcsid`
    beyond: tuple[Placed, ...]  # replicas that have more, and are kept
    origin_count: int
    required_count: int  # of origins
    obstacle: str

    @property
    def is_complete(self) -> bool:
        """Whether every origin is seen: then nobody is waited for."""
        return self.origin_count >= self.required_count

    @property
    def kept(self) -> str:
        """What has more, in words; empty: nothing."""
        return ", ".join(
            f"{p.datanode_id} is {p.replica.state} at commit {p.replica.bcsid}" for p in self.beyond
        )


def closure(
    container: Container,
    placed: Sequence[Placed],
    *,
    acknowledged_bcsid: int,
    awaited: Collection[str] = (),
) -> Closure | None:
    """Return how a container that is not whole anywhere could be closed.

    None if it needs no such decision, because a closed replica has all that was committed, or
    cannot have one, because no replica is left, or none but a copy that is being made. `awaited`
    are datanodes that were chosen for it and may still report a replica.
    """
    here = [p for p in present(placed) if not p.replica.load_error]
    closed = [p for p in here if p.replica.state in _CLOSED]
    damaged = [p for p in here if p.replica.state is ReplicaState.UNHEALTHY]
    writable = [p for p in here if p.replica.state in _WRITABLE]
    held = closed or damaged or writable
    if container.state not in _UNFINISHED or not held:
        return None
    if any(p.replica.bcsid >= container.sequence_id for p in closed):
        return None
    bcsid = _readable_bcsid(container, held)
    holders = [p for p in held if p.replica.bcsid >= bcsid]
    beyond = [p for p in placed if p.replica.bcsid > bcsid and p not in holders]
    origins = {_origin(container, p) for p in closed + damaged}
    return Closure(
        bcsid=bcsid,
        last_bcsid=container.sequence_id,
        holders=tuple(p.datanode_id for p in holders),
        beyond=tuple(beyond),
        origin_count=len(origins),
        required_count=container.replication_factor,
        obstacle=_obstacle(
            container,
            bcsid,
            closed=closed,
            damaged=damaged,
            awaited=sorted({p.datanode_id for p in writable} | set(awaited)),
            origin_count=len(origins),
            acknowledged_bcsid=acknowledged_bcsid,
        ),
    )


def _obstacle(
    container: Container,
    bcsid: int,
    *,
    closed: Sequence[Placed],
    damaged: Sequence[Placed],
    awaited: Sequence[str],
    origin_count: int,
    acknowledged_bcsid: int,
) -> str:
    """Say why only a person may close it; empty: nothing speaks against it."""
    if container.state is ContainerState.CLOSING or awaited:
        return f"{', '.join(awaited) or 'a datanode'} has yet to close its replica"
    if not closed:
        return "no replica is closed, all are UNHEALTHY"
    if acknowledged_bcsid > bcsid:
        return f"an acknowledged commit, {acknowledged_bcsid}, would be given up"
    better = [p for p in damaged if p.replica.bcsid > bcsid]
    if better:
        return f"the damaged replica on {better[0].datanode_id} has more commits"
    if origin_count < _majority(container):
        return f"only {origin_count} of {container.replication_factor} origins are seen"
    return ""


def _majority(container: Container) -> int:
    """Return how many origins must be seen: as many as an acknowledged write needs."""
    if container.scheme:
        return container.data_count
    return container.replication_factor // 2 + 1


def _origin(container: Container, p: Placed) -> str:
    """Return where a replica's writes went; each shard of a code has one of its own."""
    if container.scheme:
        return str(p.replica.replica_index)
    return p.replica.origin_datanode_id or p.datanode_id


def _readable_bcsid(container: Container, held: Sequence[Placed]) -> int:
    """Return the last commit that can be read: of shards it takes as many as there is data."""
    best: dict[int, int] = {}
    for p in held:
        index = p.replica.replica_index  # 0 of a whole copy
        best[index] = max(best.get(index, 0), p.replica.bcsid)
    ranked = sorted(best.values(), reverse=True)
    return ranked[min(container.data_count, len(ranked)) - 1]


def standing(container: Container, replica: Replica) -> str:
    """Say why a replica is not CLOSED, where no close of it is due; empty: it is."""
    node, state = replica.datanode_id, replica.state
    if replica.load_error:
        return f"{node} cannot load its replica"
    if state is ReplicaState.CLOSED:
        return ""
    if state is not ReplicaState.QUASI_CLOSED:
        return f"{node} is {state}"
    if replica.bcsid < container.sequence_id:
        return f"{node} is QUASI_CLOSED at commit {replica.bcsid} of {container.sequence_id}"
    return f"{node} is QUASI_CLOSED and differs from the CLOSED ones: a reconcile comes first"
