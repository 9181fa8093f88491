"""Reads the previous run: its numbers for the trend, and the containers that differed.

If the old result is damaged, only its readable parts are used, and the new run does not fail.
"""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_verify.errors import describe_error, failures
from spark_verify.frames.result_frames import BEFORE, Keep
from spark_verify.input_columns import RESULT_VERSION
from spark_verify.result_tables import JUDGED
from spark_verify.runs import attempt_of, finished_summaries, table_of
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

ASKED: Final[dict[str, type]] = FACTS | {"cluster_id": str, "changed_nodes": list, "inputs": dict}
"""All fields read from a summary."""

ATTEMPTS_MAX: Final = 1 << 20


Summary = dict[str, Any]


def previous_run(storage: Storage, manifest: SnapshotManifest, run_id: str) -> Summary | None:
    """Return the summary of the latest finished run before this snapshot's instant, or None."""
    found = []
    for name, summary in finished_summaries(storage).items():
        if not _is_whole(summary) or summary["inputs"].get("result_version") != RESULT_VERSION:
            continue  # not used: damaged, or of another version
        is_same = summary["cluster_id"] == manifest.cluster_id and not summary["changed_nodes"]
        if is_same and summary["as_of_ms"] < manifest.as_of_ms and summary["run_id"] != run_id:
            found.append(summary | {"run_id": name})
    return max(found, key=lambda one: (one["as_of_ms"], one["run_id"]), default=None)


def trend_facts(previous: Summary | None) -> Summary | None:
    """Return the fields that the trend needs."""
    return previous and {name: previous[name] for name in FACTS}


def divergent_before(
    spark: SparkSession, storage: Storage, previous: Summary | None, keep: Keep
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


def _read_before(spark: SparkSession, storage: Storage, previous: Summary, keep: Keep) -> DataFrame:
    attempt = attempt_of(storage, previous["run_id"])
    if attempt is None:
        raise FileNotFoundError("the run no longer exists")
    path = table_of(storage.address, "divergent", run_id=previous["run_id"], attempt=attempt)
    schema = pa.schema([JUDGED["divergent"].field(name) for name in BEFORE])
    # Copied, because another process may remove the old run at any time.
    rows = keep("before", read_rows(spark, schema, path))
    is_right = f"container_id IS NOT NULL AND attempts BETWEEN 0 AND {ATTEMPTS_MAX}"
    counted = rows.selectExpr(
        "count(*) AS rows", f"count_if(NOT coalesce({is_right}, false)) AS wrong"
    ).first()
    assert counted is not None, "an aggregate has a row"
    expected = previous["divergent"]
    if counted["wrong"] or counted["rows"] != expected:
        raise OSError(
            f"divergent/ has {counted['rows']} rows of {expected}, and {counted['wrong']} of them "
            "cannot be"
        )
    return rows


def _is_whole(summary: Summary) -> bool:
    if not all(isinstance(summary.get(name), kind) for name, kind in ASKED.items()):
        return False
    counts = [*summary["flags"].values(), *summary["checksum_classes"].values()]
    return all(isinstance(count, int) for count in counts)
