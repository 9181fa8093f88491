"""Reads the previous run: the start of the trend, and the containers that differed then.

A damaged old result never fails a new run: only its readable parts are used.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_verify.errors import describe_error, failures
from spark_verify.frames.result_frames import BEFORE, Keep
from spark_verify.input_columns import RESULT_VERSION
from spark_verify.result_tables import JUDGED
from spark_verify.runs import attempt_of, finished_runs, read_summary, table_of
from spark_verify.snapshot.manifest import SnapshotManifest
from spark_verify.snapshot.tables import read_rows
from spark_verify.storage import Storage

FACTS: Final[dict[str, type]] = {
    "run_id": str,
    "as_of_ms": int,
    "containers": int,
    "flagged": int,
    "flags": dict,
    "checksum_classes": dict,
}
"""Fields of a summary that the trend needs, and their types."""

ASKED: Final[dict[str, type]] = FACTS | {"cluster_id": str, "changed_nodes": list}
"""All fields read from a summary, besides its version."""

ATTEMPTS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Previous:
    """A finished run of the same cluster at an earlier instant."""

    run_id: str
    summary: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return the fields that the trend needs."""
        return {name: self.summary[name] for name in FACTS}


def previous_run(storage: Storage, manifest: SnapshotManifest, run_id: str) -> Previous | None:
    """Return the latest finished run before this snapshot's instant, or None."""
    found = []
    for name in finished_runs(storage):
        summary = read_summary(storage, name)
        if summary is None or _version(summary) != RESULT_VERSION or not _is_whole(summary):
            continue  # not used: damaged, or of another version
        is_same = summary["cluster_id"] == manifest.cluster_id and not summary["changed_nodes"]
        if is_same and summary["as_of_ms"] < manifest.as_of_ms and summary["run_id"] != run_id:
            found.append(Previous(name, summary))
    return max(found, key=lambda p: (p.summary["as_of_ms"], p.summary["run_id"]), default=None)


def divergent_before(
    spark: SparkSession, storage: Storage, previous: Previous | None, keep: Keep
) -> tuple[DataFrame | None, str]:
    """Return the previous run's rows of `divergent/` and "", or None and the reason why they cannot
    be read ("" if there is no previous run).
    """
    if previous is None:
        return None, ""
    try:
        return _read_before(spark, storage, previous, keep), ""
    except failures() as error:
        return None, describe_error(error)


def _read_before(
    spark: SparkSession, storage: Storage, previous: Previous, keep: Keep
) -> DataFrame:
    attempt = attempt_of(storage, previous.run_id)
    if attempt is None:
        raise FileNotFoundError("the run is not there any more")
    path = table_of(storage.address, "divergent", run_id=previous.run_id, attempt=attempt)
    schema = pa.schema([JUDGED["divergent"].field(name) for name in BEFORE])
    # Copied, because another process may remove the old run at any time.
    rows = keep("before", read_rows(spark, schema, path))
    is_right = f"container_id IS NOT NULL AND attempts BETWEEN 0 AND {ATTEMPTS_MAX}"
    counted = rows.selectExpr(
        "count(*) AS rows", f"count_if(NOT coalesce({is_right}, false)) AS wrong"
    ).first()
    assert counted is not None, "an aggregate has a row"
    expected = previous.summary["divergent"]
    if counted["wrong"] or counted["rows"] != expected:
        raise OSError(
            f"divergent/ has {counted['rows']} rows of {expected}, and {counted['wrong']} of them "
            "cannot be"
        )
    return rows


def _is_whole(summary: dict[str, Any]) -> bool:
    if not all(isinstance(summary.get(name), kind) for name, kind in ASKED.items()):
        return False
    counts = [*summary["flags"].values(), *summary["checksum_classes"].values()]
    return all(isinstance(count, int) for count in counts)


def _version(summary: dict[str, Any]) -> object:
    inputs = summary.get("inputs")
    return inputs.get("result_version") if isinstance(inputs, dict) else None
