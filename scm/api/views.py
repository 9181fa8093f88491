"""Frozen views of the state for operators, clients and snapshots."""

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
"""State shown for a container that datanodes reported and this SCM did not make."""
MARKED_LOST_STATE: Final = "MARKED_LOST"
"""State shown for a container that an operator gave up, even if a datanode reports a replica of
it."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with its current health."""

    node: Node
    health: NodeHealthState
    heartbeat_at_ms: int
    live: Liveness | None
    container_count: int
    has_reported: bool
    """True if the node has reported all its replicas since it registered with this process."""
    is_managed: bool


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica with its node's address and health."""

    replica: Replica
    address: str  # empty if the node is not registered
    node_health: NodeHealthState


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container with its replicas. `container` is None if the control plane did not make it."""

    container_id: int
    container: Container | None
    replicas: tuple[ReplicaView, ...]
    is_forgotten: bool = False
    wait: ContainerWait | None = None

    @property
    def state(self) -> str:
        """The container's state as a word."""
        if self.is_forgotten:
            return MARKED_LOST_STATE
        return UNKNOWN_STATE if self.container is None else self.container.state

    @property
    def used_bytes(self) -> int:
        """Bytes of the largest replica that is not UNHEALTHY; the committed bytes if there is
        none."""
        return used_bytes(self.container, [view.replica for view in self.replicas])


def used_bytes(container: Container | None, replicas: Sequence[Replica]) -> int:
    """Return the bytes of the largest replica that is not UNHEALTHY; the committed bytes if there
    is none."""
    committed_bytes = 0 if container is None else container.committed_bytes
    reported = [r.used_bytes for r in replicas if r.state is not ReplicaState.UNHEALTHY]
    return max(reported, default=committed_bytes)


def block_count(container: Container, replicas: Sequence[Replica]) -> int:
    """Return the largest number of blocks of a replica that is not UNHEALTHY; the committed blocks
    if there is none."""
    reported = [r.block_count for r in replicas if r.state is not ReplicaState.UNHEALTHY]
    return max(reported, default=container.committed_count)


def checksums_hint(replicas: Sequence[Replica]) -> str:
    """Return "match", "differ" or "unknown", from the trees of replicas. It is a hint for
    operators; the Spark job makes the exact classification."""
    trees = [replica.tree for replica in replicas if replica.state in TREE_STATES]
    known = [tree for tree in trees if tree is not None]
    answers = {compare(known[0], tree) for tree in known[1:]}
    if answers & {SummaryComparison.DIFFERENT, SummaryComparison.TOMBSTONES_DIFFER}:
        return "differ"
    if not known or len(known) != len(replicas) or SummaryComparison.NOT_COMPARABLE in answers:
        return "unknown"
    return "match"


def shards_hint(replicas: Sequence[Replica]) -> str:
    """Return "differ" or "unknown" for an erasure-coded container, as `checksums_hint` does;
    otherwise "shards", because shards of different indexes are never equal.

    Only replicas of the same index are compared.
    """
    by_index: dict[int, list[Replica]] = {}
    for replica in replicas:
        by_index.setdefault(replica.replica_index, []).append(replica)
    answers = {checksums_hint(twins) for twins in by_index.values()}
    if "differ" in answers:
        return "differ"
    return "unknown" if "unknown" in answers or not answers else "shards"


def comparison(container: Container | None, replicas: Sequence[Replica]) -> str:
    """Return the result of comparing a container's replicas: "match", "differ" or "unknown". For an
    erasure-coded container, "shards" replaces "match", because shards of different indexes are
    never equal."""
    is_coded = container is not None and bool(container.scheme)
    return shards_hint(replicas) if is_coded else checksums_hint(replicas)


@dataclass(eq=False)
class ViewBuilder(ControlComponent):
    """Builds views (frozen copies for display) of nodes and containers. Callers of methods without
    `@locked` or `@state_change` hold the lock."""

    _reports: ReportProcessor
    _waits: ContainerWaits

    def nodes(self, datanode_ids: Sequence[str] | None = None) -> list[NodeView]:
        """Return nodes by id: all, or those of the given ids that are known."""
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
        """Return one container. Raise RefusedError(CONTAINER_NOT_FOUND) if it does not exist."""
        view = self.find_container(container_id)
        if view is None:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"no container {container_id}",
                container_id=container_id,
            )
        return view

    def find_container(self, container_id: int) -> ContainerView | None:
        """Return one container; None if there is none. Containers that were given up, or that only
        a datanode reported, are returned, too."""
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
        """Return up to `count` containers from id `start` on, and the id to continue at; 0 means
        that this is the last page.

        The control plane's ids are dense, so the cost depends on the page and not on the cluster.
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
        """Return True if this control plane made the container. `containers` skips other ids
        without reading replicas."""
        state = self._state
        is_known = state.containers.get(container_id) is not None
        return is_known or state.forgotten.get(container_id) is not None

    def address(self, datanode_id: str) -> str:
        """Return a datanode's address; empty if it never registered."""
        node = self._state.nodes.get(datanode_id)
        return "" if node is None else node.address


def key_containers(key: Key) -> list[int]:
    """Return the ids of the containers with blocks of a key, ascending."""
    return sorted({block.container_id for block in key.blocks})
