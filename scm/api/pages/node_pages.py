"""The web pages of a rack and of a datanode, and the templates of all pages of the cluster."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from scm.api.cluster_status.datanode_totals import summed, verified_at_ms, volumes_of
from scm.api.pages.ranking import FULL_PERCENT, RankedVolume, remarks, used_percent
from scm.api.views import NodeView
from suture.observe.terminal_escape import short_id
from suture.pages.html import render, templates

NODES_A_PAGE: Final = 200
VOLUMES_SHOWN_MAX: Final = 500  # volumes of one node: an agent has 128 at most

TEMPLATES: Final = templates("scm.api.pages")
TEMPLATES.filters.update(query=lambda text: quote(text, safe=""), short_id=short_id)
TEMPLATES.globals.update(
    FULL_PERCENT=FULL_PERCENT,
    remarks=remarks,
    summed=summed,
    used_percent=used_percent,
    verified_at_ms=verified_at_ms,
)


def rack_page(name: str, views: Sequence[NodeView], now_ms: int, page: int) -> bytes:
    """Return one page of the list of a rack's datanodes as HTML. `page` counts from 0."""
    first = page * NODES_A_PAGE
    facts = {
        "now_ms": now_ms,
        "name": name,
        "sums": summed(views, name),
        "part_count": -(-len(views) // NODES_A_PAGE),
        "views": views[first : first + NODES_A_PAGE],
    }
    return render(TEMPLATES, "rack.html.j2", facts)


def node_page(view: NodeView, now_ms: int) -> bytes:
    """Return the web page of one datanode as HTML."""
    volumes = volumes_of(view)[:VOLUMES_SHOWN_MAX]
    places = [RankedVolume(view.node.datanode_id, volume) for volume in volumes]
    return render(TEMPLATES, "node.html.j2", {"now_ms": now_ms, "view": view, "places": places})
