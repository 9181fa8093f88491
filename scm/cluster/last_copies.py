"""Which datanode has the last healthy copy of a container: what it should read before all else.

A copy is healthy when its datanode called it CLOSED or QUASI_CLOSED, found nothing wrong with it,
and is not DEAD. A hint: it is counted from what was reported, and nothing is deleted, copied or
repaired for it. Shards of an erasure-coded container are not copies of each other; they are never
on the list.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from heapq import nsmallest
from typing import Final

from merkle.replica import ReplicaState
from scm.cluster.nodes import Nodes
from scm.state.database import Change, State
from scm.state.facts import Health, Replica

LAST_COPIES_MAX: Final = 1_000  # told at once: some 5 KB of each heartbeat's answer
COUNTED_MAX: Final = 1_000  # in one call, some 10 ms: after a restart all containers are to count
WHOLE: Final = frozenset({ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED})


class LastCopies:
    """Counted when somebody asks, of what changed since. Callers hold the control plane's lock."""

    def __init__(self, state: State, nodes: Nodes) -> None:
        self._state = state
        self._nodes = nodes
        self._uncounted: set[int] = set(state.replicas.container_ids())
        self._holder: dict[int, str] = {}
        self._held: defaultdict[str, set[int]] = defaultdict(set)

    def recount(self, change: Change, container_ids: Iterable[int]) -> None:
        """Note that the replicas of these, or their nodes, change; and back if it is undone."""
        changed = frozenset(container_ids)
        self._uncounted |= changed
        change.on_undo(partial(self._uncounted.update, changed))

    def on(self, datanode_id: str) -> tuple[int, ...]:
        """Return the containers of which this datanode has the last healthy copy, ascending; of
        more than LAST_COPIES_MAX those that it read longest ago.

        No more than COUNTED_MAX changed containers are counted in one call; the rest in the next.
        """
        for _ in range(min(COUNTED_MAX, len(self._uncounted))):
            self._count(self._uncounted.pop())
        held = self._held.get(datanode_id, set())
        if len(held) <= LAST_COPIES_MAX:
            return tuple(sorted(held))
        return tuple(sorted(nsmallest(LAST_COPIES_MAX, held, key=partial(self._age, datanode_id))))

    def _count(self, container_id: int) -> None:
        replicas = self._state.replicas.of(container_id)
        healthy = [replica.datanode_id for replica in replicas if self._is_healthy(replica)]
        is_replicated = not any(replica.replica_index for replica in replicas)
        before = self._holder.pop(container_id, None)
        if before is not None:
            self._held[before].discard(container_id)
        if len(healthy) == 1 and is_replicated:
            self._holder[container_id] = healthy[0]
            self._held[healthy[0]].add(container_id)

    def _is_healthy(self, replica: Replica) -> bool:
        is_whole = replica.state in WHOLE and not replica.load_error and not replica.finding_count
        return is_whole and self._nodes.health(replica.datanode_id) is not Health.DEAD

    def _age(self, datanode_id: str, container_id: int) -> tuple[int, int]:
        replica = self._state.replicas.get((container_id, datanode_id))
        return (0 if replica is None else replica.data_scan_at_ms, container_id)
