"""Containers brought to where their replicas show them, and closed when people or plans say so."""

from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from agent.errors import Code
from scm import lifecycle
from scm.clock import Clock
from scm.commands import Commands
from scm.deletions import Deletions
from scm.facts import ContainerState, Kind
from scm.intake import Decision, PlanRow
from scm.orders import Orders
from scm.plans import Plans
from scm.previews import Previews, close_refusal
from scm.state import Change, State
from scm.upkeep import Upkeep
from scm.writers import Writers

_COMMIT_OVER: Final = frozenset(
    {ContainerState.QUASI_CLOSED, ContainerState.CLOSED, ContainerState.DELETED}
)

_log = structlog.get_logger("suture.scm")


class Observer:
    """Moves containers along their lifecycle. Callers hold the control plane's lock."""

    def __init__(
        self,
        state: State,
        commands: Commands,
        deletions: Deletions,
        orders: Orders,
        upkeep: Upkeep,
        writers: Writers,
        plans: Plans,
        previews: Previews,
        clock: Clock,
    ) -> None:
        self._state = state
        self._commands = commands
        self._deletions = deletions
        self._orders = orders
        self._upkeep = upkeep
        self._writers = writers
        self._plans = plans
        self._previews = previews
        self._clock = clock

    def observe(self, change: Change, container_ids: Iterable[int]) -> None:
        """Bring containers to where their replicas show them, and queue the closes that are due."""
        now_ms = self._clock.wall_ms()
        for container_id in container_ids:
            container = self._state.containers.get(container_id)
            if container is None:
                continue  # unknown: recorded, never acted on
            self._commands.review(change, container_id)
            self._deletions.finish(change, container_id)
            replicas = self._state.replicas.of(container_id)
            seen = lifecycle.observe(container, replicas, now_ms=now_ms)
            if seen != container:
                change.put(self._state.containers, seen)
            if seen.state is not container.state:
                _log.info("container_state_changed", container_id=container_id, state=seen.state)
                if seen.state in _COMMIT_OVER:
                    for allocation in self._state.allocations.of(container_id):
                        change.remove(self._state.allocations, (container_id, allocation.local_id))
            self._orders.close(change, seen)
            self._upkeep.look_at([container_id])

    def close(self, change: Change, container_id: int) -> Decision:
        """Close a container now, whatever its writer has in mind."""
        container = self._state.containers.get(container_id)
        refusal = close_refusal(container_id, container)
        if refusal is not None or container is None:
            return refusal or Decision(container_id, Code.CONTAINER_NOT_FOUND)
        if container.state is ContainerState.OPEN:
            self._writers.end(change, container, "closed by an operator")
        self.observe(change, [container_id])
        closed = self._state.containers.get(container_id)
        assert closed is not None
        commands = self._state.commands.of_container(container_id)
        ids = tuple(command.command_id for command in commands if command.kind is Kind.CLOSE)
        return Decision(container_id, "OK", f"container is {closed.state}", ids)

    def apply_plan(
        self, change: Change, rows: Sequence[PlanRow], worlds: Sequence[int], *, dry_run: bool
    ) -> list[Decision]:
        """Order what the rows ask for, each if it is still right; none if a world is another."""
        aborted = self._previews.aborted(rows, worlds)
        if aborted:
            return aborted
        decisions = [
            self._close_planned(change, row, dry_run=dry_run)
            if row.action == Kind.CLOSE
            else self._plans.apply(change, row, dry_run=dry_run)
            for row in rows
        ]
        if not dry_run:
            return decisions
        return [self._previews.planned(*one) for one in zip(rows, decisions, strict=True)]

    def _close_planned(self, change: Change, row: PlanRow, *, dry_run: bool) -> Decision:
        """Close what a plan asks for, if that is still right."""
        container = self._state.containers.get(row.container_id)
        refusal = self._plans.close_objection(row, container)
        if refusal is not None:
            return refusal
        if dry_run:
            return self._previews.close(row.container_id)
        return self.close(change, row.container_id)
