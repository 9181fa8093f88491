"""Operator calls of the control plane: each is checked first, then applied to all or none."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from agent.errors import Code, UnavailableError
from scm.administration.decommission import DepartureAssessment, OpStateRequest
from scm.administration.forgetting import ForgetResult
from scm.administration.node_removal import RemovalLoss, gone, judge
from scm.administration.operator_commands import NodeDecision
from scm.cluster.safemode import SafeModeStatus
from scm.containers.block_deletion import KeyDeletion
from scm.edge.call_values import RecoveryCall, RecoveryResult
from scm.edge.plane.assembly import ControlPlaneComponents
from scm.replication.balancing.balancer import BalanceStatus
from scm.replication.reconciling.plan_check import ContainerDecision, PlanRow
from scm.state.database import StateChange
from scm.state.facts import CommandKind, OpState

TRIES: Final = 3  # of a check that other orders invalidated
DELETES_PER_TURN: Final = 200  # keys, while the lock is held


class _DryRun(Exception):
    """Ends a change that is only a preview: all of it is undone."""

    def __init__(self, made: RecoveryResult) -> None:
        super().__init__()
        self.made = made


def _end_if(is_dry_run: bool, made: RecoveryResult) -> None:
    if is_dry_run:
        raise _DryRun(made)


class OperatorCalls:
    """Each call is one locked, atomic, durable change; keys are deleted in several."""

    def __init__(self, parts: ControlPlaneComponents) -> None:
        self._parts = parts

    def close_containers(
        self,
        container_ids: Sequence[int],
        *,
        worlds: Sequence[int] = (),
        force: bool = False,
        dry_run: bool = False,
    ) -> list[ContainerDecision]:
        """Close containers now, whether or not their writers are finished; `worlds` as below.

        With `force`, commits that no closed replica has are given up, acknowledged or not.
        """
        with self._parts.change() as change:
            closures = self._parts.closures
            do = closures.preview if dry_run else partial(closures.close, change)
            return self._parts.previews.each(container_ids, worlds, partial(do, force=force))

    def reconcile_containers(
        self, container_ids: Sequence[int], *, worlds: Sequence[int] = (), dry_run: bool = False
    ) -> list[ContainerDecision]:
        """Order a reconcile of each eligible container; `worlds` as below."""
        with self._parts.change() as change:
            do = (
                self._parts.previews.reconcile
                if dry_run
                else partial(self._parts.reconciles.order, change)
            )
            return self._parts.previews.each(container_ids, worlds, do)

    def apply_plan(
        self, rows: Sequence[PlanRow], *, worlds: Sequence[int] = (), dry_run: bool
    ) -> list[ContainerDecision]:
        """Apply a plan row by row, each if its container is still as the plan saw it.

        `worlds` are the fingerprints of a dry run of the same rows: if any changed since, nothing
        is ordered.
        """
        with self._parts.change() as change:
            return self._parts.plans.apply_all(change, rows, worlds, dry_run=dry_run)

    def replicate_containers(
        self, container_ids: Sequence[int], *, target_id: str, worlds: Sequence[int], dry_run: bool
    ) -> list[ContainerDecision]:
        """Copy each container once more; `worlds` are the fingerprints of a dry run."""
        with self._parts.change() as change:
            return self._parts.admin.replicate(
                change, container_ids, target_id=target_id, worlds=worlds, dry_run=dry_run
            )

    def delete_replicas(
        self,
        container_ids: Sequence[int],
        *,
        datanode_id: str,
        worlds: Sequence[int],
        dry_run: bool,
    ) -> list[ContainerDecision]:
        """Remove one datanode's replicas of containers."""
        with self._parts.change() as change:
            return self._parts.admin.delete(
                change, container_ids, datanode_id=datanode_id, worlds=worlds, dry_run=dry_run
            )

    def order_nodes(self, datanode_ids: Sequence[str], kind: CommandKind) -> list[NodeDecision]:
        """Order datanodes to measure their volumes, or to register again."""
        with self._parts.change() as change:
            return self._parts.admin.order_nodes(change, datanode_ids, kind)

    def set_operational_states(self, request: OpStateRequest) -> list[NodeDecision]:
        """Start departures, maintenance or returns of nodes; close containers written on leaving
        ones.

        The consequences are computed first, in portions, and again if other nodes began to leave
        meanwhile.
        """
        needs = self._parts.departure_needs
        for tries_left in reversed(range(TRIES)):
            prospect = needs.ask(request)
            with self._parts.change() as change:
                is_current = prospect.service == needs.service()
                if is_current or not tries_left:
                    return self._let_go(change, request, prospect, is_current=is_current)
        raise AssertionError("it is tried at least once")

    def _let_go(
        self,
        change: StateChange,
        request: OpStateRequest,
        prospect: DepartureAssessment,
        *,
        is_current: bool,
    ) -> list[NodeDecision]:
        decisions = self._parts.departures.request(change, request, prospect, is_current=is_current)
        is_done = not request.is_dry_run and all(d.code == "OK" for d in decisions)
        if is_done and request.op_state is not OpState.IN_SERVICE:
            self._parts.end_writes_on(change, request.datanode_ids, "one of its nodes is to leave")
        for datanode_id in request.datanode_ids if is_done else ():
            self._parts.manager.look_at_node(datanode_id)
            if request.op_state is not OpState.IN_SERVICE:
                self._parts.commands.node_leaves(change, datanode_id)
        return decisions

    def remove_nodes(
        self, datanode_ids: Sequence[str], *, is_forced: bool, is_dry_run: bool
    ) -> list[NodeDecision]:
        """Remove dead nodes and their replica records, as far as no data needs them.

        It works in portions; a node that calls before its records are gone is not removed. A node
        that is already gone does not block the others.
        """
        parting = self._parts.parting
        with self._parts.lock:
            refused = parting.refused(datanode_ids)
            there = [node for node in datanode_ids if not parting.is_gone(node)]
        if refused:
            return refused
        losses = self._parts.node_losses.of(there)
        found = {node: gone(node) for node in datanode_ids}
        found |= {d.datanode_id: d for d in judge(losses, is_forced=is_forced)}
        if not is_dry_run and all(d.code == "OK" for d in found.values()):
            with self._parts.change() as change:
                self._parts.end_writes_on(change, there, "one of its nodes was removed")
            found |= {node: self._remove(found[node], losses[node]) for node in there}
        return list(found.values())

    def _remove(self, decision: NodeDecision, loss: RemovalLoss) -> NodeDecision:
        """Remove one node; return why not if it calls meanwhile."""
        parting, datanode_id = self._parts.parting, decision.datanode_id
        is_begun = False
        while True:
            with self._parts.change() as change:
                for refused in parting.refused([datanode_id]):
                    return refused
                if parting.is_gone(datanode_id):
                    return gone(datanode_id)
                if not is_begun:
                    is_begun = True
                    self._parts.departures.forget(datanode_id)
                    self._parts.reports.forget(datanode_id)
                    self._parts.refused_parts.forget(datanode_id)
                    parting.begin(datanode_id)
                struck = parting.strike_some(change, datanode_id)
                self._parts.struck(change, struck)
                if not struck:
                    parting.remove(change, datanode_id, loss)
                    return decision

    def forget_containers(
        self, container_ids: Sequence[int], *, worlds: Sequence[int], is_dry_run: bool
    ) -> list[ForgetResult]:
        """Give up missing containers; the keys in them are lost."""
        with self._parts.change() as change:
            return self._parts.forgetting.forget(
                change, container_ids, worlds=worlds, is_dry_run=is_dry_run
            )

    def recall_containers(
        self, container_ids: Sequence[int], *, is_dry_run: bool
    ) -> list[ForgetResult]:
        """Restore forgotten containers, because a replica has appeared."""
        with self._parts.change() as change:
            fates = self._parts.forgetting.recall(change, container_ids, is_dry_run=is_dry_run)
            self._parts.struck(change, container_ids)
            return fates

    def recover(self, call: RecoveryCall, *, is_dry_run: bool) -> RecoveryResult:
        """Apply the findings of a recovery after a restore; at its end enable decisions."""
        try:
            with self._parts.change() as change:
                adopted = self._parts.recovery.adopt(change, call.looked)
                deleted = self._parts.recovery.finish_deletes(change, call.looked)
                brought = self._parts.recovery.bring_back(change, call.keys)
                made = RecoveryResult(adopted, deleted, brought)
                _end_if(is_dry_run, made)
                needed = {block.container_id for key in call.keys for block in key.blocks}
                self._parts.observer.observe(change, sorted(needed.union(adopted)))
                if call.is_end:
                    self._parts.recovery.finish(
                        change, last_local_id=call.last_local_id, is_forced=call.is_forced
                    )
        except _DryRun as dry_run:
            return dry_run.made
        return made

    def hold(
        self, container_ids: Sequence[int], datanode_id: str, *, release: bool
    ) -> list[ContainerDecision]:
        """Suppress containers or exclude replicas; or release them."""
        with self._parts.change() as change:
            do = self._parts.holding.release if release else self._parts.holding.hold
            return do(change, container_ids, datanode_id)

    def balance(
        self, threshold_percent: float, iteration_count: int, *, dry_run: bool
    ) -> BalanceStatus:
        """Start moving replicas from full nodes to empty ones. Raise RefusedError."""
        with self._parts.lock:
            return self._parts.balancer.start(threshold_percent, iteration_count, dry_run=dry_run)

    def leave_safe_mode(self) -> SafeModeStatus:
        """End safe mode at once."""
        with self._parts.lock:
            return self._parts.safe_mode.leave()

    def delete_keys(
        self,
        names: Sequence[str],
        worlds: Sequence[int] = (),
        *,
        dry_run: bool,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[KeyDeletion]:
        """Delete keys at once and their blocks over time: some per step, so that other calls get
        the lock. Raise UnavailableError(CANCELLED) once `is_wanted` returns False.
        """
        deletions: list[KeyDeletion] = []
        for start in range(0, len(names), DELETES_PER_TURN):
            turn = slice(start, start + DELETES_PER_TURN)
            with self._parts.change() as change:
                if not is_wanted():
                    told = f"the caller has gone: {start} of {len(names)} keys were looked at"
                    raise UnavailableError(Code.CANCELLED, told)
                deletions += self._parts.deletions.delete_keys(
                    change, names[turn], worlds[turn], dry_run=dry_run
                )
        return deletions
