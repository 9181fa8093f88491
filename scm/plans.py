"""Plans of the Spark job, applied row by row as far as they still describe the world.

What a plan says is advice: whether a row is right, and who copies or loses what, is judged by the
control plane's own rules on the state of now. A row that they do not confirm is a STALE_PLAN.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from agent.errors import Code
from merkle.replica import ReplicaState
from scm.admin import Admin
from scm.basis import Basis
from scm.closures import Closures
from scm.coding import shortage
from scm.emptying import next_step
from scm.facts import Container, ContainerState, Kind
from scm.intake import Decision, PlanRow, check
from scm.origins import lacking, spare
from scm.previews import Previews
from scm.reconciles import Reconciles
from scm.replication import UNDER, Case, judge, victims
from scm.safemode import SafeMode
from scm.shards import surplus, to_copy
from scm.state import Change

SUPPRESSED: Final = "SUPPRESSED"
AWAITS_REPAIR: Final = "AWAITS_REPAIR"


class Plans:
    """Applies plans. Callers hold the control plane's lock."""

    def __init__(
        self,
        basis: Basis,
        reconciles: Reconciles,
        admin: Admin,
        safe_mode: SafeMode,
        closures: Closures,
        previews: Previews,
    ) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._cases = basis.cases
        self._clock = basis.clock
        self._reconciles = reconciles
        self._admin = admin
        self._safe_mode = safe_mode
        self._closures = closures
        self._previews = previews

    def apply_all(
        self, change: Change, rows: Sequence[PlanRow], worlds: Sequence[int], *, dry_run: bool
    ) -> list[Decision]:
        """Order what the rows ask for, each if it is still right; none if a world is another."""
        aborted = self._previews.aborted(rows, worlds)
        if aborted:
            return aborted
        decisions = [self.apply(change, row, dry_run=dry_run) for row in rows]
        if not dry_run:
            return decisions
        return [self._previews.planned(*one) for one in zip(rows, decisions, strict=True)]

    def apply(self, change: Change, row: PlanRow, *, dry_run: bool) -> Decision:
        """Order what a row asks for, if the world is still such that it is right."""
        container = self._state.containers.get(row.container_id)
        refusal = self._refusal(row, container)
        if refusal is not None:
            return refusal
        assert container is not None
        if container.scheme and row.action not in {Kind.RECONCILE, Kind.CLOSE}:
            return self._coded(row, container)
        match row.action:
            case Kind.CLOSE:
                return self._close(change, row, container, dry_run=dry_run)
            case Kind.RECONCILE:
                return self._reconcile(change, row, container, dry_run=dry_run)
            case Kind.REPLICATE:
                return self._replicate(change, row, container, dry_run=dry_run)
            case Kind.DELETE:
                return self._delete(change, row, container, dry_run=dry_run)
            case _:
                return Decision(
                    row.container_id,
                    "INELIGIBLE_REPLICATION_TYPE",
                    f"nothing here is erasure-coded, so there is nothing to {row.action}",
                )

    def _coded(self, row: PlanRow, container: Container) -> Decision:
        """Confirm what is done about an erasure-coded container; that it is done needs no plan."""
        case = self._cases.case(container)
        match row.action:
            case Kind.RECONSTRUCT:
                return self._reconstruct(row, case)
            case Kind.REPLICATE:
                leaving = {p.datanode_id for p in to_copy(case)}
                if not leaving & set(row.sources):
                    return _stale(row, f"no shard of {', '.join(row.sources)} is to be copied now")
                return Decision(row.container_id, "OK", "is copied by the control plane")
            case Kind.DELETE if not row.is_forced:
                return self._delete_empty(row, case)
            case Kind.DELETE:
                removable = {p.datanode_id for p in surplus(case)} | set(case.deletes)
                wrong = sorted(set(row.targets) - removable)
                if wrong:
                    return _stale(row, f"the shard on {', '.join(wrong)} is not one to remove now")
                return Decision(row.container_id, "OK", "is removed by the control plane")
            case _:
                return Decision(
                    row.container_id,
                    "INELIGIBLE_REPLICATION_TYPE",
                    f"container is erasure-coded ({container.scheme}): {row.action} means nothing",
                )

    def _reconstruct(self, row: PlanRow, case: Case) -> Decision:
        found = shortage(case)
        if not found.lost and case.hopeful:
            return Decision(row.container_id, AWAITS_REPAIR, "is to be mended in place first")
        if not found.lost or not found.is_repairable:
            return _stale(row, f"lost are the shards {list(found.lost)} of {case.container.scheme}")
        commands = self._state.commands.of_container(row.container_id)
        ids = tuple(c.command_id for c in commands if c.kind is Kind.RECONSTRUCT)
        return Decision(row.container_id, "OK", "is rebuilt by the control plane", ids)

    def _close(
        self, change: Change, row: PlanRow, container: Container, *, dry_run: bool
    ) -> Decision:
        """Close what a row names, as far as it is to be closed."""
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

    def _close_objection(self, row: PlanRow, container: Container) -> Decision:
        """Say why nothing is to be closed where a row says so."""
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
            return Decision(row.container_id, AWAITS_REPAIR, message)
        return _stale(row, f"nothing is to be closed on {', '.join(row.targets)}")

    def _refusal(self, row: PlanRow, container: Container | None) -> Decision | None:
        if self._safe_mode.is_on:
            message = "in safe mode no plan is applied"
            return Decision(row.container_id, Code.SAFE_MODE, message)
        if row.expires_at_ms and self._clock.wall_ms() > row.expires_at_ms:
            return _stale(row, "the plan's time is over; make a new snapshot")
        if container is None:
            return Decision(row.container_id, Code.CONTAINER_NOT_FOUND, "no such container")
        if self._state.holds.is_suppressed(row.container_id):
            return Decision(row.container_id, SUPPRESSED, "suppressed until a person releases it")
        return None

    def _reconcile(
        self, change: Change, row: PlanRow, container: Container, *, dry_run: bool
    ) -> Decision:
        replicas = self._state.replicas.of(row.container_id)
        verdict = check(row, container, replicas, self._nodes.is_reachable, self._nodes.dead)
        if isinstance(verdict, Decision):
            return verdict
        return self._reconciles.order_planned(change, row, verdict, dry_run=dry_run)

    def _replicate(
        self, change: Change, row: PlanRow, container: Container, *, dry_run: bool
    ) -> Decision:
        case = self._cases.case(container)
        lost = sorted(set(row.sources) - {p.datanode_id for p in case.placed})
        if lost:
            return _stale(row, f"{', '.join(lost)} has no replica now")
        judgement = judge(case)
        if judgement.condition in UNDER and case.hopeful and not judgement.copies:
            return Decision(row.container_id, AWAITS_REPAIR, "is to be healed in place first")
        of_origin, able = lacking(case, row.sources)
        if of_origin and able:
            count = min(row.copies, of_origin)
            return self._admin.copy(
                change, case, why=row.why, count=count, of_origin=able, dry_run=dry_run
            )
        if not _is_closed(container) or judgement.condition not in UNDER or not judgement.copies:
            return _stale(
                row,
                f"container is {container.state} and {judgement.condition}, "
                f"{len(case.adds)} copies are under way",
            )
        count = min(row.copies, judgement.copies)
        return self._admin.copy(
            change, case, why=row.why, count=count, from_ids=row.sources, dry_run=dry_run
        )

    def _delete(
        self, change: Change, row: PlanRow, container: Container, *, dry_run: bool
    ) -> Decision:
        case = self._cases.case(container)
        if not row.is_forced:
            return self._delete_empty(row, case)
        found = victims(case) if _is_closed(container) else []
        removable = {p.datanode_id for p in [*found, *spare(case)]}
        wrong = [node for node in row.targets if node not in removable]
        if wrong or len(row.targets) != 1:
            return _stale(row, f"the replica on {', '.join(wrong)} is not one to remove now")
        return self._admin.remove(
            change,
            case,
            row.targets[0],
            why=row.why,
            keep_count=container.replication_factor,
            force=True,
            dry_run=dry_run,
        )

    def _delete_empty(self, row: PlanRow, case: Case) -> Decision:
        """Confirm that an empty container goes; that it does so needs no plan."""
        is_unused = not self._state.keys.blocks_in(row.container_id)
        replicas = [p.replica for p in case.placed]
        step = next_step(case.container, replicas, is_unused=is_unused)
        if not set(row.targets) <= set(step.deletes):
            return _stale(row, "not all of its replicas are empty and without a key")
        return Decision(row.container_id, "OK", "it is deleted without a plan")


def _is_closed(container: Container) -> bool:
    return container.state in {ContainerState.CLOSED, ContainerState.QUASI_CLOSED}


def _stale(row: PlanRow, message: str) -> Decision:
    return Decision(row.container_id, Code.STALE_PLAN, message)
