"""A container that a test describes, with facts that otherwise only a batch of the judge has."""

from dataclasses import dataclass

from scm.cluster.container_context import ContainerContext, PlacedReplica
from scm.state.entities import NodeHealthState, OpState


@dataclass(frozen=True, slots=True)
class JudgedReplica(PlacedReplica):
    """A replica. If `is_confirmed`, its node has sent a full report of its replicas."""

    is_confirmed: bool = True

    @property
    def is_staying(self) -> bool:
        """True if its node answers, is in service, and has confirmed the replica."""
        is_here = self.health is NodeHealthState.HEALTHY and self.is_confirmed
        return is_here and self.op_state is OpState.IN_SERVICE


@dataclass(frozen=True, slots=True)
class JudgedContainer(ContainerContext):
    """A container with its replicas. No commands are sent for the replicas on the datanodes
    `excluded`."""

    placed: tuple[JudgedReplica, ...]
    excluded: frozenset[str] = frozenset()
    owes_deletes: bool = False  # a holder has not acknowledged all deletes of blocks
