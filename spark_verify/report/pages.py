"""Converts the summary of a run to a text and to an HTML page.

The text has the format of the report of Ozone's Replication Manager. The HTML page is one file with
inline SVG. It needs no network and no script.
"""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import jinja2

from health.blame import chance_text
from spark_verify.result_tables import RESULTS
from suture.errors import size_text


def html_report(summary: dict[str, Any], run_path: str) -> str:
    """Return the report as an HTML page. `run_path` is the address of the run's directory."""
    lost, tables = lost_by_node(summary["lost_by_volume"]), tuple(RESULTS)
    template = _environment().get_template("report.html.j2")
    return template.render(s=summary, run_path=run_path, lost=lost, tables=tables)


def text_report(summary: dict[str, Any]) -> str:
    """Return the report as text, without a newline at the end."""
    text = _environment().get_template("report.txt.j2").render(s=summary)
    return text.removesuffix("\n")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_verify.report", ""),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bytes=size_text, number="{:,}".format, instant=instant_text, chance=chance_text
    )
    return environment


def lost_by_node(lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each datanode how often its replicas differed from the majority, in total and by
    volume.

    The datanode with the highest total comes first.
    """
    nodes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for entry in lost:
        nodes[entry["datanode_id"]][entry["volume_id"]] = entry["count"]
    rows = [
        {"datanode_id": name, "total": sum(of.values()), "counts": of} for name, of in nodes.items()
    ]
    return sorted(rows, key=lambda row: (-row["total"], row["datanode_id"]))


def instant_text(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return a time as text in UTC, by default with seconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
