"""Sorts datanodes and volumes by urgency, for pages that do not show all of them. No I/O."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from scm.api.cluster_status.datanode_totals import (
    NodeTotals,
    is_silent,
    is_unreported,
    summed,
    verified_at_ms,
    volumes_of,
)
from scm.api.views import NodeView
from scm.state.entities import NodeHealthState, OpState, ReportedVolume
from scm.state.history.interval_samples import NOTHING_TO_VERIFY
from suture.pages.html import age

FULL_PERCENT: Final = 90


@dataclass(frozen=True, slots=True)
class RankedVolume:
    """A volume, and the id of its datanode."""

    datanode_id: str
    volume: ReportedVolume


def used_percent(capacity_bytes: int, available_bytes: int) -> int:
    """Return the used share of the capacity in percent.

    Space on volumes that accept no more writes counts as used.
    """
    if not capacity_bytes:
        return 0
    return max(0, capacity_bytes - available_bytes) * 100 // capacity_bytes


def fill_percent(volume: ReportedVolume) -> int:
    """Return the used share of a volume in percent.

    Return 0 if the volume accepts no new replicas.
    """
    return used_percent(volume.capacity_bytes, volume.available_bytes) * volume.takes_replicas


def worst_nodes(views: Sequence[NodeView], count: int) -> list[NodeView]:
    """Return the `count` most urgent datanodes, most urgent first."""
    return nlargest(count, views, key=_node_weight)


def worst_volumes(views: Iterable[NodeView], count: int) -> list[RankedVolume]:
    """Return the `count` most urgent volumes.

    Failed volumes come first, then almost full volumes, then those whose data is unverified
    longest.
    """
    places = (RankedVolume(v.node.datanode_id, volume) for v in views for volume in volumes_of(v))
    return nlargest(count, places, key=_volume_weight)


def worst_racks(racks: Sequence[NodeTotals], count: int) -> list[NodeTotals]:
    """Return the `count` most urgent racks. Racks without problems keep their order."""
    order = {id(rack): -place for place, rack in enumerate(racks)}
    return nlargest(
        count,
        racks,
        key=lambda rack: (
            len(rack.silent),
            rack.failed_volume_count,
            len(rack.unreported),
            order[id(rack)],
        ),
    )


def remarks(view: NodeView, now_ms: int) -> Iterator[str]:
    """Yield a text for each problem of a datanode, most serious first."""
    if view.health is not NodeHealthState.HEALTHY:
        word = "dead" if view.health is NodeHealthState.DEAD else "silent"
        heard_ms = view.heartbeat_at_ms
        yield (
            f"{word}, last heartbeat {age(heard_ms, now_ms)} ago" if heard_ms else f"{word} so far"
        )
    elif is_unreported(view):
        yield "has not reported all replicas since the start"
    volumes = volumes_of(view)
    failed = sum(volume.failed for volume in volumes)
    if failed:
        yield f"{failed} of {len(volumes)} volumes failed"
    if view.node.op_state is not OpState.IN_SERVICE:
        yield view.node.op_state.lower().replace("_", " ")
    if view.node.is_read_only:
        yield f"read-only: layout {view.node.layout_version}"
    if not view.is_managed:
        yield "its rack is not managed"
    fullest = max((fill_percent(volume) for volume in volumes), default=0)
    if fullest >= FULL_PERCENT:
        yield f"a volume is {fullest} % full"


def _node_weight(view: NodeView) -> tuple[int, ...]:
    sums = summed([view])
    return (
        2 * is_silent(view) + (view.health is NodeHealthState.DEAD),
        sums.failed_volume_count,
        is_unreported(view),
        view.node.op_state is not OpState.IN_SERVICE,
        used_percent(sums.capacity_bytes, sums.available_bytes) >= FULL_PERCENT,
        _staleness(sums.oldest_scan_at_ms),
    )


def _volume_weight(place: RankedVolume) -> tuple[int, ...]:
    volume = place.volume
    percent = fill_percent(volume)
    return (
        volume.failed,
        percent >= FULL_PERCENT,
        _staleness(verified_at_ms(volume)),
        percent,
    )


def _staleness(at_ms: int) -> int:
    """Return a sort key that grows with the age of the last verification.

    The key is lowest if there is nothing to verify.
    """
    return -(2**63) if at_ms == NOTHING_TO_VERIFY else -at_ms
