"""Totals of the volumes and replicas that datanodes report, per rack and for the cluster.

No I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scm.api.views import NodeView
from scm.state.entities import NodeHealthState, OpState, ReportedVolume
from scm.state.history.interval_samples import NEVER_VERIFIED, NOTHING_TO_VERIFY
from suture.observe.terminal_escape import short_id

GONE: Final = OpState.DECOMMISSIONED
"""Operational state of a datanode that may be stopped. The SCM expects no replicas from it."""


def is_silent(view: NodeView) -> bool:
    """Return True if a datanode is STALE or DEAD and is not decommissioned."""
    return view.health is not NodeHealthState.HEALTHY and view.node.op_state is not GONE


def is_unreported(view: NodeView) -> bool:
    """Return True if a datanode sends heartbeats but has not reported all its replicas yet.

    Only reports to this process of the control plane count.
    """
    return view.health is NodeHealthState.HEALTHY and not view.has_reported


def volumes_of(view: NodeView) -> Sequence[ReportedVolume]:
    """Return the volumes that a datanode reported last.

    The report may be older than this process.
    """
    return () if view.live is None else view.live.volumes


@dataclass(slots=True)
class NodeTotals:
    """Totals of the volumes and replicas of several datanodes, for instance of one rack.

    For a silent datanode, the values of its last report are added. `silent` has the ids of these
    datanodes.
    """

    name: str = ""
    node_count: int = 0
    heard_count: int = 0
    silent: list[str] = field(default_factory=list)  # ids of nodes
    unreported: list[str] = field(default_factory=list)
    container_count: int = 0  # number of replicas
    volume_count: int = 0
    failed_volume_count: int = 0
    capacity_bytes: int = 0
    available_bytes: int = 0
    used_bytes: int = 0
    data_bytes: int = 0
    in_time_bytes: int = 0
    oldest_scan_at_ms: int = NOTHING_TO_VERIFY
    oldest_on: str = ""  # path and node of the volume, for display

    @property
    def expected_count(self) -> int:
        """Return the number of datanodes that should send heartbeats.

        These are all datanodes except decommissioned ones.
        """
        return self.heard_count + len(self.silent)

    def add(self, view: NodeView) -> None:
        """Add the values of one more datanode to the totals."""
        name = view.node.datanode_id
        self.node_count += 1
        self.container_count += view.container_count
        if is_silent(view):
            self.silent.append(name)
        if is_unreported(view):
            self.unreported.append(name)
        if view.health is NodeHealthState.HEALTHY:
            self.heard_count += 1
        elif view.node.op_state is GONE:
            return  # a node that was stopped on purpose has neither space nor data
        for volume in volumes_of(view):
            self._add_volume(name, volume)

    def _add_volume(self, name: str, volume: ReportedVolume) -> None:
        self.volume_count += 1
        if volume.failed:
            self.failed_volume_count += 1
            return
        self.capacity_bytes += volume.capacity_bytes
        self.available_bytes += volume.available_bytes
        self.used_bytes += volume.used_bytes
        self.data_bytes += volume.data_bytes
        self.in_time_bytes += volume.in_time_bytes
        at_ms = verified_at_ms(volume)
        if at_ms != NOTHING_TO_VERIFY and (
            self.oldest_scan_at_ms == NOTHING_TO_VERIFY or at_ms < self.oldest_scan_at_ms
        ):
            self.oldest_scan_at_ms = at_ms
            self.oldest_on = f"{volume.path} of {short_id(name)}"


def verified_at_ms(volume: ReportedVolume) -> int:
    """Return the time of the oldest full read of any replica on a volume, in ms since 1970.

    Return NOTHING_TO_VERIFY if the volume has failed or has no data. Return NEVER_VERIFIED if some
    data was never read.
    """
    if volume.failed or not (volume.data_bytes or volume.container_count):
        return NOTHING_TO_VERIFY
    return volume.oldest_scan_at_ms or NEVER_VERIFIED


def summed(views: Iterable[NodeView], name: str = "") -> NodeTotals:
    """Return the totals of these datanodes. `name` becomes the name of the totals."""
    sums = NodeTotals(name)
    for view in views:
        sums.add(view)
    return sums


def by_rack(views: Iterable[NodeView]) -> list[NodeTotals]:
    """Return the totals of each rack, sorted by the name of the rack."""
    racks: dict[str, NodeTotals] = {}
    for view in views:
        rack = view.node.rack
        racks.setdefault(rack, NodeTotals(rack)).add(view)
    return [racks[name] for name in sorted(racks)]
