"""What the run before this one said: what a trend is drawn from, and what differed then.

It is asked for as far as it can be read: a damaged old result never costs a new one.
"""

from dataclasses import dataclass
from typing import Any, Final

from spark_verify.file_systems import Place
from spark_verify.input_columns import RESULT_VERSION
from spark_verify.runs import files_of, finished_runs, read_summary
from spark_verify.snapshot.manifest import Manifest
from spark_verify.snapshot.snapshot_reading import (
    DAMAGED,
    Part,
    groups_of,
    parquet_file,
    parts_of,
)

FACTS: Final[dict[str, type]] = {
    "run_id": str,
    "as_of_ms": int,
    "containers": int,
    "flagged": int,
    "flags": dict,
    "checksum_classes": dict,
}
"""What a trend is drawn from."""

ASKED: Final[dict[str, type]] = FACTS | {"cluster_id": str, "changed_nodes": list}
"""What of a summary is asked beside its version."""


@dataclass(frozen=True, slots=True)
class Previous:
    """A finished run of an earlier instant of the same cluster."""

    place: Place
    summary: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return what a trend is drawn from."""
        return {name: self.summary[name] for name in FACTS}

    def parts(self) -> list[Part]:
        """Return the files of what it found to differ. Raises one of DAMAGED."""
        groups = []
        for path in files_of(self.place, "divergent"):
            with parquet_file(path) as file:
                groups.append((str(path), groups_of(file)))
        return parts_of("before", groups)


def previous_run(out: Place, manifest: Manifest, run_id: str) -> Previous | None:
    """Return the latest finished run before this snapshot's instant; None when there is none."""
    found = []
    for run in finished_runs(out):
        summary = read_summary(run)
        if summary is None or _version(summary) != RESULT_VERSION or not _is_whole(summary):
            continue  # damaged, or of another version: nothing follows from it
        is_same = summary["cluster_id"] == manifest.cluster_id and not summary["changed_nodes"]
        if is_same and summary["as_of_ms"] < manifest.as_of_ms and summary["run_id"] != run_id:
            found.append(Previous(run, summary))
    return max(found, key=lambda p: (p.summary["as_of_ms"], p.summary["run_id"]), default=None)


def parts_before(previous: Previous | None) -> tuple[list[Part], str]:
    """Return the files of what the run before found to differ, and else why they cannot be read."""
    try:
        return (previous.parts() if previous else []), ""
    except DAMAGED as error:
        return [], str(error)


def _is_whole(summary: dict[str, Any]) -> bool:
    if not all(isinstance(summary.get(name), kind) for name, kind in ASKED.items()):
        return False
    counts = [*summary["flags"].values(), *summary["checksum_classes"].values()]
    return all(isinstance(count, int) for count in counts)


def _version(summary: dict[str, Any]) -> object:
    inputs = summary.get("inputs")
    return inputs.get("result_version") if isinstance(inputs, dict) else None
