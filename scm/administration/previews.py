"""Previews of commands and plans, and the check that the state is still the previewed one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scm.cluster.container_context import ContainerContext, container_fingerprint
from scm.cluster.decision_context import ControlComponent
from scm.replication.health.live_judge import LiveHealthJudge
from scm.replication.reconcile.eligibility import Eligibility
from scm.replication.reconcile.plan_check import ContainerDecision, PlannedCommand, PlanRow
from scm.replication.reconcile.reconcile_scheduler import ReconcileScheduler
from scm.state.entities import CommandKind, Container
from suture.errors import Code

CHANGED_TOLD_MAX: Final = 5  # containers named as the reason when a plan is rejected


@dataclass(eq=False)
class Previews(ControlComponent):
    """Computes previews of commands and of plan rows. Changes nothing.

    Callers must hold the control plane's lock.
    """

    _judge: LiveHealthJudge
    _reconciles: ReconcileScheduler

    def each(
        self,
        container_ids: Sequence[int],
        worlds: Sequence[int],
        do: Callable[[int], ContainerDecision],
    ) -> list[ContainerDecision]:
        """Call `do` for each container, and return its decisions.

        `worlds` contains one fingerprint per container, from an earlier preview. If the fingerprint
        of a container has changed, `do` is not called and the decision is STALE_PLAN. Empty
        `worlds` disables this check.
        """
        decisions = []
        for i, container_id in enumerate(container_ids):
            container = self._state.containers.get(container_id)
            if worlds and container is not None and worlds[i] != self._fingerprint(container):
                message = "its replicas are not as they were when this was shown"
                decisions.append(ContainerDecision(container_id, Code.STALE_PLAN, message))
            else:
                decisions.append(do(container_id))
        return decisions

    def reconcile(self, container_id: int) -> ContainerDecision:
        """Return the expected effect of a reconcile of a container.

        The number of bytes that a reconcile fetches is unknown before it compares the trees. The
        preview therefore contains the size of each replica, which is scanned again if the reconcile
        repairs it.
        """
        participants = self._reconciles.participants(container_id)
        container = self._state.containers.get(container_id)
        if participants.eligibility is not Eligibility.OK or container is None:
            return ContainerDecision(container_id, participants.eligibility, participants.message)
        replicas = {r.datanode_id: r for r in self._state.replicas.of(container_id)}
        commands = tuple(
            PlannedCommand(
                CommandKind.RECONCILE,
                node,
                size_bytes=replicas[node].used_bytes,
                duration_ms=self._commands.copy_rate.estimate_ms(replicas[node].used_bytes),
            )
            for node in participants.targets
        )
        return self.decision(container, "fetches what differs, no more", commands, len(commands))

    def aborted(self, rows: Sequence[PlanRow], worlds: Sequence[int]) -> list[ContainerDecision]:
        """Return a STALE_PLAN decision for every row if the container of any row has changed.

        Return an empty list if all fingerprints match. The operator confirmed the complete preview,
        so the plan is not applied in part.
        """
        changed = {
            row.container_id
            for row, world in zip(rows, worlds, strict=bool(worlds))
            if world != self._current_fingerprint(row.container_id)
        }
        if not changed:
            return []
        told = ", ".join(map(str, sorted(changed)[:CHANGED_TOLD_MAX]))
        more = ", ..." if len(changed) > CHANGED_TOLD_MAX else ""
        others = f"not done either: since this was shown changed {told}{more}"
        mine = "its replicas are not as they were when this was shown"
        return [
            ContainerDecision(
                row.container_id, Code.STALE_PLAN, mine if row.container_id in changed else others
            )
            for row in rows
        ]

    def planned(self, row: PlanRow, decision: ContainerDecision) -> ContainerDecision:
        """Return the decision on a plan row with its preview. Order nothing.

        The preview consists of the commands with their sizes and durations, the number of copies
        before and after, and the fingerprint of the container's state.
        """
        container = self._state.containers.get(row.container_id)
        if container is None or decision.world:
            return decision
        case = self._cases.case(container)
        copies = self._judge.copy_count(row.container_id)
        shown = replace(
            decision,
            copies_before=copies,
            copies_after=copies,
            world=container_fingerprint(case),
        )
        if decision.code != "OK":
            return shown
        if row.action == CommandKind.RECONCILE:
            full = self.reconcile(row.container_id)
            return full if full.code == "OK" else shown
        return replace(
            shown,
            commands=self._own_commands(row, case),
            copies_after=self._copies_after(container, row, copies),
        )

    def _own_commands(self, row: PlanRow, case: ContainerContext) -> tuple[PlannedCommand, ...]:
        """Return the commands to show in the preview of a plan row that requests no reconcile.

        They are deletes, copies or a reconstruction. They are not ordered here.
        """
        sizes = {p.datanode_id: p.replica.used_bytes for p in case.placed}
        if row.action == CommandKind.DELETE:
            return tuple(
                PlannedCommand(CommandKind.DELETE, node, size_bytes=sizes.get(node, 0))
                for node in row.targets
            )
        if row.action == CommandKind.RECONSTRUCT:
            read_bytes = max(sizes.values(), default=0) * (len(row.sources) + row.copies)
            return (
                self._timed(PlannedCommand(CommandKind.RECONSTRUCT, "", size_bytes=read_bytes)),
            )
        return tuple(
            self._timed(PlannedCommand(CommandKind.REPLICATE, node, size_bytes=sizes.get(node, 0)))
            for node in row.sources
        )

    def _timed(self, command: PlannedCommand) -> PlannedCommand:
        return replace(
            command, duration_ms=self._commands.copy_rate.estimate_ms(command.size_bytes)
        )

    def _current_fingerprint(self, container_id: int) -> int:
        container = self._state.containers.get(container_id)
        return 0 if container is None else self._fingerprint(container)

    def decision(
        self,
        container: Container,
        message: str,
        commands: tuple[PlannedCommand, ...],
        at_best_count: int,
    ) -> ContainerDecision:
        """Return an OK decision for a preview, with the current fingerprint of the container.

        The predicted number of copies is the current number, but at least `at_best_count`.
        """
        copies = self._judge.copy_count(container.container_id)
        shown = ContainerDecision(container.container_id, "OK", message, (), commands, copies)
        after = max(copies, at_best_count)
        return replace(shown, copies_after=after, world=self._fingerprint(container))

    def _fingerprint(self, container: Container) -> int:
        return container_fingerprint(self._cases.case(container))

    def _copies_after(self, container: Container, row: PlanRow, copies: int) -> int:
        match row.action:
            case CommandKind.DELETE:
                return self._judge.copy_count(row.container_id, without=row.targets)
            case CommandKind.RECONSTRUCT:
                return min(container.replication_factor, copies + row.copies)
            case _:
                return copies
