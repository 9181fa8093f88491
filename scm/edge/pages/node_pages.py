"""Tables of racks, datanodes and volumes, and a page for each rack and datanode."""

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote

from agent.errors import size_text
from agent.observe.markup import Markup, age, bar, document, element, joined, link, section, table
from agent.observe.printable import short_id
from agent.observe.status_headline import volume_word
from scm.edge.overview.datanode_totals import NodeTotals, summed, verified_at_ms, volumes_of
from scm.edge.pages.ranking import FULL_PERCENT, RankedVolume, remarks, used_percent
from scm.edge.views import NodeView
from scm.state.facts import ReportedVolume
from scm.state.history.interval_samples import NEVER_VERIFIED, NOTHING_TO_VERIFY

NODES_A_PAGE: Final = 200
VOLUMES_SHOWN_MAX: Final = 500  # of one node: an agent has 128 at most
DATA_COLUMNS: Final = ("full", "#free", "verified in time", "oldest verification")


def rack_page(name: str, views: Sequence[NodeView], now_ms: int, page: int) -> bytes:
    """Return the page of one rack, or of a part of it: pages are numbered from 0."""
    sums = summed(views, name)
    first = page * NODES_A_PAGE
    parts = [
        link(f"/?rack={quote(name, safe='')}&page={number}", f"part {number + 1}")
        for number in range(-(-len(views) // NODES_A_PAGE))
    ]
    return document(
        f"Suture: rack {name}",
        element("p", link("/", "the cluster")),
        element("h1", f"Rack {name}"),
        rack_table([sums], now_ms),
        section(
            "Datanodes",
            joined(*parts, separator=", ") if len(parts) > 1 else "",
            node_table(views[first : first + NODES_A_PAGE], now_ms),
        ),
    )


def node_page(view: NodeView, now_ms: int) -> bytes:
    """Return the page of one datanode, as the control plane knows it."""
    node = view.node
    places = [RankedVolume(node.datanode_id, v) for v in volumes_of(view)[:VOLUMES_SHOWN_MAX]]
    queues = () if view.live is None else view.live.queues
    return document(
        f"Suture: datanode {node.datanode_id}",
        element("p", link("/", "the cluster"), ", rack ", rack_link(node.rack)),
        element("h1", f"Datanode {node.datanode_id}"),
        element("p", f"At {node.address}, version {node.version}."),
        node_table([view], now_ms),
        section(
            "Volumes",
            volume_table(places, now_ms, "None is known: not heard since the start."),
        ),
        section("Commands queued and running there", table(("command", "#count"), queues)),
        element("p", "More of it: ", element("code", f"suture status --datanode {node.address}")),
    )


def rack_table(racks: Iterable[NodeTotals], now_ms: int) -> Markup:
    """Return racks as a table."""
    columns = ("rack", "#datanodes", "#not heard", "#failed volumes", *DATA_COLUMNS)
    return table(
        columns,
        (
            (
                rack_link(rack.name),
                f"{rack.node_count:,}",
                _wrong(len(rack.silent)),
                _wrong(rack.failed_volume_count),
                fill(rack),
                size_text(rack.available_bytes),
                in_time(rack),
                oldest(rack.oldest_scan_at_ms, now_ms),
            )
            for rack in racks
        ),
    )


def node_table(views: Iterable[NodeView], now_ms: int) -> Markup:
    """Return datanodes as a table."""
    columns = ("datanode", "address", "rack", "health", "#replicas", *DATA_COLUMNS, "remark")
    return table(columns, (_node_row(view, now_ms) for view in views))


def volume_table(places: Iterable[RankedVolume], now_ms: int, nothing: str = "None.") -> Markup:
    """Return volumes as a table."""
    columns = ("volume", "datanode", "state", "#containers", *DATA_COLUMNS, "remark")
    return table(columns, (_volume_row(place, now_ms) for place in places), nothing)


def rack_link(name: str) -> Markup:
    """Return the link to a rack's page."""
    return link(f"/?rack={quote(name, safe='')}", name or "(none)")


def node_link(datanode_id: str) -> Markup:
    """Return the link to a datanode's page, with the id shortened as in commands."""
    return link(f"/?node={quote(datanode_id, safe='')}", short_id(datanode_id))


def fill(sums: NodeTotals) -> Markup:
    """Return the fill level of some volumes."""
    used = max(0, sums.capacity_bytes - sums.available_bytes)
    percent = used_percent(sums.capacity_bytes, sums.available_bytes)
    return bar(used, sums.capacity_bytes, "wrong" if percent >= FULL_PERCENT else "")


def in_time(sums: NodeTotals) -> Markup:
    """Return the share of data that was verified within the scan interval."""
    part = min(sums.in_time_bytes, sums.data_bytes)
    return bar(part, sums.data_bytes, "" if part == sums.data_bytes else "doubt")


def oldest(at_ms: int, now_ms: int) -> str:
    """Return how long ago the oldest verification was."""
    if at_ms == NOTHING_TO_VERIFY:
        return "-"
    return "never" if at_ms == NEVER_VERIFIED else f"{age(at_ms, now_ms)} ago"


def _node_row(view: NodeView, now_ms: int) -> tuple[object, ...]:
    sums = summed([view])
    is_well = view.health.value == "HEALTHY"
    return (
        node_link(view.node.datanode_id),
        view.node.address,
        rack_link(view.node.rack),
        element("span", view.health.lower(), kind="" if is_well else "wrong"),
        f"{view.container_count:,}",
        fill(sums),
        size_text(sums.available_bytes),
        in_time(sums),
        oldest(sums.oldest_scan_at_ms, now_ms),
        "; ".join(remarks(view, now_ms)),
    )


def _volume_row(place: RankedVolume, now_ms: int) -> tuple[object, ...]:
    volume = place.volume
    word = volume_word(volume.service, failed=volume.failed)
    return (
        volume.path,
        node_link(place.datanode_id),
        element("span", word, kind="wrong" if volume.failed else ""),
        f"{volume.container_count:,}",
        _volume_fill(volume),
        size_text(volume.available_bytes) if volume.takes_replicas else "-",
        bar(min(volume.in_time_bytes, volume.data_bytes), volume.data_bytes),
        oldest(verified_at_ms(volume), now_ms),
        volume.error,
    )


def _volume_fill(volume: ReportedVolume) -> Markup:
    if not volume.takes_replicas:
        return Markup("-")
    percent = used_percent(volume.capacity_bytes, volume.available_bytes)
    used = max(0, volume.capacity_bytes - volume.available_bytes)
    return bar(used, volume.capacity_bytes, "wrong" if percent >= FULL_PERCENT else "")


def _wrong(count: int) -> Markup:
    return element("span", f"{count:,}", kind="wrong" if count else "")
