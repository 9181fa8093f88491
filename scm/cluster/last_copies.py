"""Tracks the datanodes that have the last healthy copy of a container, to scan these copies first.

A copy is healthy if its datanode reports it as CLOSED or QUASI_CLOSED without a fault. In addition,
the datanode must not have been DEAD when the health of datanodes was last evaluated. After a change
of a datanode's health, the copies of all its containers are counted again.

The result is only a hint from reports. Nothing is deleted, copied or repaired because of it. The
shards of an erasure-coded container are not copies of each other, so they are never in the result.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from merkle.replica import ReplicaState
from scm.cluster.nodes import NodeManager
from scm.state.container_queues import PriorityContainerQueue
from scm.state.database import StateChange, StateDatabase

LAST_COPIES_MAX: Final = 1_000  # ids sent at once: some 5 KB of each heartbeat's answer
COUNTED_MAX: Final = 1_000  # per call, some 10 ms: after a restart all containers are uncounted
WHOLE: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})
_WHOLE: Final = np.array([state in WHOLE for state in ReplicaState])  # by state number


class LastReplicaTracker:
    """The containers that have a single healthy copy, by datanode.

    Changed containers are counted when a datanode's list is requested. Callers must hold the
    control plane's lock.
    """

    def __init__(self, state: StateDatabase, nodes: NodeManager) -> None:
        self._state = state
        self._nodes = nodes
        self._uncounted = PriorityContainerQueue()
        self._uncounted.add_all(state.replicas.container_ids())
        self._holder: dict[int, str] = {}
        self._held: defaultdict[str, set[int]] = defaultdict(set)

    def recount(self, change: StateChange, container_ids: Collection[int]) -> None:
        """Mark these containers as changed, so that their copies are counted again.

        If `change` is rolled back, they are marked again, because their replicas changed again.
        """
        if container_ids:
            self.recount_all(change, np.fromiter(container_ids, np.int64, len(container_ids)))

    def recount_all(self, change: StateChange, container_ids: NDArray[np.int64]) -> None:
        """Mark an array of containers as changed, for instance because their datanode changed."""
        self._uncounted.add_all(container_ids)
        change.on_undo(partial(self._uncounted.add_all, container_ids))

    def on(self, datanode_id: str) -> tuple[int, ...]:
        """Return the containers whose last healthy copy is on this datanode, sorted.

        If there are more than LAST_COPIES_MAX, return those whose last scan is oldest. Each call
        counts the copies of at most COUNTED_MAX changed containers.
        """
        if due := self._uncounted.pop(COUNTED_MAX):
            self._count(due)
        held = self._held.get(datanode_id, set())
        if len(held) <= LAST_COPIES_MAX:
            return tuple(sorted(held))
        ids = np.fromiter(held, np.int64, len(held))
        rows = self._state.replicas.of_node(datanode_id, np.sort(ids))
        oldest = np.lexsort((rows["container_id"], rows["data_scan_at_ms"]))[:LAST_COPIES_MAX]
        return tuple(np.sort(rows["container_id"][oldest]).tolist())

    def _count(self, container_ids: Sequence[int]) -> None:
        owner, rows = self._state.replicas.owned(container_ids)
        is_healthy = _WHOLE[rows["state"]] & (rows["finding_count"] == 0)
        is_healthy &= self._is_among(rows["error"], lambda word: not word)
        is_healthy &= self._is_among(rows["datanode"], lambda node: node not in self._nodes.dead)
        count = len(container_ids)
        is_sole = np.bincount(owner[is_healthy], minlength=count) == 1
        is_sole[owner[rows["replica_index"] != 0]] = False
        sole = np.flatnonzero(is_healthy)[is_sole[owner[is_healthy]]]
        for container_id in self._holder.keys() & set(container_ids):
            self._held[self._holder.pop(container_id)].discard(container_id)
        holders = self._state.replicas.words(rows["datanode"][sole].tolist())
        for place, holder in zip(owner[sole].tolist(), holders, strict=True):
            self._holder[container_ids[place]] = holder
            self._held[holder].add(container_ids[place])

    def _is_among(
        self, numbers: NDArray[np.uint32], is_so: Callable[[str], bool]
    ) -> NDArray[np.bool_]:
        """Return one boolean per row: True if the text of the row satisfies `is_so`.

        Equal texts are stored once, in a table. `numbers` has, for each row, the index of its text
        in this table. `is_so` is called once for each distinct text.
        """
        distinct, which = np.unique(numbers, return_inverse=True)
        words = self._state.replicas.words(distinct.tolist())
        return np.array([is_so(word) for word in words], np.bool_)[which]
