"""Checks whether plan rows of the Spark job still match the current state. No I/O.

A plan is based on a snapshot. After the snapshot, replicas may appear, disappear, change their
states, and get new trees. A row is applied only if the replicas of its container are exactly as in
the plan. The result lists the differences, so that an operator can distinguish a changed cluster
from a faulty plan.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from merkle.replica import ReplicaState
from scm.replication.reconcile.eligibility import Eligibility, Participants, judge
from scm.state.entities import CommandKind, Container, Replica
from suture.errors import Code

ASKED_FOR: Final = "an operator asked for it"  # replaces a reason; the audit log names the operator


@dataclass(frozen=True, slots=True)
class PlanReplica:
    """A replica as it was in the snapshot. `root` is None if it had no tree."""

    datanode_id: str
    state: ReplicaState
    root: int | None


ACTIONS: Final = ("reconcile", "replicate", "delete", "close", "reconstruct")


@dataclass(frozen=True, slots=True)
class PlanRow:
    """An action that a plan requests for one container.

    `replicas` are the replicas from which the action was computed.
    """

    container_id: int
    replicas: tuple[PlanReplica, ...]  # for a reconcile: all replicas of the container
    reason: str
    action: str = "reconcile"
    sources: tuple[str, ...] = ()  # replicate: datanodes to copy from
    targets: tuple[str, ...] = ()  # delete, close: datanodes that act on their replica
    copies: int = 0  # replicate: number of copies
    is_forced: bool = False  # delete
    expires_at_ms: int = 0  # 0 = never

    @property
    def why(self) -> str:
        """Return the reason that is recorded for the commands of this row."""
        return f"plan: {self.reason}" if self.reason else "plan"


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """A command in the preview that an operator sees.

    `duration_ms` is the estimated duration. `queued_ms` is the estimated time before the command
    starts.
    """

    kind: CommandKind
    datanode_id: str
    target_id: str = ""
    size_bytes: int = 0
    duration_ms: int = 0
    queued_ms: int = 0


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A commit that a container loses when it is closed, with the key that needs it, if any."""

    bcsid: int
    local_id: int = 0  # id of its block; 0 = unknown
    key: str = ""  # the key that needs the block; empty = never acknowledged


@dataclass(frozen=True, slots=True)
class ContainerDecision:
    """The outcome of a request for one container: ordered commands, or why none is ordered.

    `world` is the fingerprint of the container's state.
    """

    container_id: int
    code: str
    message: str = ""
    command_ids: tuple[int, ...] = ()
    commands: tuple[PlannedCommand, ...] = ()
    copies_before: int = 0
    copies_after: int = 0
    world: int = 0
    given_up: tuple[LostCommit, ...] = ()  # the first of the abandoned commits
    given_up_count: int = 0
    acknowledged_count: int = 0  # number of these commits that were acknowledged to a client


def check(
    row: PlanRow,
    container: Container | None,
    replicas: Sequence[Replica],
    is_reachable: Callable[[str], bool],
    dead: Collection[str] = (),
) -> ContainerDecision | Participants:
    """Return the participants of a reconcile if the row still matches the state.

    Otherwise, return a decision with the reason for rejecting the row. Replicas on the datanodes in
    `dead` are ignored, in the state and in the row.
    """
    replicas = [r for r in replicas if r.datanode_id not in dead]
    row = replace(row, replicas=tuple(r for r in row.replicas if r.datanode_id not in dead))
    participants = judge(container, replicas, is_reachable)
    if participants.eligibility is not Eligibility.OK:
        return ContainerDecision(row.container_id, participants.eligibility, participants.message)
    changes = _changes(row, replicas, is_reachable)
    if changes:
        return ContainerDecision(row.container_id, Code.STALE_PLAN, "; ".join(changes))
    return participants


def _changes(
    row: PlanRow, replicas: Sequence[Replica], is_reachable: Callable[[str], bool]
) -> list[str]:
    """Return the differences between a row of a plan and the current state, as texts.

    A replica on an unreachable datanode may be absent from the row, because a plan contains only
    replicas that can take part. All replicas in the row must exist.
    """
    live = {replica.datanode_id: replica for replica in replicas}
    planned = {replica.datanode_id: replica for replica in row.replicas}
    changes = []
    for node in sorted(live.keys() | planned.keys()):
        if node not in planned:
            if is_reachable(node):
                changes.append(f"{node} has a replica now")
        elif node not in live:
            changes.append(f"{node} has no replica now")
        else:
            changes += _replica_changes(planned[node], live[node])
    return changes


def _replica_changes(planned: PlanReplica, live: Replica) -> list[str]:
    changes = []
    if planned.state is not live.state:
        changes.append(f"{live.datanode_id} was {planned.state}, is {live.state}")
    root = None if live.tree is None else live.tree.root
    if planned.root != root:
        changes.append(
            f"{live.datanode_id} had root {_root_text(planned.root)}, has {_root_text(root)}"
        )
    return changes


def _root_text(root: int | None) -> str:
    return "none" if root is None else f"{root:016x}"
