"""Closes containers on request, and closes containers whose last commits are lost.

- At each tick of the control plane: if only lost commits prevent the close of a container, it is
  closed without these commits after one check interval. This happens only if no client received an
  acknowledgement of these commits.
- On `close`, `close --force`, or a row of a plan: the control plane orders the close commands, or
  returns the reason why it does not.

`scm.containers.close_rules` decides whether the replicas are sufficient to close a container. This
module orders the close and records it in the audit log.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog

from scm.administration.previews import Previews
from scm.administration.replica_orders import INELIGIBLE_STATE
from scm.cluster import lifecycle
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.cluster.safemode import SafeMode
from scm.containers.close_commands import CloseCommands
from scm.containers.close_rules import STUCK, Closure, closure, standing
from scm.containers.open_containers import WriterSessions
from scm.containers.state_updater import ContainerStateUpdater
from scm.replication.reconcile.plan_check import ContainerDecision, LostCommit, PlannedCommand
from scm.state import audit_trail
from scm.state.database import StateChange
from scm.state.entities import CommandKind, Container, ContainerState
from scm.state.state_access import state_change
from suture.errors import Code

LOOKS_PER_TURN: Final = 2_000
GIVEN_UP_SHOWN_MAX: Final = 100
NO_REPLICAS: Final = "NO_REPLICAS_FOUND"

_OVER: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})
_UNASKED: Final = "its last commits are lost, and none of them was acknowledged"
_FORCED: Final = "an operator forced it"

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class _ClosePlan:
    """A plan to close one container.

    If `short` is None, no commit is lost, and the due close commands are sent. Otherwise, the
    container is closed at an earlier commit, and the later commits are lost. `given_up` lists some
    of the lost commits, and `given_up_count` is the number of all of them.
    """

    container: Container
    after: Container  # the container after the close
    short: Closure | None = None
    given_up: tuple[LostCommit, ...] = ()  # acknowledged commits come first
    given_up_count: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names of the keys that lose a block by this close, sorted."""
        return tuple(sorted({lost.key for lost in self.given_up if lost.key}))

    @property
    def acknowledged_count(self) -> int:
        """Return how many of the lost commits had been acknowledged to a client."""
        return len({lost.bcsid for lost in self.given_up if lost.key})

    def with_given_up(self, decision: ContainerDecision) -> ContainerDecision:
        """Return a copy of `decision` that also lists the commits that this plan loses."""
        return replace(
            decision,
            given_up=self.given_up[:GIVEN_UP_SHOWN_MAX],
            given_up_count=self.given_up_count,
            acknowledged_count=self.acknowledged_count,
        )


@dataclass(eq=False)
class ContainerCloser(ControlComponent):
    """Closes containers at ticks, and on requests of operators and plans.

    Callers must hold the control plane's lock, except for methods decorated with `@locked` or
    `@state_change`.
    """

    _observer: ContainerStateUpdater
    _closes: CloseCommands
    _writers: WriterSessions
    _previews: Previews
    _safe_mode: SafeMode
    _held_up_since_s: dict[int, float] = field(init=False, default_factory=dict)

    def __post_init__(self, basis: DecisionContext) -> None:
        super().__post_init__(basis)
        self._quiet = self._state.settled()

    def advance(self, change: StateChange, ended_short: Collection[int] = ()) -> None:
        """Close containers whose last commits are lost and were never acknowledged to a client.

        `ended_short` are closed containers whose last commit is on no present datanode. After this
        method removes that commit from the record, their replicas count as complete. The control
        plane can then move these replicas, and delete surplus ones.
        """
        waiting = self._state.containers.closing | self._state.replicas.unsettled
        waiting |= {number for number in ended_short if self._state.has_all_commits_of(number)}
        for container_id in self._held_up_since_s.keys() - waiting:
            del self._held_up_since_s[container_id]
        due = [number for number in waiting if number not in self._quiet][:LOOKS_PER_TURN]
        for container_id in due:
            container = self._without_dead(change, container_id)
            self._quiet.add(container_id)
            if container is None or self._state.holds.is_suppressed(container_id):
                continue
            if container.pipeline:
                self._quiet.discard(container_id)  # the awaited datanode may die
            short = self._closure(container)
            if short is None or short.obstacle:
                self._held_up_since_s.pop(container_id, None)
            elif self._has_waited(container_id, short):
                way = self._short_way(container, short)
                self._close_short(change, way, short, _UNASKED)
            else:
                self._quiet.discard(container_id)

    @state_change
    def close_containers(
        self,
        change: StateChange,
        container_ids: Sequence[int],
        *,
        worlds: Sequence[int] = (),
        force: bool = False,
        dry_run: bool = False,
    ) -> list[ContainerDecision]:
        """Close containers now, and return one decision for each container.

        `worlds` contains the fingerprint of each container from a preview. A container whose state
        has changed since the preview is not closed. Empty `worlds` disables this check. With
        `force`, the close also loses commits that no closed replica has, even if they were
        acknowledged to a client.
        """
        do = self.preview if dry_run else partial(self.close, change)
        return self._previews.each(container_ids, worlds, partial(do, force=force))

    def end_writes_on(self, change: StateChange, datanode_ids: Sequence[str], reason: str) -> None:
        """Close all open containers that have one of these datanodes in their pipeline."""
        wanted = set(datanode_ids)
        opened = [c for c in self._state.containers.open_all() if wanted.intersection(c.pipeline)]
        for container in opened:
            self._writers.end(change, container, reason)
        self._observer.update_containers(change, [container.container_id for container in opened])

    @state_change
    def end_all_writes(self, change: StateChange) -> None:
        """Close all open containers, because the state was restored from a backup.

        The writers of these containers were connected at the time of the backup and are now gone.
        """
        for container in self._state.containers.open_all():
            self._writers.end(change, container, "the control plane was restored")

    def close(
        self, change: StateChange, container_id: int, *, force: bool = False
    ) -> ContainerDecision:
        """Close one container now, even if its writer has not finished. Return the decision.

        With `force`, close the container even if acknowledged commits are lost, or more commits
        than the close rules allow.
        """
        way = self._way(container_id, force=force)
        if isinstance(way, ContainerDecision):
            return way
        message = self._words(way)
        if way.short is not None:
            self._close_short(change, way, way.short, _FORCED if force else _UNASKED)
        else:
            if way.container.state is ContainerState.OPEN:
                self._writers.end(change, way.container, way.after.close_reason)
            self._closes.reset_attempts(container_id)
            self._observer.update_containers(change, [container_id])
        pending = (
            self._state.commands.about(CommandKind.CLOSE, container_id, order.datanode_id)
            for order in self._due(way.after)
        )
        ids = tuple(command.command_id for command in pending if command is not None)
        return way.with_given_up(ContainerDecision(container_id, "OK", message, ids))

    def preview(self, container_id: int, *, force: bool = False) -> ContainerDecision:
        """Return the decision that `close` would return now. Change nothing."""
        way = self._way(container_id, force=force)
        if isinstance(way, ContainerDecision):
            return way
        commands = tuple(
            PlannedCommand(CommandKind.CLOSE, due.datanode_id) for due in self._due(way.after)
        )
        shown = self._previews.decision(way.container, self._words(way), commands, len(commands))
        return way.with_given_up(shown)

    def due_on(self, container: Container) -> list[str]:
        """Return the datanodes to which `close` without `force` would send close commands."""
        way = self._way(container.container_id, force=False)
        if isinstance(way, ContainerDecision):
            return []
        return [order.datanode_id for order in self._due(way.after)]

    def _way(self, container_id: int, *, force: bool) -> _ClosePlan | ContainerDecision:
        """Return the plan to close a container.

        If it cannot be closed, return a decision with the reason.
        """
        container = self._state.containers.get(container_id)
        if container is None:
            return ContainerDecision(container_id, Code.CONTAINER_NOT_FOUND, "no such container")
        if container.state in _OVER:
            return ContainerDecision(
                container_id, INELIGIBLE_STATE, f"container is {container.state}"
            )
        short = self._closure(container, is_exact=True)
        if short is None:
            if container.state is not ContainerState.OPEN and not self._may_have_any(container):
                message = (
                    f"container is {container.state}, and no datanode that is there has a replica "
                    "that can be loaded: suture scm mark-lost accepts the loss"
                )
                return ContainerDecision(container_id, NO_REPLICAS, message)
            return self._plain_way(container)
        if short.obstacle and not force:
            if self._due(container):
                return self._plain_way(container)
            way = self._short_way(container, short)
            message = f"nothing is ordered: {short.obstacle}; --force closes it: {_given(way)}"
            return way.with_given_up(
                replace(self._previews.decision(container, message, (), 0), code=STUCK)
            )
        if self._safe_mode.is_on:
            message = "in safe mode no commits are given up: not all replicas are known yet"
            return ContainerDecision(container_id, Code.SAFE_MODE, message)
        return self._short_way(container, short)

    def _plain_way(self, container: Container) -> _ClosePlan:
        now_ms = self._clock.wall_ms()
        after = lifecycle.end_writes(container, "closed by an operator", now_ms=now_ms)
        return _ClosePlan(container, after)

    def _short_way(self, container: Container, short: Closure) -> _ClosePlan:
        """Return the plan to close a container at an earlier commit, with the lost commits."""
        after = lifecycle.close_at(container, short.bcsid, "", now_ms=self._clock.wall_ms())
        behind = self._state.keys.blocks_behind(container.container_id, short.bcsid)
        acknowledged = [LostCommit(block.bcsid, block.local_id, name) for block, name in behind]
        promised = {
            allocation.bcsid: allocation.local_id
            for allocation in self._state.allocations.of(container.container_id)
        }
        named = {lost.bcsid for lost in acknowledged}
        others = [
            LostCommit(bcsid, promised.get(bcsid, 0))
            for bcsid in range(short.bcsid + 1, short.last_bcsid + 1)
            if bcsid not in named
        ][:GIVEN_UP_SHOWN_MAX]
        count = max(0, short.last_bcsid - short.bcsid)
        return _ClosePlan(container, after, short, (*acknowledged, *others), count)

    def _close_short(
        self, change: StateChange, way: _ClosePlan, short: Closure, reason: str
    ) -> None:
        container = way.container
        self._held_up_since_s.pop(container.container_id, None)
        why = f"closed at commit {short.bcsid} of {short.last_bcsid}: {reason}"
        change.add_audit_note(
            audit_trail.closed_short(
                container, short.bcsid, way.keys, reason=reason, kept=short.ahead_replicas_text
            )
        )
        change.on_commit(
            _log.warning,
            "container_closed_with_lost_commits",
            container_id=container.container_id,
            bcsid=short.bcsid,
            given_up_to=short.last_bcsid,
            key_count=len(way.keys),
            reason=reason,
        )
        self._closes.reset_attempts(container.container_id)
        self._observer.move(change, container, replace(way.after, close_reason=why))
        self._observer.update_containers(change, [container.container_id])

    def _without_dead(self, change: StateChange, container_id: int) -> Container | None:
        """Remove dead datanodes from a container's pipeline, and return the updated container.

        Return None if the container does not exist or is OPEN.
        """
        container = self._state.containers.get(container_id)
        if container is None or container.state is ContainerState.OPEN:
            return None
        if container.state is ContainerState.CLOSING or container.pipeline:
            awaited = self._awaited(container)
            if awaited != container.pipeline:
                change.put(self._state.containers, replace(container, pipeline=awaited))
            self._observer.update_containers(change, [container_id])
        return self._state.containers.get(container_id)

    def _awaited(self, container: Container) -> tuple[str, ...]:
        """Return the datanodes of a container's pipeline that are not dead.

        Each of them may still report a replica of the container.
        """
        return tuple(node for node in container.pipeline if not self._nodes.is_gone(node))

    def _closure(self, container: Container, *, is_exact: bool = False) -> Closure | None:
        """Return how a container can be closed without its last commits.

        Return None if the normal close succeeds, or if no replica is left.

        With `is_exact`, the method scans all keys to find the last acknowledged commit. The scan is
        slow, so only requests of operators use it.
        """
        case = self._cases.case(container)
        awaited = () if container.state is ContainerState.OPEN else self._awaited(container)

        def judged(acknowledged_bcsid: int) -> Closure | None:
            return closure(
                container, case.placed, acknowledged_bcsid=acknowledged_bcsid, awaited=awaited
            )

        short = judged(self._state.keys.last_bcsid_in(container.container_id))
        if short is None or not short.obstacle or not is_exact:
            return short
        behind = self._state.keys.blocks_behind(container.container_id, short.bcsid)
        return judged(max((block.bcsid for block, _name in behind), default=0))

    def _has_waited(self, container_id: int, short: Closure) -> bool:
        """Return True if a container with lost commits has waited long enough to be closed.

        That is the case after one check interval. It is also the case as soon as the replicas of
        all datanodes that the writer wrote to have been reported, because then no commit can
        reappear.
        """
        now_s = self._clock.monotonic_s()
        since_s = self._held_up_since_s.setdefault(container_id, now_s)
        return short.is_complete or (now_s - since_s) * 1000 >= self._options.check_interval_ms

    def _may_have_any(self, container: Container) -> bool:
        living = self._cases.live_replicas(container.container_id)
        return bool(self._awaited(container)) or any(not r.load_error for r in living)

    def _due(self, container: Container) -> list[lifecycle.CloseCommand]:
        return lifecycle.closes_due(container, self._cases.live_replicas(container.container_id))

    def _words(self, way: _ClosePlan) -> str:
        """Return the message of a plan for operators.

        It lists the ordered close commands, or states why none is ordered.
        """
        due = [order.datanode_id for order in self._due(way.after)]
        ordered = f"close is ordered on {', '.join(due)}" if due else ""
        if way.short is not None:
            return "; ".join(filter(None, [f"container closes {_given(way)}", ordered]))
        if ordered:
            silent = [node for node in due if not self._nodes.is_reachable(node)]
            later = f"; when it can be reached: {', '.join(silent)}" if silent else ""
            later += "; the control plane is in safe mode" if self._safe_mode.is_on else ""
            return f"container is {way.after.state}: {ordered}{later}"
        living = self._cases.live_replicas(way.container.container_id)
        reasons = [text for replica in living if (text := standing(way.container, replica))]
        what = ", ".join(reasons) or "all its replicas are CLOSED"
        return f"container is {way.container.state}, nothing is ordered: {what}"


def _given(way: _ClosePlan) -> str:
    """Return the message for operators about a close that loses commits.

    It states the last commit that is kept, how many of the replicas that the writer wrote were
    found, and the lost commits.
    """
    short = way.short
    assert short is not None
    words = [
        f"at commit {short.bcsid} of {', '.join(short.holders)}",
        f"{short.origin_count} of {short.required_count} origins seen",
    ]
    if way.given_up_count:
        which = f"{way.acknowledged_count} of them acknowledged"
        keys = f" (keys {', '.join(way.keys[:GIVEN_UP_SHOWN_MAX])})" if way.keys else ""
        words.append(
            f"gives up {way.given_up_count} commits up to {short.last_bcsid}, {which}{keys}"
        )
    if short.beyond:
        words.append(f"what has more is kept: {short.ahead_replicas_text}")
    return ", ".join(words)
