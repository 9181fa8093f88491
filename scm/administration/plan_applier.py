"""Applies plans of the Spark job row by row, if each row still matches the current state.

A row of a plan is a proposal for one container. The control plane evaluates the container on the
current state, and orders the action only if the current state requires it. Otherwise, the row is
rejected as STALE_PLAN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from health.words import ACTIONS
from merkle.replica import ReplicaState
from scm.administration.close_requests import ContainerCloser
from scm.administration.previews import Previews
from scm.administration.replica_orders import OperatorCommands
from scm.cluster.container_context import ContainerContext
from scm.cluster.decision_context import ControlComponent
from scm.cluster.safemode import SafeMode
from scm.containers.empty_container_rules import next_step
from scm.replication.health.live_judge import HealthRow, LiveHealthJudge
from scm.replication.reconcile.plan_check import ContainerDecision, PlanRow, check
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.state.database import StateChange
from scm.state.entities import CommandKind, Container, ContainerState
from scm.state.state_access import state_change
from suture.errors import Code

SUPPRESSED: Final = "SUPPRESSED"
AWAITS_REPAIR: Final = "AWAITS_REPAIR"
LATER: Final = "is judged again once the one before it is ordered"


@dataclass(eq=False)
class PlanApplier(ControlComponent):
    """Applies repair plans of the Spark job to the current state."""

    _judge: LiveHealthJudge
    _reconciles: ReconcileScheduler
    _admin: OperatorCommands
    _safe_mode: SafeMode
    _closures: ContainerCloser
    _previews: Previews

    @state_change
    def apply_plan(
        self,
        change: StateChange,
        rows: Sequence[PlanRow],
        *,
        worlds: Sequence[int] = (),
        dry_run: bool,
    ) -> list[ContainerDecision]:
        """Order the actions of the rows that still match the state. Return one decision per row.

        `worlds` contains the fingerprints that a dry run of the same rows returned. If one of them
        no longer matches, nothing is ordered. Empty `worlds` disables this check.
        """
        aborted = self._previews.aborted(rows, worlds)
        if aborted:
            return aborted
        needs = self._judge.rows({row.container_id for row in rows})
        decisions: list[ContainerDecision] = []
        removed: set[int] = set()
        for row in rows:
            if row.action == CommandKind.DELETE and row.container_id in removed:
                decisions.append(ContainerDecision(row.container_id, "OK", LATER))
                continue
            needed = needs.get(row.container_id, ())
            decisions.append(self._apply(change, row, needed, dry_run=dry_run))
            if dry_run and row.action == CommandKind.DELETE and decisions[-1].code == "OK":
                removed.add(row.container_id)
            if decisions[-1].command_ids:  # judge later rows of this container again
                needs |= {row.container_id: []} | self._judge.rows([row.container_id])
        if not dry_run:
            return decisions
        return [self._previews.planned(*one) for one in zip(rows, decisions, strict=True)]

    def _apply(
        self, change: StateChange, row: PlanRow, needs: Sequence[HealthRow], *, dry_run: bool
    ) -> ContainerDecision:
        """Order the action of a row if the container needs this action now. Return the decision."""
        container = self._state.containers.get(row.container_id)
        refusal = self._refusal(row, container)
        if refusal is not None:
            return refusal
        assert container is not None
        needed = [need for need in needs if ACTIONS[need.action] == row.action]
        match row.action:
            case CommandKind.CLOSE:
                return self._close(change, row, container, dry_run=dry_run)
            case CommandKind.RECONCILE:
                return self._reconcile(change, row, container, dry_run=dry_run)
            case CommandKind.REPLICATE:
                return self._replicate(change, row, container, needed, dry_run=dry_run)
            case CommandKind.RECONSTRUCT if container.scheme:
                return self._reconstruct(row, container, needed)
            case CommandKind.DELETE:
                return self._delete(change, row, container, needed, dry_run=dry_run)
            case _:
                message = f"container is {container.scheme or 'not erasure-coded'}"
                return ContainerDecision(
                    row.container_id,
                    "INELIGIBLE_REPLICATION_TYPE",
                    f"{message}: {row.action} means nothing",
                )

    def _reconstruct(
        self, row: PlanRow, container: Container, needed: Sequence[HealthRow]
    ) -> ContainerDecision:
        """Return the decision on a row that rebuilds shards. Order nothing.

        The control plane orders rebuilds without a plan. The decision is OK if a rebuild is due or
        pending.
        """
        commands = self._state.commands.of_container(row.container_id)
        ids = tuple(c.command_id for c in commands if c.kind is CommandKind.RECONSTRUCT)
        if not needed and not ids:
            if self._cases.healable_holders(row.container_id):
                return ContainerDecision(
                    row.container_id, AWAITS_REPAIR, "is to be mended in place first"
                )
            return _stale(row, f"no shard of {container.scheme} is to be rebuilt now")
        return ContainerDecision(row.container_id, "OK", "is rebuilt by the control plane", ids)

    def _close(
        self, change: StateChange, row: PlanRow, container: Container, *, dry_run: bool
    ) -> ContainerDecision:
        """Close the container of a row.

        If no target has to close its replica, return the reason.
        """
        done: list[str] = []
        if container.state is not ContainerState.OPEN:
            due = self._closures.due_on(container)
            done = [node for node in row.targets if node not in due]
            if len(done) == len(row.targets):
                return self._close_objection(row, container)
        if dry_run:
            decision = self._closures.preview(row.container_id)
        else:
            decision = self._closures.close(change, row.container_id)
        if not done:
            return decision
        message = f"{decision.message}; not on {', '.join(done)}: nothing is to be closed there"
        return replace(decision, message=message)

    def _close_objection(self, row: PlanRow, container: Container) -> ContainerDecision:
        """Return the decision on a close row if no target datanode has to close its replica.

        The code is AWAITS_REPAIR if the replica of a target has the last commit but differs from
        the closed replicas. Otherwise, the code is STALE_PLAN.
        """
        held = {r.datanode_id: r for r in self._state.replicas.of(row.container_id)}
        differing = [
            node
            for node in row.targets
            if node in held
            and held[node].state is ReplicaState.QUASI_CLOSED
            and held[node].bcsid >= container.sequence_id
        ]
        if differing:
            message = (
                f"{', '.join(differing)} differs from the CLOSED ones: a reconcile comes first"
            )
            return ContainerDecision(row.container_id, AWAITS_REPAIR, message)
        return _stale(row, f"nothing is to be closed on {', '.join(row.targets)}")

    def _refusal(self, row: PlanRow, container: Container | None) -> ContainerDecision | None:
        if self._safe_mode.is_on:
            message = "in safe mode no plan is applied"
            return ContainerDecision(row.container_id, Code.SAFE_MODE, message)
        if row.expires_at_ms and self._clock.wall_ms() > row.expires_at_ms:
            return _stale(row, "the plan's time is over; make a new snapshot")
        if container is None:
            return ContainerDecision(
                row.container_id, Code.CONTAINER_NOT_FOUND, "no such container"
            )
        if self._state.holds.is_suppressed(row.container_id):
            return ContainerDecision(
                row.container_id, SUPPRESSED, "suppressed until a person releases it"
            )
        return None

    def _reconcile(
        self, change: StateChange, row: PlanRow, container: Container, *, dry_run: bool
    ) -> ContainerDecision:
        replicas = self._state.replicas.of(row.container_id)
        verdict = check(row, container, replicas, self._nodes.is_reachable, self._nodes.dead)
        if isinstance(verdict, ContainerDecision):
            return verdict
        return self._reconciles.order_planned(change, row, verdict, dry_run=dry_run)

    def _replicate(
        self,
        change: StateChange,
        row: PlanRow,
        container: Container,
        needed: Sequence[HealthRow],
        *,
        dry_run: bool,
    ) -> ContainerDecision:
        case = self._cases.case(container)
        lost = sorted(set(row.sources) - {p.datanode_id for p in case.placed})
        if lost:
            return _stale(row, f"{', '.join(lost)} has no replica now")
        need = next((n for n in needed if set(n.sources) & set(row.sources)), None)
        if need is None and case.healable_holders:
            return ContainerDecision(
                row.container_id, AWAITS_REPAIR, "is to be healed in place first"
            )
        if need is None:
            what = "shard" if container.scheme else "replica"
            return _stale(
                row,
                f"container is {container.state}, {len(case.adds)} copies are under way, and no "
                f"{what} of {', '.join(row.sources)} is to be copied now",
            )
        if container.scheme:
            return ContainerDecision(row.container_id, "OK", "is copied by the control plane")
        return self._admin.copy(
            change,
            case,
            need,
            why=row.why,
            count=min(row.copies, need.copies),
            from_ids=row.sources,
            dry_run=dry_run,
        )

    def _delete(
        self,
        change: StateChange,
        row: PlanRow,
        container: Container,
        needed: Sequence[HealthRow],
        *,
        dry_run: bool,
    ) -> ContainerDecision:
        case = self._cases.case(container)
        if not row.is_forced:
            return self._delete_empty(row, case)
        going = {node for need in needed if need.is_forced for node in need.targets}
        wrong = [node for node in row.targets if node not in going.union(case.deletes)]
        if wrong or len(row.targets) != 1:
            what = "shard" if container.scheme else "replica"
            return _stale(row, f"the {what} on {', '.join(wrong)} is not one to remove now")
        if container.scheme:
            return ContainerDecision(row.container_id, "OK", "is removed by the control plane")
        return self._admin.remove(
            change,
            case,
            row.targets[0],
            why=row.why,
            keep_count=container.replication_factor,
            force=True,
            dry_run=dry_run,
        )

    def _delete_empty(self, row: PlanRow, case: ContainerContext) -> ContainerDecision:
        """Return the decision on a row that deletes an empty container. Order nothing.

        The control plane deletes empty containers without a plan.
        """
        is_unused = not self._state.keys.blocks_in(row.container_id)
        replicas = [p.replica for p in case.placed]
        step = next_step(case.container, replicas, is_unused=is_unused)
        if not set(row.targets) <= set(step.deletes):
            return _stale(row, "not all of its replicas are empty and without a key")
        return ContainerDecision(row.container_id, "OK", "it is deleted without a plan")


def _stale(row: PlanRow, message: str) -> ContainerDecision:
    return ContainerDecision(row.container_id, Code.STALE_PLAN, message)
