"""Everything that the cluster's pages show, as values of nearly one moment.

It is collected in portions, so that no call waits for it. A node may be shown as it was a tenth of
a second before the containers were counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scm.administration.decommission import Departure
from scm.edge.health_totals import Flag
from scm.edge.overview.chronicle import Past
from scm.edge.overview.cluster_look import Look
from scm.edge.overview.progress import Rate
from scm.edge.views import ContainerView, NodeView
from scm.state.facts import Kind


@dataclass(frozen=True, slots=True)
class Work:
    """Commands of one kind: the number pending, and the rate at which they are done."""

    kind: Kind
    pending_count: int
    rate: Rate


@dataclass(frozen=True, slots=True)
class Named:
    """The number of containers with a condition, and the first of them."""

    flag: Flag
    count: int
    first: Sequence[ContainerView]


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts of the cluster's pages."""

    look: Look
    cluster_id: str
    term: int
    started_at_ms: int
    nodes: Sequence[NodeView]
    works: Sequence[Work]
    under_count: int  # containers waiting to be copied or rebuilt
    over_count: int
    departures: Sequence[Departure]  # the first
    departing_count: int
    named: Sequence[Named]
    past: Past
    hold_count: int
    forgotten_count: int
