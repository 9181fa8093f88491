"""Immutable copies of datanodes, replicas and containers for operators, clients and snapshots."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final

from merkle.diff import SummaryComparison, compare
from merkle.replica import TREE_STATES, ReplicaState
from scm.cluster.decision_context import ControlComponent
from scm.cluster.replica_map import ReportProcessor
from scm.replication.container_waits import ContainerWait, ContainerWaits
from scm.state.entities import Container, Key, Liveness, Node, NodeHealthState, Replica
from scm.state.state_access import locked
from suture.errors import Code, RefusedError

UNKNOWN_STATE: Final = "UNKNOWN"
"""State shown for a container that datanodes reported but this SCM did not create."""
MARKED_LOST_STATE: Final = "MARKED_LOST"
"""State shown for a container that an operator marked as lost.

It is shown even if a datanode reports a replica of the container.
"""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A datanode with its health and its last heartbeat."""

    node: Node
    health: NodeHealthState
    heartbeat_at_ms: int
    live: Liveness | None
    container_count: int
    has_reported: bool
    """True if the datanode has reported all its replicas to this process of the control plane."""
    is_managed: bool


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica with the address and the health of its datanode."""

    replica: Replica
    address: str  # empty if the node is not registered
    node_health: NodeHealthState


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with its replicas.

    `container` is None if the control plane did not create the container.
    """

    container_id: int
    container: Container | None
    replicas: tuple[ReplicaView, ...]
    is_forgotten: bool = False
    wait: ContainerWait | None = None

    @property
    def state(self) -> str:
        """Return the state of the container as a word."""
        if self.is_forgotten:
            return MARKED_LOST_STATE
        return UNKNOWN_STATE if self.container is None else self.container.state

    @property
    def used_bytes(self) -> int:
        """Return the size of the largest replica that is not UNHEALTHY.

        Return the number of committed bytes if there is no such replica.
        """
        return used_bytes(self.container, [view.replica for view in self.replicas])


def used_bytes(container: Container | None, replicas: Sequence[Replica]) -> int:
    """Return the size in bytes of the largest replica that is not UNHEALTHY.

    Return the number of committed bytes if there is no such replica.
    """
    committed_bytes = 0 if container is None else container.committed_bytes
    reported = [r.used_bytes for r in replicas if r.state is not ReplicaState.UNHEALTHY]
    return max(reported, default=committed_bytes)


def block_count(container: Container, replicas: Sequence[Replica]) -> int:
    """Return the number of blocks of the replica with the most blocks.

    UNHEALTHY replicas do not count. Return the number of committed blocks if there is no such
    replica.
    """
    reported = [r.block_count for r in replicas if r.state is not ReplicaState.UNHEALTHY]
    return max(reported, default=container.committed_count)


def checksums_hint(replicas: Sequence[Replica]) -> str:
    """Compare the trees of these replicas. Return "match", "differ" or "unknown".

    The result is a hint for operators. The Spark job makes the exact classification.
    """
    trees = [replica.tree for replica in replicas if replica.state in TREE_STATES]
    known = [tree for tree in trees if tree is not None]
    answers = {compare(known[0], tree) for tree in known[1:]}
    if answers & {SummaryComparison.DIFFERENT, SummaryComparison.TOMBSTONES_DIFFER}:
        return "differ"
    if not known or len(known) != len(replicas) or SummaryComparison.NOT_COMPARABLE in answers:
        return "unknown"
    return "match"


def shards_hint(replicas: Sequence[Replica]) -> str:
    """Compare the shards of an erasure-coded container. Return "shards", "differ" or "unknown".

    Only replicas with the same index are compared, because shards with different indexes are never
    equal. "shards" means that the compared replicas match.
    """
    by_index: dict[int, list[Replica]] = {}
    for replica in replicas:
        by_index.setdefault(replica.replica_index, []).append(replica)
    answers = {checksums_hint(twins) for twins in by_index.values()}
    if "differ" in answers:
        return "differ"
    return "unknown" if "unknown" in answers or not answers else "shards"


def comparison(container: Container | None, replicas: Sequence[Replica]) -> str:
    """Compare the replicas of a container. Return "match", "differ" or "unknown".

    For an erasure-coded container, "shards" replaces "match" (see `shards_hint`).
    """
    is_coded = container is not None and bool(container.scheme)
    return shards_hint(replicas) if is_coded else checksums_hint(replicas)


@dataclass(eq=False)
class ViewBuilder(ControlComponent):
    """Creates immutable copies of datanodes and containers, for display.

    Callers must hold the control plane's lock, except for methods decorated with `@locked` or
    `@state_change`.
    """

    _reports: ReportProcessor
    _waits: ContainerWaits

    def nodes(self, datanode_ids: Sequence[str] | None = None) -> list[NodeView]:
        """Return the known datanodes among `datanode_ids`.

        By default, return all datanodes, sorted by id.
        """
        names = (
            sorted(node.datanode_id for node in self._state.nodes.values())
            if datanode_ids is None
            else datanode_ids
        )
        known = (self._state.nodes.get(name) for name in names)
        return [
            NodeView(
                node=node,
                health=self._nodes.health(node.datanode_id),
                heartbeat_at_ms=self._nodes.heartbeat_at_ms(node),
                live=self._nodes.liveness(node.datanode_id),
                container_count=self._state.replicas.count_on(node.datanode_id),
                has_reported=node.datanode_id in self._reports.confirmed,
                is_managed=self._nodes.is_managed(node.datanode_id),
            )
            for node in known
            if node is not None
        ]

    @locked
    def container(self, container_id: int) -> ContainerView:
        """Return a container with its replicas.

        Raise RefusedError(CONTAINER_NOT_FOUND) if the container does not exist.
        """
        view = self.find_container(container_id)
        if view is None:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"no container {container_id}",
                container_id=container_id,
            )
        return view

    def find_container(self, container_id: int) -> ContainerView | None:
        """Return a container with its replicas, or None if there is none.

        Containers that are marked as lost, or that only datanodes reported, are also returned.
        """
        container = self._state.containers.get(container_id)
        replicas = self._state.replicas.of(container_id)
        is_forgotten = self._state.forgotten.get(container_id) is not None
        if container is None and not replicas and not is_forgotten:
            return None
        return ContainerView(
            container_id,
            container,
            tuple(
                ReplicaView(
                    replica,
                    self.address(replica.datanode_id),
                    self._nodes.health(replica.datanode_id),
                )
                for replica in replicas
            ),
            is_forgotten,
            self._waits.of(container_id),
        )

    @locked
    def containers(self, start: int, count: int) -> tuple[list[ContainerView], int]:
        """Return up to `count` containers with ids of at least `start`, sorted by id.

        The second value is the id at which the next page starts; it is 0 on the last page. The
        control plane assigns ids without gaps, so the cost depends on the size of the page and not
        of the cluster.
        """
        first = max(1, start)
        unknown = sorted(i for i in self._reports.unknown_container_ids if i >= first)
        page: list[ContainerView] = []
        made = range(first, self._state.counters["next_container_id"])
        for container_id in merge(filter(self._is_made, made), unknown):
            view = self.find_container(container_id)
            if view is None or (page and page[-1].container_id == container_id):
                continue
            if len(page) == count:
                return page, container_id
            page.append(view)
        return page, 0

    def _is_made(self, container_id: int) -> bool:
        """Return True if this control plane created the container.

        `containers` uses this check to skip other ids without reading their replicas.
        """
        state = self._state
        is_known = state.containers.get(container_id) is not None
        return is_known or state.forgotten.get(container_id) is not None

    def address(self, datanode_id: str) -> str:
        """Return the address of a datanode. Return an empty string if it never registered."""
        node = self._state.nodes.get(datanode_id)
        return "" if node is None else node.address


def key_containers(key: Key) -> list[int]:
    """Return the ids of the containers that have blocks of a key, sorted."""
    return sorted({block.container_id for block in key.blocks})
