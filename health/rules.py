"""The parameters of the rules that an operator may change; the defaults are Ozone's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The parameters for a whole batch."""

    maintenance_min: int = 2
    """Replicas of a Ratis container that stay online during maintenance."""

    ec_redundancy: int = 1
    """EC indexes beyond `data` that stay online during maintenance."""

    best_origin_copies: int = 3
    """Stuck quasi-closed: replicas of each origin that holds the highest commit id."""

    other_origin_copies: int = 2
    """Stuck quasi-closed: replicas of every other origin."""

    enough_copies: int = 0
    """Ratis replicas below which copies are made; 0: as many as the container should have. Between
    this and `most_copies` nothing is copied and nothing deleted: a node that comes and goes costs
    nothing."""

    most_copies: int = 0
    """Ratis replicas above which the surplus is deleted; 0: as many as it should have."""

    leaving_min: int = 0
    """Ratis replicas in service elsewhere for which a node that leaves for good waits; 0: as many
    as the container should have."""

    rack_count: int = 1
    """Racks of the cluster that have a node which is not dead."""
