"""Renders the summary of a run: as text in the format of Ozone's Replication Manager report, and as
one HTML file with inline SVG, which needs no network and no script.
"""

from collections import defaultdict
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

import jinja2

from health.blame import chance_text
from spark_verify.result_tables import RESULTS
from suture.runtime.exit_codes import ExitCode

VERDICTS: Final = {
    ExitCode.OK: ("clean", "clean", "Every comparable replica agrees; nothing to do."),
    ExitCode.TO_DO: ("work", "work to do", "Replicas need work; a good copy of everything exists."),
    ExitCode.DATA_AT_RISK: (
        "risk",
        "data at risk",
        "Some containers have no healthy replica. Look at these first.",
    ),
}


def html_report(summary: dict[str, Any], run_path: str) -> str:
    """Return the report as HTML. `run_path` is the address of the run's directory."""
    kind, title, sentence = verdict(summary)
    return _rendered(
        "report.html.j2",
        s=summary,
        run_path=run_path,
        verdict=kind,
        title=title,
        sentence=sentence,
        lost=lost_by_node(summary["lost_by_volume"]),
        tables=tuple(RESULTS),
    )


def text_report(summary: dict[str, Any]) -> str:
    """Return the report as text, without a line end behind its last line."""
    return _rendered("report.txt.j2", s=summary, scope=scope(summary)).removesuffix("\n")


def _rendered(name: str, **values: object) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bytes=bytes_text, number=number_text, instant=instant_text, chance=chance_text
    )
    return environment.get_template(name).render(values)


def _template(name: str) -> str:
    return resources.files("spark_verify.report").joinpath(name).read_text(encoding="utf-8")


def verdict(summary: dict[str, Any]) -> tuple[str, str, str]:
    """Return the kind of a result, its headline and its description.

    The headline of a partial result begins with "partial", because other containers were not
    verified.
    """
    kind, title, sentence = VERDICTS[summary["exit_code"]]
    if summary["is_partial"]:
        return kind, f"partial: {title}", f"{scope(summary)} {sentence}"
    return kind, title, sentence


def scope(summary: dict[str, Any]) -> str:
    """Return the sentence that names the containers of a partial result."""
    return (
        f"Only the {summary['containers']:,} of {summary['rows']['containers']:,} containers with "
        f"a replica on {', '.join(summary['changed_nodes'])} were verified; nothing is said of the "
        "others."
    )


def lost_by_node(lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lost votes of each node, in total and by volume, highest first."""
    nodes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for entry in lost:
        nodes[entry["datanode_id"]][entry["volume_id"]] = entry["count"]
    rows: list[dict[str, Any]] = [
        {"datanode_id": name, "total": sum(counts.values()), "counts": counts}
        for name, counts in nodes.items()
    ]
    return sorted(rows, key=lambda row: (-row["total"], row["datanode_id"]))


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


def instant_text(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return an instant in UTC, by default to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
