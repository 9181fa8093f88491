"""The facts that the cluster's web pages show, read at nearly the same moment.

The facts are read in portions, so that no other call waits for the lock for long. The facts about a
datanode may be a tenth of a second older than the counts of containers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scm.administration.decommission import DepartureStatus
from scm.api.cluster_status.cluster_look import Look
from scm.api.cluster_status.progress import CompletionRate
from scm.api.cluster_status.status_history import StatusHistoryData
from scm.api.health_totals import Flag
from scm.api.views import ContainerView, NodeView
from scm.state.entities import CommandKind


@dataclass(frozen=True, slots=True)
class CommandBacklog:
    """The number of pending commands of one kind, and the rate at which such commands end."""

    kind: CommandKind
    pending_count: int
    rate: CompletionRate


@dataclass(frozen=True, slots=True)
class FlaggedContainers:
    """The containers with one condition: their number, and the first of them."""

    flag: Flag
    count: int
    first: Sequence[ContainerView]


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """The facts that the cluster's web pages show."""

    look: Look
    cluster_id: str
    term: int
    started_at_ms: int
    nodes: Sequence[NodeView]
    works: Sequence[CommandBacklog]
    under_count: int  # containers waiting to be copied or rebuilt
    over_count: int
    departures: Sequence[DepartureStatus]  # the first departures
    departing_count: int
    named: Sequence[FlaggedContainers]
    past: StatusHistoryData
    settings: Sequence[str]  # in force by an operator's command
    hold_count: int
    forgotten_count: int
