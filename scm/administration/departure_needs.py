"""Computes what a departure of datanodes would need, before any of them begins to leave.

All requested nodes are judged together, page by page (`scm.administration.container_pages`), so the
last page may be of a later moment than the first. Only orders to other nodes in the meantime
invalidate the answer: two nodes that leave at the same time must not each count on the other.
"""

from contextlib import AbstractContextManager

import numpy as np

from health.segments import Ints
from health.words import SERVICE_OF, ServiceState
from scm.administration.container_pages import ContainerPages
from scm.administration.decommission import DepartureAssessment, OpStateRequest
from scm.administration.decommission_rules import ReplicaNeed, lock_out, need, not_known, violations
from scm.cluster.basis import DecisionContext
from scm.replication.judging.live_judge import losses_without
from scm.state.facts import OpState


class DepartureNeeds:
    """Computes needs without changing anything. Takes the control plane's lock itself."""

    def __init__(
        self, basis: DecisionContext, pages: ContainerPages, lock: AbstractContextManager[object]
    ) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._cases = basis.cases
        self._pages = pages
        self._lock = lock

    def ask(self, request: OpStateRequest) -> DepartureAssessment:
        """Return what containers need if the nodes of a request leave or go into maintenance."""
        op_state = request.op_state
        with self._lock:
            service = self.service()
            held = self._held(request)
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
        with self._lock:
            leaving = frozenset(request.datanode_ids)
            stay = [c for c in self._cases.candidates() if c.datanode_id not in leaving]
        notes = filter(None, (lock_out(needs), not_known(strange)))
        return DepartureAssessment(tuple(violations(needs, stay)), tuple(notes), service)

    def service(self) -> dict[str, ServiceState]:
        """Return each node's ordered service state. The caller holds the lock."""
        return {n.datanode_id: SERVICE_OF[n.op_state] for n in self._state.nodes.values()}

    def _held(self, request: OpStateRequest) -> Ints:
        if request.op_state is OpState.IN_SERVICE:
            return np.zeros(0, np.int64)
        held = [self._state.replicas.ids_on(node) for node in request.datanode_ids]
        return np.unique(np.concatenate([*held, np.zeros(0, np.int64)])).astype(np.int64)
