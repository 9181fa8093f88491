"""A container at this moment: its replicas with their nodes, and its pending commands. No I/O.

The judge (`health.judge`) evaluates containers. This module has the facts for the choice of copy
targets.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from health.racks import misplaced_count
from merkle.replica import ReplicaState
from scm.state.entities import Container, ContainerState, NodeHealthState, OpState, Replica

IMPORT_SPACE_FACTOR: Final = 2  # an import needs twice the replica's size until it is complete
LEAVING: Final = frozenset({OpState.DECOMMISSIONING, OpState.DECOMMISSIONED})


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica and its node at this moment."""

    replica: Replica
    health: NodeHealthState
    op_state: OpState
    rack: str

    @property
    def datanode_id(self) -> str:
        """The node that has the replica."""
        return self.replica.datanode_id


def present(placed: Iterable[PlacedReplica]) -> list[PlacedReplica]:
    """Return the replicas that count as present: all except those on DEAD nodes that are not in
    maintenance.

    A node in maintenance is expected back with all its replicas, however long it is silent.
    """
    return [
        p
        for p in placed
        if p.health is not NodeHealthState.DEAD or p.op_state is OpState.IN_MAINTENANCE
    ]


def is_bad(container: Container, replica: Replica) -> bool:
    """Return True if a replica counts as unhealthy: reported as UNHEALTHY, not loadable, or
    quasi-closed without all commits."""
    if replica.state is ReplicaState.UNHEALTHY or replica.load_error:
        return True
    return (
        container.state is ContainerState.CLOSED
        and replica.state is ReplicaState.QUASI_CLOSED
        and replica.bcsid != container.sequence_id
    )


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """A container, its replicas and pending commands, and the number of racks.

    `adds` are the datanodes that are getting a replica, `deletes` those that are losing one.
    `healable_holders` are the datanodes with an unhealthy replica that a repair is expected to
    heal.
    """

    container: Container
    placed: tuple[PlacedReplica, ...]
    adds: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    healable_holders: frozenset[str] = frozenset()
    cluster_rack_count: int = 1


def needed_bytes(case: ContainerContext) -> int:
    """Return the bytes that a node must have free while it makes another replica or shard of this
    container."""
    return IMPORT_SPACE_FACTOR * max((p.replica.used_bytes for p in case.placed), default=0)


def counts_for_racks(case: ContainerContext, p: PlacedReplica) -> bool:
    """Return True if a replica counts for its rack: it is healthy, and its node is neither dead nor
    leaving."""
    is_staying = p.op_state not in LEAVING and p.datanode_id not in case.deletes
    return is_staying and bool(present([p])) and not is_bad(case.container, p.replica)


def is_better_rack(case: ContainerContext, moved: PlacedReplica, rack: str) -> bool:
    """Return True if the shards are spread better over racks if `moved` is on `rack`."""
    racks = [
        p.rack
        for p in present(case.placed)
        if p.replica.state is ReplicaState.CLOSED
        and not is_bad(case.container, p.replica)
        and p.datanode_id not in case.deletes
    ]
    after = [*racks, rack]
    after.remove(moved.rack)
    return _misplaced(case, after) < _misplaced(case, racks)


def _misplaced(case: ContainerContext, racks: list[str]) -> int:
    return misplaced_count(
        racks,
        cluster_rack_count=case.cluster_rack_count,
        required_count=case.container.replication_factor,
        is_scattered=True,
    )


def neighbours(case: ContainerContext) -> tuple[set[str], set[str]]:
    """Return two sets of nodes that must not get a copy. The racks of the first set count as used:
    its nodes have an intact replica (also in maintenance) or a pending copy. The racks of the
    second set do not count: its nodes leave, or their replica is unhealthy or being deleted. Dead
    nodes with replicas are in neither."""
    used, excluded = set(case.adds), set[str]()
    for p in case.placed:
        if p.health is NodeHealthState.DEAD:
            continue
        is_out = (
            p.datanode_id in case.deletes
            or p.op_state in LEAVING
            or is_bad(case.container, p.replica)
        )
        (excluded if is_out else used).add(p.datanode_id)
    return used, excluded


def container_fingerprint(case: ContainerContext) -> int:
    """Return a fingerprint of all facts on which a decision about the container depends."""

    def facts(p: PlacedReplica) -> tuple[object, ...]:
        r = p.replica
        root = None if r.tree is None else r.tree.root
        state = (r.state, r.bcsid, root, r.finding_count, r.load_error)
        return (p.datanode_id, p.health, p.op_state, *state)

    world = [case.container.state, *map(facts, case.placed), *case.adds, "-", *case.deletes]
    return zlib.crc32(repr(world).encode())
