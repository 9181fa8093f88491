"""Checks a request to let datanodes leave, and begins the departure if there is no objection.

The check computes which replicas other datanodes must then provide, for all requested datanodes
together. It reads the containers page by page (`scm.administration.container_pages`), so the pages
may show different moments. If other datanodes begin to leave or return during the check, the check
is repeated. Otherwise, two requests at the same time could each rely on the datanodes of the other.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from health.segmented_rows import Ints
from health.words import SERVICE_OF, ServiceState
from scm.administration.close_requests import ContainerCloser
from scm.administration.container_pages import ContainerPages
from scm.administration.decommission import (
    DatanodeAdminMonitor,
    DepartureAssessment,
    OpStateRequest,
)
from scm.administration.decommission_rules import ReplicaNeed, lock_out, need, not_known, violations
from scm.administration.replica_orders import NodeDecision
from scm.cluster.decision_context import ControlComponent
from scm.replication.health.live_judge import losses_without
from scm.replication.replication_manager import ReplicationManager
from scm.state.database import StateChange
from scm.state.entities import OpState

TRIES: Final = 3  # attempts at a check that other orders invalidate


@dataclass(eq=False)
class DepartureRequests(ControlComponent):
    """Checks requests to let datanodes leave, and begins the departures.

    A datanode leaves service, or goes into maintenance.
    """

    _pages: ContainerPages
    _departures: DatanodeAdminMonitor
    _closures: ContainerCloser
    _manager: ReplicationManager

    def submit(self, request: OpStateRequest) -> list[NodeDecision]:
        """Carry out a request for a departure, a maintenance or a return of datanodes.

        Return one decision per datanode. The method first computes the consequences, and repeats
        this if other datanodes begin to leave in the meantime. If datanodes leave, their open
        containers are closed.
        """
        for tries_left in reversed(range(TRIES)):
            prospect = self._assess(request)
            with self.access.change() as change:
                is_current = prospect.service == self._service()
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
        decisions = self._departures.request(change, request, prospect, is_current=is_current)
        is_done = not request.is_dry_run and all(d.code == "OK" for d in decisions)
        is_leaving = request.op_state is not OpState.IN_SERVICE
        if is_done and is_leaving:
            why = "one of its nodes is to leave"
            self._closures.end_writes_on(change, request.datanode_ids, why)
        for datanode_id in request.datanode_ids if is_done else ():
            self._manager.enqueue_node(datanode_id)
            if is_leaving:
                self._commands.node_leaves(change, datanode_id)
        return decisions

    def _assess(self, request: OpStateRequest) -> DepartureAssessment:
        """Return the consequences of a request.

        They consist of the objections, notes for the operator, and the operational state of each
        datanode at the beginning of the check.
        """
        op_state = request.op_state
        with self.access.lock:
            service = self._service()
            held = self._blocking_reasons(request)
        needs: list[ReplicaNeed] = []
        strange: list[int] = []
        for page in self._pages.of(held):
            losses = losses_without(page.batch, page.rules, request.datanode_ids, op_state)
            sizes = page.batch.containers.used_bytes.tolist()
            for container, loss, size in zip(page.containers, losses, sizes, strict=True):
                if container is None:
                    strange.append(loss.container_id)
                else:
                    needs.append(
                        need(container, loss, request.op_state, page.rules, size_bytes=size)
                    )
        with self.access.lock:
            leaving = frozenset(request.datanode_ids)
            stay = [c for c in self._cases.candidates() if c.datanode_id not in leaving]
        notes = filter(None, (lock_out(needs), not_known(strange)))
        return DepartureAssessment(tuple(violations(needs, stay)), tuple(notes), service)

    def _service(self) -> dict[str, ServiceState]:
        """Return the stored operational state of each datanode.

        Callers must hold the control plane's lock.
        """
        return {n.datanode_id: SERVICE_OF[n.op_state] for n in self._state.nodes.values()}

    def _blocking_reasons(self, request: OpStateRequest) -> Ints:
        if request.op_state is OpState.IN_SERVICE:
            return np.zeros(0, np.int64)
        held = [self._state.replicas.ids_on(node) for node in request.datanode_ids]
        return np.unique(np.concatenate([*held, np.zeros(0, np.int64)])).astype(np.int64)
