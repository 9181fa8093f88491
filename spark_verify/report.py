"""The report: one HTML file that can be mailed. No network, no script, plots as inline SVG."""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

import jinja2

COLOURS: Final = {
    "MATCH": "#2e9e6b",
    "EMPTY": "#b8c4ce",
    "SINGLE": "#8fb8de",
    "NOT_COMPARABLE": "#7b8ea3",
    "UNKNOWN": "#5b8def",
    "PARTIAL": "#8f7ee7",
    "MISMATCH_MINORITY": "#e8a33d",
    "MISMATCH_SPLIT": "#d9483b",
}
VERDICTS: Final = {
    0: ("clean", "Every comparable replica agrees; nothing to do."),
    2: ("work", "Some replicas must be brought together again; a good copy of everything exists."),
    3: ("risk", "Some containers have no healthy replica. Look at these first."),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment of a stacked bar, in per cent of its width."""

    label: str
    count: int
    left: float
    width: float
    colour: str


def render(summary: dict[str, Any]) -> str:
    """Return the report as HTML."""
    source = resources.files("spark_verify").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(bytes=bytes_text, number=number_text, instant=instant_text)
    verdict, sentence = VERDICTS[summary["exit_code"]]
    return environment.from_string(source).render(
        s=summary,
        verdict=verdict,
        sentence=sentence,
        class_bars=bars(summary["checksum_classes"], COLOURS),
        colours=COLOURS,
    )


def bars(counts: dict[str, int], colours: dict[str, str]) -> list[Bar]:
    """Return the segments of one stacked bar; a count above zero is always visible."""
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
        found.append(Bar(label, count, round(left, 3), round(width, 3), colours.get(label, "#999")))
        left += width
    return found


def number_text(value: int) -> str:
    """Return a count with thin separators: 1 234 567."""
    return f"{value:,}".replace(",", "\u2009")


def bytes_text(value: int) -> str:
    """Return a size in the unit a person would choose."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def instant_text(at_ms: int) -> str:
    """Return an instant as UTC to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
