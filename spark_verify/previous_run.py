"""What the run before this one said: what a trend is drawn from, and what differed then."""

from dataclasses import dataclass
from typing import Any

from spark_verify.file_systems import Place
from spark_verify.input_columns import RESULT_VERSION
from spark_verify.runs import files_of, finished_runs, read_summary
from spark_verify.snapshot.manifest import Manifest
from spark_verify.snapshot.snapshot_reading import (
    Part,
    groups_of,
    parquet_file,
    parts_of,
)


@dataclass(frozen=True, slots=True)
class Previous:
    """A finished run of an earlier instant of the same cluster."""

    place: Place
    summary: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return what a trend is drawn from."""
        names = ("run_id", "as_of_ms", "containers", "flagged", "flags", "checksum_classes")
        return {name: self.summary[name] for name in names}

    def parts(self) -> list[Part]:
        """Return the files of what it found to differ."""
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
        if summary is None or _version(summary) != RESULT_VERSION:
            continue  # damaged, or of another version: nothing follows from it
        is_same = summary["cluster_id"] == manifest.cluster_id and not summary["changed_nodes"]
        if is_same and summary["as_of_ms"] < manifest.as_of_ms and summary["run_id"] != run_id:
            found.append(Previous(run, summary))
    return max(found, key=lambda p: (p.summary["as_of_ms"], p.summary["run_id"]), default=None)


def _version(summary: dict[str, Any]) -> object:
    inputs = summary.get("inputs")
    return inputs.get("result_version") if isinstance(inputs, dict) else None
