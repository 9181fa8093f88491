"""How many replicas a container has, lacks, or has too many of. Pure.

The counts are Ozone's (`RatisContainerReplicaCount`; the one-letter names are its): every add is
assumed to fail and every delete to succeed, so a decision is right however the pending ones end.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.replica import ReplicaState
from scm.facts import Container, ContainerState, Health, OpState, Replica

LEAVING: Final = frozenset({OpState.DECOMMISSIONING, OpState.DECOMMISSIONED})
RESTING: Final = frozenset({OpState.ENTERING_MAINTENANCE, OpState.IN_MAINTENANCE})


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
class Band:
    """How many replicas are enough, and how many are too many (S5.3); 0: what is required.

    Between the two nothing is copied and nothing deleted: a node that comes and goes costs nothing.
    """

    low_count: int = 0
    high_count: int = 0


NO_BAND: Final = Band()


@dataclass(frozen=True, slots=True)
class Tally:
    """Replicas by what they are worth, and what is pending."""

    required_count: int  # fewer lack
    allowed_count: int  # more are too many
    maintenance_min_count: int
    available_count: int  # on nodes in service
    leaving_count: int  # on nodes that are decommissioned
    resting_count: int  # on nodes in or entering maintenance
    add_count: int
    delete_count: int
    total_count: int  # of any worth

    @property
    def missing_count(self) -> int:
        """Replicas that lack without regard to what is pending; negative: too many.

        Maintenance copies count, but `maintenance_min_count` must be online in any case.
        """
        delta = self.required_count - self.available_count
        if delta <= 0:
            return min(0, self.allowed_count - self.available_count)
        online_min = min(self.required_count, self.maintenance_min_count)
        return max(0, online_min - self.available_count, delta - self.resting_count)

    def redundancy(self, *, with_deletes: bool, with_adds: bool) -> int:
        """Replicas that lack if the pending ones of these kinds come true."""
        deletes = self.delete_count if with_deletes else 0
        adds = self.add_count if with_adds else 0
        return self.missing_count + deletes - adds

    def is_sufficient(self, *, with_adds: bool) -> bool:
        """Whether no replica lacks once all pending deletes are done."""
        return self.redundancy(with_deletes=True, with_adds=with_adds) <= 0

    def excess_count(self, *, with_deletes: bool) -> int:
        """Replicas more than needed, not counting on any pending add."""
        return max(0, -self.redundancy(with_deletes=with_deletes, with_adds=False))

    @property
    def needed_count(self) -> int:
        """Replicas to make beside the pending ones."""
        return max(0, self.redundancy(with_deletes=True, with_adds=True))

    @property
    def remaining_redundancy(self) -> int:
        """Replicas that may still be lost before the last one is."""
        worth = self.available_count + self.leaving_count + self.resting_count
        return max(0, worth - self.delete_count - 1)

    @property
    def is_due_to_out_of_service(self) -> bool:
        """Whether nothing is lost: all that lacks is on nodes on their way out."""
        lacking = self.redundancy(with_deletes=True, with_adds=False)
        return 0 < lacking <= self.leaving_count + self.resting_count


def tally(
    container: Container,
    placed: Sequence[Placed],
    *,
    adds: Collection[str] = (),
    deletes: Collection[str] = (),
    with_unhealthy: bool,
    maintenance_min_count: int = 2,
    hopeful: Collection[str] = (),
    band: Band = NO_BAND,
) -> Tally:
    """Count the replicas of a container.

    `adds` and `deletes` are the datanodes of pending ops; `hopeful` are datanodes whose unhealthy
    replica a repair is still expected to heal, so that it counts as a good one.
    """
    here = present(placed)
    counted = [
        p
        for p in here
        if with_unhealthy or p.datanode_id in hopeful or not is_bad(container, p.replica)
    ]
    names = {p.datanode_id for p in counted}
    unhealthy = {p.datanode_id for p in here if p.replica.state is ReplicaState.UNHEALTHY}
    gone = [node for node in deletes if node in names or node not in unhealthy]
    required = container.replication_factor
    return Tally(
        required_count=min(required, band.low_count or required),
        allowed_count=max(required, band.high_count),
        maintenance_min_count=maintenance_min_count,
        available_count=sum(p.op_state is OpState.IN_SERVICE for p in counted),
        leaving_count=sum(p.op_state in LEAVING for p in counted),
        resting_count=sum(p.op_state in RESTING for p in counted),
        add_count=len(adds),
        delete_count=len(gone),
        total_count=len(here),
    )
