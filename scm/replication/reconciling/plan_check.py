"""Plan rows from the Spark job, checked against the world of now. Pure.

A plan is advice about a snapshot. Between the snapshot and this moment replicas come, go, change
state and get new trees; a row is acted on only if its container looks exactly as the plan saw it.
What differs is named, so that a person can tell a moved world from a broken planner.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.errors import Code
from merkle.replica import ReplicaState
from scm.replication.reconciling.eligibility import Eligibility, Participants, judge
from scm.state.facts import Container, Kind, Replica

ASKED_FOR: Final = "an operator asked for it"  # in place of a reason; who: in the audit log


@dataclass(frozen=True, slots=True)
class PlanReplica:
    """One replica as the plan saw it; `root` is None if it had no tree."""

    datanode_id: str
    state: ReplicaState
    root: int | None


ACTIONS: Final = ("reconcile", "replicate", "delete", "close", "reconstruct")


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One container the plan wants changed, with the world it was made for."""

    container_id: int
    replicas: tuple[PlanReplica, ...]  # reconcile: all of them
    reason: str
    action: str = "reconcile"
    sources: tuple[str, ...] = ()  # replicate: datanodes to copy from
    targets: tuple[str, ...] = ()  # delete, close: datanodes that act on their replica
    copies: int = 0  # replicate
    is_forced: bool = False  # delete
    expires_at_ms: int = 0  # 0: never

    @property
    def why(self) -> str:
        """What its commands follow from."""
        return f"plan: {self.reason}" if self.reason else "plan"


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One command as people see it before it is given."""

    kind: Kind
    datanode_id: str
    target_id: str = ""
    size_bytes: int = 0
    duration_ms: int = 0
    queued_ms: int = 0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A commit that a container no longer has once it is closed, and what is known of it."""

    bcsid: int
    local_id: int = 0  # of its block; 0: not known
    key: str = ""  # that needs the block; empty: none does, no client was told that it is stored


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one container that was asked about."""

    container_id: int
    code: str
    message: str = ""
    command_ids: tuple[int, ...] = ()
    commands: tuple[PlannedCommand, ...] = ()
    copies_before: int = 0
    copies_after: int = 0
    world: int = 0
    given_up: tuple[GivenUp, ...] = ()  # the first of them
    given_up_count: int = 0
    acknowledged_count: int = 0  # of those, commits that a client was told are stored


def check(
    row: PlanRow,
    container: Container | None,
    replicas: Sequence[Replica],
    is_reachable: Callable[[str], bool],
    dead: Collection[str] = (),
) -> Decision | Participants:
    """Return who takes part if the row still describes the world, else why it is not acted on.

    What `dead` nodes said last does not matter, neither here nor in the row.
    """
    replicas = [r for r in replicas if r.datanode_id not in dead]
    row = replace(row, replicas=tuple(r for r in row.replicas if r.datanode_id not in dead))
    participants = judge(container, replicas, is_reachable)
    if participants.eligibility is not Eligibility.OK:
        return Decision(row.container_id, participants.eligibility, participants.message)
    changes = _changes(row, replicas, is_reachable)
    if changes:
        return Decision(row.container_id, Code.STALE_PLAN, "; ".join(changes))
    return participants


def _changes(
    row: PlanRow, replicas: Sequence[Replica], is_reachable: Callable[[str], bool]
) -> list[str]:
    """Name what is not as the plan saw it.

    A replica on an unreachable node may be absent from the plan: the planner counts only nodes
    that can take part. One the plan does name must be there.
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
