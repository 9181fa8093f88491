"""A container as it is now: its replicas with their nodes, and what is pending. Pure.

What follows from that is the judge's to say (`health.judge`); this is what is looked at where one
container is concerned: where a copy may go, and whether a replica may really be removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from merkle.replica import ReplicaState
from scm.state.facts import Container, ContainerState, Health, OpState, Replica

IMPORT_SPACE_FACTOR: Final = 2  # a replica needs its size beside itself until it is whole
LEAVING: Final = frozenset({OpState.DECOMMISSIONING, OpState.DECOMMISSIONED})


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica and its node as they are now.

    `is_confirmed` says that the node has named all its replicas since this control plane
    started: what was only read back from disk may be gone since.
    """

    replica: Replica
    health: Health
    op_state: OpState
    rack: str
    is_confirmed: bool = True

    @property
    def datanode_id(self) -> str:
        """The node that holds it."""
        return self.replica.datanode_id


def present(placed: Iterable[Placed]) -> list[Placed]:
    """Return what counts as being there: all but what died with its node.

    A node in maintenance is expected back with all its replicas, however long it is silent.
    """
    return [
        p for p in placed if p.health is not Health.DEAD or p.op_state is OpState.IN_MAINTENANCE
    ]


def is_bad(container: Container, replica: Replica) -> bool:
    """Whether a replica counts as unhealthy: its own word, unloadable, or quasi-closed behind."""
    if replica.state is ReplicaState.UNHEALTHY or replica.load_error:
        return True
    return (
        container.state is ContainerState.CLOSED
        and replica.state is ReplicaState.QUASI_CLOSED
        and replica.bcsid != container.sequence_id
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A container, its replicas and pending ops, and how many racks there are.

    `adds` and `deletes` are the datanodes to which a replica comes and from which one goes;
    `hopeful` are those whose unhealthy replica a repair is expected to heal.
    """

    container: Container
    placed: tuple[Placed, ...]
    adds: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    hopeful: frozenset[str] = frozenset()
    cluster_rack_count: int = 1
    excluded: frozenset[str] = frozenset()  # nothing is ordered of these datanodes' replicas
    owes_deletes: bool = False  # blocks are deleted that not every holder knows of yet


def needed_bytes(case: Case) -> int:
    """Return the space that another of its replicas or shards needs while it is made."""
    return IMPORT_SPACE_FACTOR * max((p.replica.bytes_used for p in case.placed), default=0)


def counts_for_racks(case: Case, p: Placed) -> bool:
    """Whether a replica keeps its container on its rack: good, and neither dead nor leaving."""
    is_staying = p.op_state not in LEAVING and p.datanode_id not in case.deletes
    return is_staying and bool(present([p])) and not is_bad(case.container, p.replica)


def neighbours(case: Case) -> tuple[set[str], set[str]]:
    """Return the nodes that count for racks, and those that do not; no copy goes to either.

    The first are good replicas, maintenance ones included, and pending adds; the second are those
    that are bad, leaving or being deleted. What died in maintenance is in neither.
    """
    used, excluded = set(case.adds), set[str]()
    for p in case.placed:
        if p.health is Health.DEAD:
            continue
        is_out = (
            p.datanode_id in case.deletes
            or p.op_state in LEAVING
            or is_bad(case.container, p.replica)
        )
        (excluded if is_out else used).add(p.datanode_id)
    return used, excluded
