"""Closes containers whose last commits are lost, and containers that operators and plans name.

- At a tick: if only lost, unacknowledged commits prevent a close, the container is closed without
  them after a while.
- On `close`, `close --force`, or a row of a plan: close commands are ordered, or the reason against
  them is returned.

`scm.containers.close_rules` decides on which evidence a container is closed. This module orders the
close and records it for the audit log.
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
    """A plan to close one container. If `short` is None, only the due close commands are sent.
    Otherwise, the container is closed without its last commits."""

    container: Container
    after: Container  # the container after the close
    short: Closure | None = None
    given_up: tuple[LostCommit, ...] = ()  # acknowledged commits come first
    given_up_count: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys that lose a block by this close, sorted."""
        return tuple(sorted({lost.key for lost in self.given_up if lost.key}))

    @property
    def acknowledged_count(self) -> int:
        """Number of abandoned commits that were acknowledged to a client."""
        return len({lost.bcsid for lost in self.given_up if lost.key})

    def with_given_up(self, decision: ContainerDecision) -> ContainerDecision:
        """Return `decision` with the abandoned commits of this plan added."""
        return replace(
            decision,
            given_up=self.given_up[:GIVEN_UP_SHOWN_MAX],
            given_up_count=self.given_up_count,
            acknowledged_count=self.acknowledged_count,
        )


@dataclass(eq=False)
class ContainerCloser(ControlComponent):
    """Closes containers. Callers of methods without `@locked` or `@state_change` hold the lock."""

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
        """Close the containers whose close is prevented only by lost commits that were never
        acknowledged.

        `ended_short` are closed containers whose last commit is on no present datanode. After that
        commit is abandoned, their replicas count as complete. The control plane can then move these
        replicas, and delete surplus ones.
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
        """Close containers now. If `worlds` has the fingerprints of a preview, reject each
        container whose state differs from its fingerprint.

        With `force`, abandon commits that no closed replica has, even acknowledged ones.
        """
        do = self.preview if dry_run else partial(self.close, change)
        return self._previews.each(container_ids, worlds, partial(do, force=force))

    def end_writes_on(self, change: StateChange, datanode_ids: Sequence[str], reason: str) -> None:
        """Close the containers that are open on these nodes."""
        wanted = set(datanode_ids)
        opened = [c for c in self._state.containers.open_all() if wanted.intersection(c.pipeline)]
        for container in opened:
            self._writers.end(change, container, reason)
        self._observer.update_containers(change, [container.container_id for container in opened])

    @state_change
    def end_all_writes(self, change: StateChange) -> None:
        """Close the open containers of a restored state. Their writers were connected at the time
        of the backup and no longer use them."""
        for container in self._state.containers.open_all():
            self._writers.end(change, container, "the control plane was restored")

    def close(
        self, change: StateChange, container_id: int, *, force: bool = False
    ) -> ContainerDecision:
        """Close a container now, whether or not its writer is finished; return the decision.

        With `force`, close it even if that abandons acknowledged commits, or more commits than the
        rules allow.
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
        """Return the decision that `close` would make, without changing anything."""
        way = self._way(container_id, force=force)
        if isinstance(way, ContainerDecision):
            return way
        commands = tuple(
            PlannedCommand(CommandKind.CLOSE, due.datanode_id) for due in self._due(way.after)
        )
        shown = self._previews.decision(way.container, self._words(way), commands, len(commands))
        return way.with_given_up(shown)

    def due_on(self, container: Container) -> list[str]:
        """Return the datanodes to which an unforced close of a container would send commands."""
        way = self._way(container.container_id, force=False)
        if isinstance(way, ContainerDecision):
            return []
        return [order.datanode_id for order in self._due(way.after)]

    def _way(self, container_id: int, *, force: bool) -> _ClosePlan | ContainerDecision:
        """Return the plan to close a container, or a decision with the reason why it is not
        closed."""
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
        """Return the plan to close a container without its last commits, with a list of these
        commits."""
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
        """Remove dead datanodes from a container's pipeline. Return the container, or None if it is
        OPEN or does not exist."""
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
        """Return the datanodes of a container's pipeline that may still report a replica."""
        return tuple(node for node in container.pipeline if not self._nodes.is_gone(node))

    def _closure(self, container: Container, *, is_exact: bool = False) -> Closure | None:
        """Return the possible close of a container without its last commits. `is_exact` scans all
        keys, so use it only for requests of operators."""
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
        """Return True if lost commits have had one check interval to reappear. Also return True if
        a replica of every origin (the datanodes that writers wrote to) is seen, so that no further
        commit can appear."""
        now_s = self._clock.monotonic_s()
        since_s = self._held_up_since_s.setdefault(container_id, now_s)
        return short.is_complete or (now_s - since_s) * 1000 >= self._options.check_interval_ms

    def _may_have_any(self, container: Container) -> bool:
        living = self._cases.live_replicas(container.container_id)
        return bool(self._awaited(container)) or any(not r.load_error for r in living)

    def _due(self, container: Container) -> list[lifecycle.CloseCommand]:
        return lifecycle.closes_due(container, self._cases.live_replicas(container.container_id))

    def _words(self, way: _ClosePlan) -> str:
        """Return a text for operators: the close commands that are ordered, or why none is
        ordered."""
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
    """Return a text for operators: the commit at which a container closes, the number of origins
    seen, and the abandoned commits."""
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
