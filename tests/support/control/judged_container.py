"""A container as a test describes it, with facts that only a batch of the judge contains."""

from dataclasses import dataclass

from scm.cluster.container_context import ContainerContext, PlacedReplica
from scm.state.entities import NodeHealthState, OpState


@dataclass(frozen=True, slots=True)
class JudgedReplica(PlacedReplica):
    """A replica; `is_confirmed` means that its node has reported all its replicas."""

    is_confirmed: bool = True

    @property
    def is_staying(self) -> bool:
        """True if its node answers, is in service, and has confirmed the replica."""
        is_here = self.health is NodeHealthState.HEALTHY and self.is_confirmed
        return is_here and self.op_state is OpState.IN_SERVICE


@dataclass(frozen=True, slots=True)
class JudgedContainer(ContainerContext):
    """A container; no commands are sent for the replicas of `excluded` datanodes."""

    placed: tuple[JudgedReplica, ...]
    excluded: frozenset[str] = frozenset()
    owes_deletes: bool = False  # blocks are deleted that some holder does not know of yet
