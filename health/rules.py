"""The parameters of the rules that an operator may change; the defaults are Ozone's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The parameters of the rules for all containers of a batch."""

    maintenance_min: int = 2
    """Replicas of a Ratis container that stay online during maintenance."""

    ec_redundancy: int = 1
    """EC indexes beyond `data` that stay online during maintenance."""

    best_origin_copies: int = 3
    """Replicas to keep of each origin of a stuck quasi-closed container that has its highest commit
    id."""

    other_origin_copies: int = 2
    """Replicas to keep of each other origin of a stuck quasi-closed container."""

    enough_copies: int = 0
    """Number of Ratis replicas below which copies are made; 0 = the container's factor. Between
    this and `most_copies` no replica is copied or deleted, so that a node which is absent for a
    short time causes no copies."""

    most_copies: int = 0
    """Number of Ratis replicas above which the surplus is deleted; 0 = the container's factor."""

    leaving_min: int = 0
    """Number of Ratis replicas in service on other nodes that a decommissioning node waits for; 0 =
    the container's factor."""

    rack_count: int = 1
    """Number of racks with a node that is not dead."""
