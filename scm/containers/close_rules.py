"""Rules for closing a container without its last commits. No I/O.

Normally a container closes by itself, because a closed replica has all commits
(`scm.cluster.lifecycle`). These rules apply if the only replica with the last commit is gone or
damaged, or if too few origins have reported their replicas. An origin is a datanode that the writer
wrote to. The rules are those of `health.quasi_closed`:

- If all origins have reported and no damaged replica has more commits, the container closes.
- If most origins have reported and the others are lost, the container closes after a while.
- In all other cases, an operator must force the close. This includes every close that loses a
  commit which was acknowledged to a client.

The container closes at the last commit that a closed replica has. A commit counts as acknowledged
if a key needs its block. A replica with more commits than the closed container is kept, whatever
its state.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from health.quasi_closed import Obstacle
from merkle.replica import ReplicaState
from scm.cluster import lifecycle
from scm.cluster.container_context import PlacedReplica, present
from scm.state.entities import Container, ContainerState, Replica

STUCK: Final = "QUASI_CLOSED_STUCK"  # Ozone's name

_WRITABLE: Final = frozenset({ReplicaState.OPEN, ReplicaState.CLOSING})
_UNFINISHED: Final = frozenset(
    {ContainerState.CLOSING, ContainerState.QUASI_CLOSED, ContainerState.CLOSED}
)


@dataclass(frozen=True, slots=True)
class Closure:
    """A way to close a container that cannot be closed with all its commits.

    `obstacle` is the reason why only an operator may order the close. It is empty if the control
    plane may close the container by itself.
    """

    bcsid: int  # the container's last commit after the close
    last_bcsid: int  # the highest known commit
    holders: tuple[str, ...]  # datanodes that have all commits up to `bcsid`
    beyond: tuple[PlacedReplica, ...]  # replicas that have more commits, and are kept
    origin_count: int
    required_count: int  # number of origins
    obstacle: str

    @property
    def is_complete(self) -> bool:
        """Return True if the replicas of all origins are known. No more commits can then appear.

        The origins are the datanodes that the writer wrote to.
        """
        return self.origin_count >= self.required_count

    @property
    def ahead_replicas_text(self) -> str:
        """Return a text that names the replicas with more commits than the closed container.

        The text is empty if there are none.
        """
        return ", ".join(
            f"{p.datanode_id} is {p.replica.state} at commit {p.replica.bcsid}" for p in self.beyond
        )


def closure(
    container: Container,
    placed: Sequence[PlacedReplica],
    *,
    acknowledged_bcsid: int,
    awaited: Collection[str] = (),
) -> Closure | None:
    """Return how a container can be closed without its last commits, or why it cannot.

    Return None if close commands alone close the container, because a closed replica has all
    commits. Also return None if no replica is left, or only a copy that is not complete yet.
    `awaited` are datanodes of the pipeline that may still report a replica.
    """
    here = [p.replica for p in present(placed)]
    loaded = [r for r in here if not r.load_error]
    closed = [r for r in loaded if r.state in lifecycle.CLOSED_STATES]
    damaged = [r for r in loaded if r.state is ReplicaState.UNHEALTHY]
    writable = [r for r in loaded if r.state in _WRITABLE]
    held = closed or damaged or writable
    if container.state not in _UNFINISHED or not held:
        return None
    found = lifecycle.close_obstacle(container, here, acknowledged_bcsid=acknowledged_bcsid)
    if any(r.bcsid >= container.sequence_id for r in closed):
        is_settled = container.state is ContainerState.CLOSED or bool(container.scheme)
        is_complete = any(lifecycle.is_complete(container, r) for r in closed)
        if is_settled or is_complete or not found:
            return None
    bcsid = lifecycle.readable_bcsid(container, held)
    holders = [r.datanode_id for r in held if r.bcsid >= bcsid]
    beyond = [p for p in placed if p.replica.bcsid > bcsid and p.datanode_id not in holders]
    origin_count = len(lifecycle.origins(container, here))
    waiting = sorted({r.datanode_id for r in writable} | set(awaited))
    if container.state is ContainerState.CLOSING or waiting:
        obstacle = f"{', '.join(waiting) or 'a datanode'} has yet to close its replica"
    elif found is Obstacle.ACKNOWLEDGED_COMMIT:
        obstacle = f"an acknowledged commit, {acknowledged_bcsid}, would be given up"
    elif found is Obstacle.HIGHER_COMMIT:
        more = next(r for r in here if r.bcsid > bcsid and r not in closed)
        obstacle = f"the damaged replica on {more.datanode_id} has more commits"
    elif found is Obstacle.FEW_ORIGINS:
        obstacle = f"only {origin_count} of {container.replication_factor} origins are seen"
    else:
        obstacle = "no replica is closed, all are UNHEALTHY" if found else ""
    return Closure(
        bcsid=bcsid,
        last_bcsid=container.sequence_id,
        holders=tuple(holders),
        beyond=tuple(beyond),
        origin_count=origin_count,
        required_count=container.replication_factor,
        obstacle=obstacle,
    )


def standing(container: Container, replica: Replica) -> str:
    """Return why a replica is not CLOSED although no close command is due for it.

    Return an empty string if the replica is CLOSED.
    """
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
