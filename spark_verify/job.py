"""`suture-verify`: a snapshot in; classes, a plan and a report out.

    suture-verify SNAPSHOT --out DIR [--run-id ID] [--json]
    spark-submit --py-files suture.whl verify_main.py SNAPSHOT --out DIR

Exit codes: 0 clean, 2 work to do, 3 data at risk, 1 error (nothing was written).
A run id names a result for ever: the same id again returns the finished result without work.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_verify.case import build_cases, violation
from spark_verify.compare import compare
from spark_verify.errors import SPARK_ERRORS, RunConflict, SnapshotRefused, VerifyError
from spark_verify.plan import is_at_risk, judge_reconcile, reconcile_plan
from spark_verify.report import render
from spark_verify.rows import RESULT_VERSION
from spark_verify.session import open_session
from spark_verify.snapshot import (
    EXAMPLES_MAX,
    Manifest,
    Snapshot,
    check_rows,
    open_snapshot,
    read_manifest,
)
from spark_verify.summary import summarise

ERROR: Final = 1

HEALTH_COLUMNS: Final = (
    "container_id",
    "state",
    "replication_type",
    "checksum_class",
    "eligibility",
    "reconcile_reasons",
    "remaining_redundancy",
    "tombstones_differ",
    "is_unreachable_different",
    "is_at_risk",
    "is_known",
    "snapshot_id",
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Result:
    """Where a finished run lies and what it found."""

    directory: Path
    summary: dict[str, Any]


def verify(
    snapshot_directory: str,
    out: Path,
    *,
    run_id: str = "",
    master: str = "",
    progress: Progress = lambda _: None,
) -> Result:
    """Verify a snapshot and write the result to `out/run_id=<run_id>`.

    Raises SnapshotRefused when the snapshot cannot be believed, RunConflict when the run id is
    taken by another snapshot. Either way nothing is left behind.
    """
    manifest = read_manifest(snapshot_directory)
    run_id = run_id or manifest.snapshot_id
    if not run_id.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise RunConflict(f"run id {run_id!r} is no name for a directory")
    target = out / f"run_id={run_id}"
    if (target / "_SUCCESS").is_file():
        progress(f"run {run_id} is finished already")
        return _finished(target, manifest)
    progress("starting Spark")
    spark = open_session(replica_count=manifest.rows["replicas"], master=master)
    work = out / f".run_id={run_id}.partial"  # hidden: a reader of `out` never sees half a run
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        summary = _run(spark, snapshot_directory, manifest, work, run_id, progress)
        shutil.rmtree(target, ignore_errors=True)  # left by a run that never got its _SUCCESS
        work.rename(target)
        (target / "_SUCCESS").touch()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Result(target, summary)


def _finished(target: Path, manifest: Manifest) -> Result:
    summary = json.loads((target / "summary.json").read_text(encoding="utf-8"))
    if summary["snapshot_id"] != manifest.snapshot_id:
        raise RunConflict(
            f"{target} holds the run of snapshot {summary['snapshot_id']}, "
            f"not of {manifest.snapshot_id}",
            hint="choose another --run-id",
        )
    return Result(target, summary)


def _run(
    spark: SparkSession,
    snapshot_directory: str,
    manifest: Manifest,
    work: Path,
    run_id: str,
    progress: Progress,
) -> dict[str, Any]:
    snapshot = open_snapshot(spark, snapshot_directory, manifest)
    progress(f"checking {manifest.rows['replicas']:,} replicas of snapshot {manifest.snapshot_id}")
    check_rows(snapshot)
    progress(f"comparing the replicas of {manifest.rows['containers']:,} containers")
    judged = judge(snapshot).cache()
    try:
        _refuse_impossible(judged)
        plan = reconcile_plan(
            judged,
            snapshot_id=manifest.snapshot_id,
            run_id=run_id,
            as_of_ms=manifest.as_of_ms,
        )
        progress("writing the result")
        rows = {
            "health": _write(judged.select(*HEALTH_COLUMNS), work / "health"),
            "replica_class": _write(replica_classes(judged), work / "replica_class"),
            "reconcile_plan": _write(plan, work / "reconcile_plan"),
        }
        summary = summarise(
            snapshot, judged, spark.read.parquet(str(work / "reconcile_plan")), run_id=run_id
        )
    finally:
        judged.unpersist()
    _write_text(work / "summary.json", json.dumps(summary, indent=2))
    _write_text(work / "report.html", render(summary))
    _write_text(work / "manifest.json", json.dumps(_result_manifest(manifest, run_id, rows)))
    return summary


def judge(snapshot: Snapshot) -> DataFrame:
    """Return every container of the snapshot with all that is known and concluded about it."""
    judged = judge_reconcile(compare(build_cases(snapshot)))
    return judged.withColumns(
        {
            "is_at_risk": is_at_risk(),
            "violation": violation(),
            "snapshot_id": f.lit(snapshot.manifest.snapshot_id),
        }
    )


def replica_classes(judged: DataFrame) -> DataFrame:
    """Return one row per replica of every container that is not plainly in agreement."""
    replicas = judged.filter(f.col("checksum_class") != "MATCH").select(
        "container_id",
        "checksum_class",
        "minority",
        "snapshot_id",
        f.explode("replicas").alias("r"),
    )
    return replicas.select(
        "container_id",
        "r.datanode_id",
        "r.replica_index",
        "r.volume_id",
        "r.state",
        "r.root",
        "r.tree_algorithm",
        "r.finding_count",
        "r.is_reachable",
        f.array_contains("minority", f.col("r.datanode_id")).alias("is_minority"),
        "checksum_class",
        "snapshot_id",
    )


def _refuse_impossible(judged: DataFrame) -> None:
    rows = (
        judged.filter(f.col("violation").isNotNull())
        .select("container_id", "violation")
        .orderBy("container_id")
        .limit(EXAMPLES_MAX)
        .collect()
    )
    if rows:
        named = ", ".join(f"(container {row['container_id']}: {row['violation']})" for row in rows)
        raise SnapshotRefused(
            f"the tables contradict each other: {named}",
            hint="export the snapshot again from the SCM",
        )


def _write(rows: DataFrame, path: Path) -> int:
    rows.write.option("compression", "zstd").parquet(str(path))
    return rows.sparkSession.read.parquet(str(path)).count()


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


def _result_manifest(manifest: Manifest, run_id: str, rows: dict[str, int]) -> dict[str, object]:
    return {
        "result_version": RESULT_VERSION,
        "run_id": run_id,
        "snapshot_id": manifest.snapshot_id,
        "as_of_ms": manifest.as_of_ms,
        "term": manifest.term,
        "rows": rows,
    }


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def verify_command(
    snapshot: Annotated[str, typer.Argument(help="Directory of the snapshot.")],
    out: Annotated[Path, typer.Option(help="Directory that gets run_id=<run id>/.")],
    run_id: Annotated[str, typer.Option(help="Name of the result; default: snapshot id.")] = "",
    master: Annotated[str, typer.Option(help="Spark master; default: this machine.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Compare all replicas' checksums cluster-wide and say what to reconcile.

    Exit codes: 0 clean, 2 work to do, 3 data at risk, 1 error.
    """
    started_s = time.monotonic()

    def progress(text: str) -> None:
        typer.echo(f"[{time.monotonic() - started_s:6.1f} s] {text}", err=True)

    try:
        result = verify(snapshot, out, run_id=run_id, master=master, progress=progress)
    except (VerifyError, *SPARK_ERRORS, OSError) as error:
        _say_error(error, as_json=as_json)
        raise _Done(ERROR) from error
    _say_result(result, as_json=as_json)
    progress(f"done: {result.directory}")
    raise _Done(result.summary["exit_code"])


class _Done(Exception):
    """Carries the exit code past typer, whose own 2 means a usage error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _say_error(error: Exception, *, as_json: bool) -> None:
    message = str(error).splitlines()[0]
    hint = getattr(error, "hint", "")
    code = getattr(error, "code", "VERIFY_FAILED")
    if as_json:
        typer.echo(json.dumps({"error": code, "message": message, "hint": hint}))
    typer.echo(f"suture-verify: {message}" + (f"\nhint: {hint}" if hint else ""), err=True)


def _say_result(result: Result, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"path": str(result.directory)} | result.summary))
        return
    summary = result.summary
    for name, count in summary["checksum_classes"].items():
        if count:
            typer.echo(f"{name:18} {count:>12,}")
    typer.echo(f"{'to reconcile':18} {summary['plan']['reconcile']:>12,}")
    typer.echo(f"{'at risk':18} {summary['at_risk']['count']:>12,}")
    typer.echo(f"{result.directory / 'report.html'}")


def main() -> None:
    """Run the command; exit with 1, not typer's 2, on a usage error."""
    try:
        app()
    except _Done as done:
        sys.exit(done.code)
    except SystemExit as end:
        sys.exit(ERROR if end.code else 0)


if __name__ == "__main__":  # how spark-submit starts it
    main()
