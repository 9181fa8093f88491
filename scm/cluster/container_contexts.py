"""Collects the facts about one container, or about possible copy targets, for a decision."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scm.cluster.allocate import TargetCandidate
from scm.cluster.container_context import ContainerContext, PlacedReplica, is_bad, present
from scm.cluster.nodes import NodeManager
from scm.cluster.replica_map import ReportProcessor
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.entities import CommandKind, Container, OpState, Replica
from scm.state.options import ScmOptions


@dataclass(eq=False)
class ContainerContexts:
    """Creates `ContainerContext`s and lists of possible copy targets.

    Callers must hold the control plane's lock.
    """

    state: StateDatabase
    nodes: NodeManager
    reports: ReportProcessor
    clock: ScmClock
    options: ScmOptions

    def __post_init__(self) -> None:
        self._bad_since_s: dict[int, dict[str, float]] = {}
        self._is_one_turn = False
        self._turn: dict[str, TargetCandidate] | None = None

    def case(self, container: Container) -> ContainerContext:
        """Return the facts about a container.

        They are its replicas with their datanodes, and its pending copies and deletes.
        """
        container_id = container.container_id
        replicas = self.state.replicas.of(container_id)
        holders = {replica.datanode_id for replica in replicas}
        placed = tuple(map(self._placed, replicas))
        here = {p.datanode_id for p in present(placed)}
        adds, deletes = [], []
        for command in self.state.commands.of_container(container_id):
            if command.kind is CommandKind.REPLICATE and command.target_id not in holders:
                if self._stays(command.target_id):
                    adds.append(command.target_id)
            elif command.kind is CommandKind.DELETE and command.datanode_id in here:
                deletes.append(command.datanode_id)
        return ContainerContext(
            container,
            placed,
            adds=tuple(adds),
            deletes=tuple(deletes),
            healable_holders=self._hopeful(container, replicas),
            cluster_rack_count=self.nodes.rack_count(),
        )

    def is_confirmed(self, datanode_id: str) -> bool:
        """Return True if a datanode has reported all its replicas since this SCM started."""
        return datanode_id in self.reports.confirmed

    def places_in_grace(self, container_ids: Sequence[int]) -> list[int]:
        """Return the positions in `container_ids` of containers that a repair may still heal.

        These containers had unhealthy replicas at their last evaluation.
        """
        return [i for i, number in enumerate(container_ids) if number in self._bad_since_s]

    def healable_holders(self, container_id: int) -> frozenset[str]:
        """Return the datanodes whose replica of this container became unhealthy only recently.

        A repair may still heal these replicas.
        """
        container = self.state.containers.get(container_id)
        if container is None:
            return frozenset()
        return self._hopeful(container, self.state.replicas.of(container_id))

    def all_hopeful(self) -> frozenset[tuple[int, str]]:
        """Return the unhealthy replicas that a repair may still heal.

        Each is a pair of a container id and a datanode id.
        """
        return frozenset(
            (number, node)
            for number in list(self._bad_since_s)
            for node in self.healable_holders(number)
        )

    def containers_with_unacknowledged_deletes(self) -> frozenset[int]:
        """Return the containers with block deletes that some live datanode has not acknowledged."""
        return frozenset(
            filter(self.has_unacknowledged_deletes, self.state.transactions.container_ids())
        )

    def live_replicas(self, container_id: int) -> list[Replica]:
        """Return the replicas of a container except those on dead datanodes.

        The control plane does not wait for a dead datanode, and does not rely on its last report.
        If the datanode returns, its replica counts again. Replicas on datanodes in maintenance
        always count.
        """
        held = map(self._placed, self.state.replicas.of(container_id))
        return [p.replica for p in present(held)]

    def has_unacknowledged_deletes(self, container_id: int) -> bool:
        """Return True if some live datanode with a replica has not acknowledged a block delete."""
        if not self.state.transactions.has_any(container_id):
            return False
        living = self.nodes.live_replicas(self.state.replicas.of(container_id))
        holders = {replica.datanode_id for replica in living}
        transactions = self.state.transactions.of(container_id)
        return any(not holders.issubset(t.acknowledged_by) for t in transactions)

    def _stays(self, datanode_id: str) -> bool:
        """Return True if a datanode is in service.

        An operator has then not ordered it to leave.
        """
        node = self.state.nodes.get(datanode_id)
        return node is None or node.op_state is OpState.IN_SERVICE

    @contextmanager
    def cached_candidates(self) -> Iterator[None]:
        """Cache the result of `candidates` while the body runs.

        `reserve_space` updates the cached result.
        """
        self._is_one_turn = True
        try:
            yield
        finally:
            self._is_one_turn, self._turn = False, None

    def reserve_space(self, datanode_id: str, size_bytes: int) -> None:
        """Reserve space for a new copy on a datanode in the cached result of `candidates`."""
        if self._turn is not None and datanode_id in self._turn:
            known = self._turn[datanode_id]
            scheduled_bytes = known.scheduled_bytes + size_bytes
            self._turn[datanode_id] = replace(known, scheduled_bytes=scheduled_bytes)

    def candidates(self) -> list[TargetCandidate]:
        """Return the datanodes that can receive replicas, with their free and reserved space.

        These datanodes are reachable and in service.
        """
        if self._turn is None and self._is_one_turn:
            self._turn = {found.datanode_id: found for found in self._candidates()}
        return self._candidates() if self._turn is None else list(self._turn.values())

    def _candidates(self) -> list[TargetCandidate]:
        scheduled: dict[str, int] = {}
        for container in self.state.containers.open_all():
            bytes_max = self.options.container_bytes_max
            needed_bytes = container.allocated_bytes if container.is_sealed else bytes_max
            left_bytes = needed_bytes - container.committed_bytes
            for datanode_id in container.pipeline:
                scheduled[datanode_id] = scheduled.get(datanode_id, 0) + max(0, left_bytes)
        return [
            candidate
            for node in self.state.nodes.values()
            if (candidate := self._candidate(node.datanode_id, scheduled)) is not None
        ]

    def _candidate(self, datanode_id: str, scheduled: dict[str, int]) -> TargetCandidate | None:
        node = self.state.nodes.get(datanode_id)
        live = self.nodes.liveness(datanode_id)
        if node is None or live is None or not self.nodes.takes_replicas(datanode_id):
            return None
        coming_bytes = sum(
            command.size_bytes for command in self.state.commands.adds_to(datanode_id)
        )
        working = [volume.available_bytes for volume in live.volumes if not volume.failed]
        return TargetCandidate(
            datanode_id=datanode_id,
            rack=node.rack,
            capacity_bytes=live.capacity_bytes,
            available_bytes=live.available_bytes,
            largest_volume_bytes=max(working, default=0),
            used_bytes=live.used_bytes,
            scheduled_bytes=scheduled.get(datanode_id, 0) + coming_bytes,
            has_failed_lately=self.nodes.has_failed_lately(datanode_id),
        )

    def _placed(self, replica: Replica) -> PlacedReplica:
        node = self.state.nodes.get(replica.datanode_id)
        return PlacedReplica(
            replica,
            self.nodes.health(replica.datanode_id),
            OpState.IN_SERVICE if node is None else node.op_state,
            "" if node is None else node.rack,
        )

    def _hopeful(self, container: Container, replicas: Iterable[Replica]) -> frozenset[str]:
        """Return the datanodes whose replica became unhealthy less than `repair_grace_ms` ago.

        A repair of single chunks is cheaper and safer than a copy of the container. Therefore, the
        SCM waits for a repair during this time before it orders a copy.
        """
        bad = {
            replica.datanode_id
            for replica in replicas
            if replica.tree is not None and not replica.load_error and is_bad(container, replica)
        }
        if not bad:
            self._bad_since_s.pop(container.container_id, None)
            return frozenset()
        now_s = self.clock.monotonic_s()
        known = self._bad_since_s.get(container.container_id, {})
        since_s = {node: known.get(node, now_s) for node in bad}
        self._bad_since_s[container.container_id] = since_s
        grace_s = self.options.repair_grace_ms / 1000
        return frozenset(node for node in bad if now_s - since_s[node] < grace_s)
