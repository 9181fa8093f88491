"""Runs the balancer. Each move is a copy with priority LOW, followed by a delete at the source.

When a report shows the copy, the replica at the source is deleted. When all moves of an iteration
have ended, the next iteration begins. The deletes have normal priority: there are no more of them
than copies, and a late delete loses no data.

An operator starts a run. The run ends when the datanodes are balanced, no move helps, or the number
of iterations is reached. A run is kept in memory only, so a restart of the control plane ends it.
If a copy was finished before the restart, its container has a surplus replica, which the
replication manager removes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final

import structlog

from health.words import HealthState
from scm.cluster.container_context import ContainerContext
from scm.cluster.decision_context import ControlComponent
from scm.cluster.safemode import SafeMode
from scm.replication.balancer.balance_moves import (
    BalanceLimits,
    Movable,
    Move,
    is_balanced,
    plan,
    used_share,
)
from scm.replication.health.live_judge import LiveHealthJudge
from scm.replication.processors.removals import OverReplicatedProcessor
from scm.replication.replication_manager import PlannedCopy, ReplicationManager
from scm.state.database import StateChange
from scm.state.entities import CommandKind, CommandPriority, ContainerState
from scm.state.state_access import locked
from suture.errors import Code, RefusedError

MOVE_S_MAX: Final = 65 * 60.0  # after that, a move is no longer followed
LOOKED_AT_MAX: Final = 5_000  # replicas of one source per iteration
LOOKED_AT_AT_ONCE: Final = 200
MOVE: Final = "a move of the balancer"

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class BalanceStatus:
    """The progress of a run of the balancer."""

    is_running: bool = False
    iteration: int = 0
    iteration_count_max: int = 0
    threshold_percent: float = 0.0
    moves: tuple[Move, ...] = ()  # moves in progress; in a dry run, those of the first iteration
    moved_count: int = 0
    moved_bytes: int = 0
    message: str = ""
    shares: tuple[tuple[str, float], ...] = ()  # used share by node


@dataclass(eq=False)
class Balancer(ControlComponent):
    """The balancer, with at most one run at a time.

    Callers of `advance` must hold the control plane's lock.
    """

    _judge: LiveHealthJudge
    _manager: ReplicationManager
    _removals: OverReplicatedProcessor
    _safe_mode: SafeMode
    _run: BalanceStatus = field(init=False, default_factory=BalanceStatus)
    _moves: dict[int, tuple[Move, float]] = field(
        init=False, default_factory=dict
    )  # with the time when each began

    @locked
    def status(self) -> BalanceStatus:
        """Return the progress of the current run, or the result of the last run."""
        return self._status()

    def _status(self) -> BalanceStatus:
        shares = sorted((c.datanode_id, used_share(c)) for c in self._cases.candidates())
        moves = tuple(move for move, _ in self._moves.values())
        return replace(self._run, moves=moves, shares=tuple(shares))

    @locked
    def start(
        self, threshold_percent: float, iteration_count_max: int, *, dry_run: bool
    ) -> BalanceStatus:
        """Start a run. With `dry_run`, only return the moves of the first iteration.

        Raise RefusedError(SAFE_MODE) in safe mode. Raise RefusedError(INELIGIBLE) if a run is in
        progress.
        """
        if self._safe_mode.is_on:
            raise RefusedError(Code.SAFE_MODE, "cannot balance: the SCM is in safe mode")
        if dry_run:
            moves = tuple(self._plan(threshold_percent))
            return replace(self._status(), threshold_percent=threshold_percent, moves=moves)
        if self._run.is_running:
            raise RefusedError(
                Code.INELIGIBLE,
                "cannot balance: another balancing is running",
                hint="--stop ends it",
            )
        self._run = BalanceStatus(True, 0, iteration_count_max, threshold_percent)
        _log.info("balance_started", threshold_percent=threshold_percent)
        return self._status()

    @locked
    def stop(self) -> BalanceStatus:
        """End the current run. No new move is started, but a move whose copy exists is finished."""
        if self._run.is_running:
            self._end("stopped by an operator")
        return self._status()

    def advance(self, change: StateChange) -> None:
        """Continue the moves. When all moves have ended, start the next iteration.

        If the change is rolled back, its commands do not exist, so the earlier progress is
        restored.
        """
        change.on_undo(partial(self._restore, self._run, dict(self._moves)))
        for move, began_s in list(self._moves.values()):
            self._follow(change, move, began_s)
        if not self._run.is_running or self._moves:
            return
        if is_balanced(self._cases.candidates(), self._run.threshold_percent):
            self._end("balanced", change)
        elif self._run.iteration >= self._run.iteration_count_max:
            self._end(f"{self._run.iteration} iterations are done", change)
        else:
            self._iterate(change)

    def _restore(self, run: BalanceStatus, moves: dict[int, tuple[Move, float]]) -> None:
        self._run, self._moves = run, moves
        self._manager.moving.clear()
        self._manager.moving.update(moves)

    def _iterate(self, change: StateChange) -> None:
        moves = self._plan(self._run.threshold_percent)
        if not moves:
            self._end("no move makes it better", change)
            return
        self._run = replace(self._run, iteration=self._run.iteration + 1)
        for move in moves:
            case = self._case(move.container_id)
            assert case is not None, "it was planned a moment ago"
            copy = PlannedCopy(move.source_id, move.target_id)
            self._manager.order_copy(change, case, copy, why=MOVE, priority=CommandPriority.LOW)
            self._moves[move.container_id] = (move, self._clock.monotonic_s())
            self._manager.moving.add(move.container_id)
        change.on_commit(
            _log.info, "balance_moves_ordered", iteration=self._run.iteration, move_count=len(moves)
        )

    def _follow(self, change: StateChange, move: Move, began_s: float) -> None:
        """Continue one move with its next step. Remove the move if it is done or has failed."""
        number = move.container_id
        is_late = self._clock.monotonic_s() - began_s > MOVE_S_MAX
        if self._state.commands.of_container(number) and not is_late:
            return
        is_copied = self._state.replicas.get((number, move.target_id)) is not None
        is_left = self._state.replicas.get((number, move.source_id)) is None
        case = self._case(number)
        if is_copied and is_left:
            self._run = replace(
                self._run,
                moved_count=self._run.moved_count + 1,
                moved_bytes=self._run.moved_bytes + move.size_bytes,
            )
        elif is_copied and not is_late and case is not None and self._is_well_without(move):
            keep_count = 1 if case.container.scheme else case.container.replication_factor
            self._removals.delete(
                change, case.container, move.source_id, why=MOVE, keep_count=keep_count
            )
            return
        self._moves.pop(number)
        self._manager.moving.discard(number)
        self._manager.enqueue([number])

    def _is_well_without(self, move: Move) -> bool:
        left = self._judge.health_without(move.container_id, move.source_id)
        return left is HealthState.HEALTHY

    def _plan(self, threshold_percent: float) -> list[Move]:
        limits = BalanceLimits(threshold_percent=threshold_percent)
        nodes = self._cases.candidates()
        return plan(nodes, self._movable_on, limits)

    def _movable_on(self, datanode_id: str) -> Iterator[Movable]:
        held = iter(sorted(self._state.replicas.on(datanode_id))[:LOOKED_AT_MAX])
        while numbers := list(islice(held, LOOKED_AT_AT_ONCE)):
            sound = self._judge.healthy(number for number in numbers if self._is_free(number))
            for number in (n for n in numbers if datanode_id in sound.get(n, ())):
                case = self._case(number)
                if case is None:
                    continue
                held_here = next(p for p in case.placed if p.datanode_id == datanode_id)
                yield Movable(
                    number,
                    held_here.replica.used_bytes,
                    frozenset(p.datanode_id for p in case.placed),
                    tuple(p.rack for p in case.placed if p.datanode_id != datanode_id),
                    case.container.replication_factor,
                    is_scattered=bool(case.container.scheme),
                )

    def _is_free(self, number: int) -> bool:
        return (
            number not in self._moves
            and not self._state.commands.of_container(number)
            and not self._commands.is_cooling(CommandKind.REPLICATE, number)
        )

    def _case(self, container_id: int) -> ContainerContext | None:
        container = self._state.containers.get(container_id)
        if container is None or container.state is not ContainerState.CLOSED:
            return None
        return self._cases.case(container)

    def _end(self, message: str, change: StateChange | None = None) -> None:
        """End the run, and log this.

        In a change, the end is logged only when the change is durable.
        """
        self._run = replace(self._run, is_running=False, message=message)
        tell = partial(_tell_end, self._run)
        tell() if change is None else change.on_commit(tell)


def _tell_end(run: BalanceStatus) -> None:
    _log.info(
        "balance_ended",
        reason=run.message,
        moved_count=run.moved_count,
        moved_bytes=run.moved_bytes,
    )
