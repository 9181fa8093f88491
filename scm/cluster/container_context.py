"""The facts about one container at this moment: its replicas, their datanodes, pending commands.

No I/O. `health.judge` computes the health of containers. The functions of this module prepare the
choice of targets for copies.
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
    """A replica, and the state of its datanode at this moment."""

    replica: Replica
    health: NodeHealthState
    op_state: OpState
    rack: str

    @property
    def datanode_id(self) -> str:
        """Return the id of the datanode that has the replica."""
        return self.replica.datanode_id


def present(placed: Iterable[PlacedReplica]) -> list[PlacedReplica]:
    """Return the replicas that count as present.

    A replica does not count if its datanode is DEAD and not in maintenance. A datanode in
    maintenance is expected to return with all its replicas, however long it has sent no heartbeat.
    """
    return [
        p
        for p in placed
        if p.health is not NodeHealthState.DEAD or p.op_state is OpState.IN_MAINTENANCE
    ]


def is_bad(container: Container, replica: Replica) -> bool:
    """Return True if a replica counts as unhealthy.

    That is the case if its datanode reports it as UNHEALTHY or as not loadable, or if it is
    QUASI_CLOSED without all commits of a CLOSED container.
    """
    if replica.state is ReplicaState.UNHEALTHY or replica.load_error:
        return True
    return (
        container.state is ContainerState.CLOSED
        and replica.state is ReplicaState.QUASI_CLOSED
        and replica.bcsid != container.sequence_id
    )


@dataclass(frozen=True, slots=True)
class ContainerContext:
    """The facts about one container at this moment.

    `adds` are the datanodes to which a copy is pending, and `deletes` those from which a delete is
    pending. `healable_holders` are the datanodes with an unhealthy replica that a repair is
    expected to heal. `cluster_rack_count` is the number of racks of the cluster.
    """

    container: Container
    placed: tuple[PlacedReplica, ...]
    adds: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    healable_holders: frozenset[str] = frozenset()
    cluster_rack_count: int = 1


def needed_bytes(case: ContainerContext) -> int:
    """Return the free space in bytes that a datanode needs for a copy of this container.

    The container may also be erasure-coded; the copy is then a shard.
    """
    return IMPORT_SPACE_FACTOR * max((p.replica.used_bytes for p in case.placed), default=0)


def counts_for_racks(case: ContainerContext, p: PlacedReplica) -> bool:
    """Return True if the rack of a replica counts as a rack that its container uses.

    The replica must be healthy and not be deleted, and its datanode must be neither dead nor
    leaving.
    """
    is_staying = p.op_state not in LEAVING and p.datanode_id not in case.deletes
    return is_staying and bool(present([p])) and not is_bad(case.container, p.replica)


def is_better_rack(case: ContainerContext, moved: PlacedReplica, rack: str) -> bool:
    """Return True if the shards would be on more racks after one shard moved to `rack`."""
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
    """Return two sets of datanodes that must not receive a copy of this container.

    The first set contains the datanodes whose racks count as used, because they have an intact
    replica or a pending copy. The second set contains the datanodes whose racks do not count,
    because they leave, or because their replica is unhealthy or being deleted. Dead datanodes are
    in neither set.
    """
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
    """Return a checksum of all facts on which decisions about the container depend.

    The value changes if one of these facts changes.
    """

    def facts(p: PlacedReplica) -> tuple[object, ...]:
        r = p.replica
        root = None if r.tree is None else r.tree.root
        state = (r.state, r.bcsid, root, r.finding_count, r.load_error)
        return (p.datanode_id, p.health, p.op_state, *state)

    world = [case.container.state, *map(facts, case.placed), *case.adds, "-", *case.deletes]
    return zlib.crc32(repr(world).encode())
