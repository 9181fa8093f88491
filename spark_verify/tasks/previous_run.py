"""What the run before this one said: the trend, and divergences that no repair moves.

When all replicas of a container are healthy by their own reading and yet differ, a reconcile
cannot help: it would be ordered again at every run. So a container whose roots are the same as when
it was last planned is planned ever more rarely: at its 1st, 2nd, 3rd, 5th, 9th ... run.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_verify.file_systems import Place
from spark_verify.input_columns import RESULT_VERSION
from spark_verify.result_tables import DIVERGENT
from spark_verify.runs import finished_runs, read_summary, table_of
from spark_verify.snapshot.manifest import Manifest
from spark_verify.snapshot.snapshot_reading import (
    Part,
    groups_of,
    parquet_file,
    parquet_files,
    parts_of,
)

BEFORE: Final = pa.schema(
    [DIVERGENT.field(name) for name in ("container_id", "replicas", "attempts")]
)
"""What of `divergent/` counts in the next run."""


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
        for path in parquet_files(table_of(self.place, "divergent")):
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


def with_attempts(divergent: pa.Table, before: pa.Table) -> pa.Table:
    """Fill in `attempts`, runs that found the same roots before, and `is_backed_off`.

    `before` are rows of the previous run's `divergent/`, as `BEFORE` has them.
    """
    is_again = pc.is_in(before["container_id"], value_set=divergent["container_id"])
    was = {row["container_id"]: row for row in before.filter(is_again).to_pylist()}
    attempts = [
        row["attempts"] + 1 if row is not None and row["replicas"] == replicas else 0
        for row, replicas in zip(
            map(was.get, divergent["container_id"].to_pylist()),
            divergent["replicas"].to_pylist() if was else [None] * divergent.num_rows,
            strict=True,
        )
    ]
    filled = {"attempts": attempts, "is_backed_off": [n.bit_count() > 1 for n in attempts]}
    for name, values in filled.items():
        place = DIVERGENT.get_field_index(name)
        kind = DIVERGENT.field(place)
        divergent = divergent.set_column(place, kind, pa.array(values, kind.type))
    return divergent
