"""Sums of the figures that datanodes report, by rack and in total. No I/O."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scm.api.views import NodeView
from scm.state.entities import NodeHealthState, OpState, ReportedVolume
from scm.state.history.interval_samples import NEVER_VERIFIED, NOTHING_TO_VERIFY
from suture.observe.terminal_escape import short_id

GONE: Final = OpState.DECOMMISSIONED
"""State of a node of which no replica is expected, and which may be switched off."""


def is_silent(view: NodeView) -> bool:
    """Return True if a node that has not left the cluster is STALE or DEAD."""
    return view.health is not NodeHealthState.HEALTHY and view.node.op_state is not GONE


def is_unreported(view: NodeView) -> bool:
    """Return True if a node sends heartbeats but has not yet reported all its replicas to this
    process."""
    return view.health is NodeHealthState.HEALTHY and not view.has_reported


def volumes_of(view: NodeView) -> Sequence[ReportedVolume]:
    """Return the last reported volumes of a node; the report may be older than this process."""
    return () if view.live is None else view.live.volumes


@dataclass(slots=True)
class NodeTotals:
    """Totals of the figures that some nodes report. For a silent node, its last report counts.
    `silent` names the silent nodes."""

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
        """Number of nodes expected to call: all but those that have left."""
        return self.heard_count + len(self.silent)

    def add(self, view: NodeView) -> None:
        """Add the figures of one more node to the totals."""
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
    """Return the time of a volume's oldest verification, NOTHING_TO_VERIFY, or NEVER_VERIFIED."""
    if volume.failed or not (volume.data_bytes or volume.container_count):
        return NOTHING_TO_VERIFY
    return volume.oldest_scan_at_ms or NEVER_VERIFIED


def summed(views: Iterable[NodeView], name: str = "") -> NodeTotals:
    """Return the totals of some nodes under the name `name`."""
    sums = NodeTotals(name)
    for view in views:
        sums.add(view)
    return sums


def by_rack(views: Iterable[NodeView]) -> list[NodeTotals]:
    """Return the totals of each rack, sorted by its name."""
    racks: dict[str, NodeTotals] = {}
    for view in views:
        rack = view.node.rack
        racks.setdefault(rack, NodeTotals(rack)).add(view)
    return [racks[name] for name in sorted(racks)]
