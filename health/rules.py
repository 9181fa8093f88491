"""The parameters of the health rules that an operator may change. The defaults are Ozone's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The parameters that the health rules use for all containers of a batch."""

    maintenance_min: int = 2
    """Replicas of a Ratis container that stay online during maintenance."""

    ec_redundancy: int = 1
    """EC indexes beyond `data` that stay online during maintenance."""

    best_origin_copies: int = 3
    """For a stuck quasi-closed container: number of replicas to keep of each origin (datanode that
    received writes) with the container's highest commit id."""

    other_origin_copies: int = 2
    """For a stuck quasi-closed container: number of replicas to keep of each other origin."""

    enough_copies: int = 0
    """Number of Ratis replicas below which copies are made; 0 = the container's factor. If the
    number of replicas is between this and `most_copies`, none is copied or deleted. Therefore a
    node that is absent for a short time causes no copies."""

    most_copies: int = 0
    """Number of Ratis replicas above which the surplus is deleted; 0 = the container's factor."""

    leaving_min: int = 0
    """Number of Ratis replicas in service on other nodes that must exist before a decommissioning
    node may leave; 0 = the container's factor."""

    rack_count: int = 1
    """Number of racks with a node that is not dead."""
