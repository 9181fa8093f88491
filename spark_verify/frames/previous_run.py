"""Reads the result of the previous run.

The new run uses the numbers for the trend in its report, and the containers whose replicas
differed. If the old result is damaged, its readable parts are used, and the new run does not fail.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from health.tables.snapshot_columns import RESULT_VERSION
from spark_verify.frames.result_frames import BEFORE, Keep
from spark_verify.result_tables import JUDGED
from spark_verify.runs import RunSummary, attempt_of, finished_summaries, table_of
from spark_verify.snapshot.manifest import SnapshotManifest
from spark_verify.snapshot.tables import read_rows
from spark_verify.storage import Storage

TREND: Final = {"run_id", "as_of_ms", "containers", "flagged", "flags", "checksum_classes"}
"""Fields of a run's summary that are shown as the trend in the report of the next run."""

ATTEMPTS_MAX: Final = 1 << 20


def previous_run(storage: Storage, manifest: SnapshotManifest, run_id: str) -> RunSummary | None:
    """Return the summary of the latest finished run whose snapshot is older than this snapshot.

    Return None if there is no such run.
    """
    found = [
        run
        for run in finished_summaries(storage)
        if run.inputs.get("result_version") == RESULT_VERSION and not run.changed_nodes
        if run.cluster_id == manifest.cluster_id and run.as_of_ms < manifest.as_of_ms
        if run.run_id != run_id
    ]
    return max(found, key=lambda run: (run.as_of_ms, run.run_id), default=None)


def divergent_before(
    spark: SparkSession, storage: Storage, previous: RunSummary, keep: Keep
) -> DataFrame:
    """Return the rows of the table `divergent/` of the previous run.

    Raise one of `errors.FAILURES` if they cannot be read.
    """
    attempt = attempt_of(storage, previous.run_id)
    if attempt is None:
        raise FileNotFoundError("the run no longer exists")
    path = table_of(storage.address, "divergent", run_id=previous.run_id, attempt=attempt)
    schema = pa.schema([JUDGED["divergent"].field(name) for name in BEFORE])
    # Copied, because another process may remove the old run at any time.
    rows = keep("before", read_rows(spark, schema, path))
    is_right = f"container_id IS NOT NULL AND attempts BETWEEN 0 AND {ATTEMPTS_MAX}"
    right = rows.filter(is_right).count()
    if (right, rows.count()) != (previous.divergent, previous.divergent):
        raise OSError(f"divergent/ has {right} possible rows of {previous.divergent}")
    return rows
