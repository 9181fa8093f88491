"""Renders the report as one HTML file that can be mailed: no network, no script, inline SVG."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

import jinja2

from health.blame import chance_text
from spark_verify.exits import Exit
from spark_verify.report.keys_command import keys_command
from spark_verify.report.summary import scope
from spark_verify.result_tables import RESULTS

COLOURS: Final = {
    "MATCH": "#2e9e6b",
    "EXPLAINED": "#7fc4a5",
    "EMPTY": "#b8c4ce",
    "SINGLE": "#8fb8de",
    "NOT_COMPARABLE": "#7b8ea3",
    "UNKNOWN": "#5b8def",
    "PARTIAL": "#8f7ee7",
    "MISMATCH_MINORITY": "#e8a33d",
    "MISMATCH_SPLIT": "#d9483b",
    "CONTRADICTORY": "#b8342a",
}
FLAG_COLOURS: Final = {
    "DATA_AT_RISK": "#b8342a",
    "MISSING": "#b8342a",
    "UNHEALTHY": "#d9483b",
    "CONTRADICTORY": "#b8342a",
    "VULNERABLE": "#d9483b",
    "ROOTS_DIFFER": "#e8a33d",
    "UNDER_REPLICATED": "#e8a33d",
    "UNHEALTHY_REPLICA": "#e8a33d",
}
GREY: Final = {
    "NOT_CLOSED": "still written, or on their way out: their replicas may differ",
    "NO_REPLICA_ANSWERS": "no replica answers",
    "SHARDS_ALONE": "erasure-coded, with no shard twice: parity says whether shards fit "
    "(suture scrub parity ID)",
    "TREES_OF_OTHER_KINDS": "trees of several algorithms: the next scan makes them alike",
}
"""Reasons why containers cannot be compared, as text for the user."""

QUIET: Final = "#7b8ea3"
VERDICTS: Final = {
    Exit.OK: ("clean", "clean", "Every comparable replica agrees; nothing to do."),
    Exit.TO_DO: ("work", "work to do", "Replicas need work; a good copy of everything exists."),
    Exit.DATA_AT_RISK: (
        "risk",
        "data at risk",
        "Some containers have no healthy replica. Look at these first.",
    ),
}
HEAT_ROWS_MAX: Final = 24
LEAVING_ROWS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar or segment; `left` and `width` in per cent of the plot's width or height."""

    label: str
    count: int
    left: float
    width: float
    colour: str


@dataclass(frozen=True, slots=True)
class HeatMapCell:
    """A square of the heat map; `heat` is 0 to 1."""

    column: int
    count: int
    heat: float


def render(summary: dict[str, Any]) -> str:
    """Return the report as HTML."""
    source = (
        resources.files("spark_verify.report")
        .joinpath("report.html.j2")
        .read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        bytes=bytes_text, number=number_text, instant=instant_text, chance=chance_text
    )
    kind, title, sentence = verdict(summary)
    return environment.from_string(source).render(
        s=summary,
        verdict=kind,
        title=title,
        sentence=sentence,
        class_bars=bars(summary["checksum_classes"], COLOURS),
        flag_bars=rows_of_bars(summary["flags"], FLAG_COLOURS),
        age_bars=rows_of_bars(summary["verification_age"], {}),
        colours=COLOURS,
        grey=GREY,
        keys_command=keys_command(summary["samples"]["flags"].get("DATA_AT_RISK", ())),
        heat=heat_map(summary["lost_by_volume"]),
        trend=trend(summary),
        tables=tuple(RESULTS),
        leaving=summary["leaving"][:LEAVING_ROWS_MAX],
    )


def verdict(summary: dict[str, Any]) -> tuple[str, str, str]:
    """Return the kind of a result, its headline and its sentence.

    The headline of a partial result begins with "partial", because it says nothing about other
    containers.
    """
    kind, title, sentence = VERDICTS[summary["exit_code"]]
    if summary["is_partial"]:
        return kind, f"partial: {title}", f"{scope(summary)} {sentence}"
    return kind, title, sentence


def bars(counts: dict[str, int], colours: dict[str, str]) -> list[Bar]:
    """Return the segments of one stacked bar; every count above zero is visible."""
    shown = {label: count for label, count in counts.items() if count}
    total = sum(shown.values())
    if not total:
        return []
    visible_min = 0.6
    raw = {label: max(100 * count / total, visible_min) for label, count in shown.items()}
    scale = 100 / sum(raw.values())
    found, left = [], 0.0
    for label, count in shown.items():
        width = raw[label] * scale
        colour = colours.get(label, QUIET)
        found.append(Bar(label, count, round(left, 3), round(width, 3), colour))
        left += width
    return found


def rows_of_bars(counts: dict[str, int], colours: dict[str, str]) -> list[Bar]:
    """Return one bar per count, relative to the largest; zero has no width."""
    largest = max(counts.values(), default=0) or 1
    return [
        Bar(label, count, 0, round(100 * count / largest, 2), colours.get(label, QUIET))
        for label, count in counts.items()
    ]


def heat_map(lost: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the nodes with the most lost votes and a cell per volume, darker for more."""
    volumes = sorted({entry["volume_id"] for entry in lost})
    by_node: dict[str, dict[str, int]] = {}
    for entry in lost:
        by_node.setdefault(entry["datanode_id"], {})[entry["volume_id"]] = entry["count"]
    worst = sorted(by_node, key=lambda node: (-sum(by_node[node].values()), node))[:HEAT_ROWS_MAX]
    hottest = max((n for node in worst for n in by_node[node].values()), default=1)
    rows = [
        {
            "datanode_id": node,
            "total": sum(by_node[node].values()),
            "cells": [
                HeatMapCell(i, by_node[node].get(v, 0), round(by_node[node].get(v, 0) / hottest, 3))
                for i, v in enumerate(volumes)
            ],
        }
        for node in worst
    ]
    return {"volumes": volumes, "rows": rows, "hidden": len(by_node) - len(worst)}


def trend(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changes since the previous run, per flag and checksum class."""
    before = summary["previous"]
    if before is None:
        return []
    pairs = [("any flag", summary["flagged"], before["flagged"])]
    pairs += [(name, n, before["flags"].get(name, 0)) for name, n in summary["flags"].items()]
    pairs += [
        (name, n, before["checksum_classes"].get(name, 0))
        for name, n in summary["checksum_classes"].items()
        if name in ("UNKNOWN", "PARTIAL", "MISMATCH_MINORITY", "MISMATCH_SPLIT", "CONTRADICTORY")
    ]
    return [
        {"name": name, "now": now, "before": then, "change": now - then}
        for name, now, then in pairs
        if now or then
    ]


def number_text(value: int) -> str:
    """Return a count with thin separators: 1 234 567."""
    return f"{value:,}".replace(",", "\u2009")


def bytes_text(value: int) -> str:
    """Return a size in a readable unit, from B to PiB."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def instant_text(at_ms: int) -> str:
    """Return an instant as UTC to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
